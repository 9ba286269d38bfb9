"""Law: the integral of a changelog equals the oracle's walk over the versions that were not
retracted.
"""

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.operators.changelog.step import ChangelogStep
from fennel_core.operators.spec import ChangelogSpec
from fennel_core.vocab.dtypes import Bool, Field, Int, Optional, Str
from fennel_core.vocab.schema import Schema
from tests.laws.operators.changelog import oracle
from tests.support.histories import bag, histories, integral, run

INPUT = Schema((Field("k", Str()),), (Field("v", Optional(Int())),), "t")
OUTPUT = Schema((), (Field("k", Str()), Field("v", Optional(Int())), Field("flag", Bool())), "t")
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from("ab"),
        "t": st.integers(0, 6),
        "v": st.integers(0, 3),
        "__tombstone": st.sampled_from([False, False, True]),
    }
).map(lambda row: {**row, "v": None} if row["__tombstone"] else row)


@given(histories(ROW), st.booleans())
def test_a_changelog_has_every_insert_and_delete(history, deletes):
    _, emitted = run(ChangelogStep(ChangelogSpec(INPUT, "flag", deletes, OUTPUT)), history, INPUT)
    events = [
        {
            "k": row["k"],
            "v": row["v"],
            "flag": delete == deletes,
            "t": as_of,
            "__pos": pos,
            "__tombstone": False,
        }
        for as_of, pos, delete, row in oracle.changelog(history.left_over())
    ]
    assert bag(integral(emitted)) == bag(events)
