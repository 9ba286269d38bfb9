"""Law: the facts that are left say of every row that lives when it begins and ends."""

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.operators.intervals.step import IntervalsStep
from fennel_core.operators.spec import IntervalsSpec, with_validity
from fennel_core.vocab.dtypes import Field, Int, Optional, Str
from fennel_core.vocab.schema import Schema
from tests.laws.operators.intervals import oracle
from tests.support.histories import bag, histories, integral, run

INPUT = Schema((Field("k", Str()),), (Field("v", Optional(Int())),), "t")
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from("ab"),
        "t": st.integers(0, 6),
        "v": st.integers(0, 3),
        "__tombstone": st.sampled_from([False, False, True]),
    }
).map(lambda row: {**row, "v": None} if row["__tombstone"] else row)


@given(histories(ROW))
def test_facts_are_the_rows_that_live_with_their_ends(history):
    _, emitted = run(IntervalsStep(IntervalsSpec(INPUT, with_validity(INPUT))), history, INPUT)
    assert bag(integral(emitted)) == bag(oracle.facts(history.left_over()))
