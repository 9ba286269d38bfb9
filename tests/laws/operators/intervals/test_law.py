"""Law: the emitted rows carry the validity interval of every row that is ever valid."""

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
def test_every_valid_row_is_emitted_with_its_end(history):
    _, emitted = run(IntervalsStep(IntervalsSpec(INPUT, with_validity(INPUT))), history, INPUT)
    assert bag(integral(emitted)) == bag(oracle.intervals(history.left_over()))
