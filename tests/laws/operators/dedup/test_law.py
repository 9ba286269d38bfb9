"""Law: the integral of dedup equals the oracle over the rows that were not retracted."""

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.operators.dedup.step import DedupStep
from fennel_core.operators.spec import DedupSpec
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.schema import Schema
from fennel_core.wire.operators import Session, Tumbling
from tests.laws.operators.dedup import oracle
from tests.support.histories import bag, histories, integral, run

SECOND = 1_000_000
INPUT = Schema((), (Field("v", Int()), Field("k", Str())), "t")
TIMES = st.integers(-4, 9).map(lambda t: t * SECOND) | st.integers(-2 * SECOND, 4 * SECOND)
ROW = st.fixed_dictionaries({"k": st.sampled_from("ab"), "v": st.integers(0, 3), "t": TIMES})
WINDOWS = {
    "time": lambda size: None,
    "tumbling": lambda size: Tumbling(size, 0),
    "session": Session,
}


@given(
    histories(ROW),
    st.sampled_from(sorted(WINDOWS)),
    st.sampled_from([SECOND, 2 * SECOND, 3 * SECOND]),
)
def test_dedup_keeps_the_last_row_of_every_group(history, kind, size):
    _, emitted = run(
        DedupStep(DedupSpec(INPUT, ("k",), WINDOWS[kind](size), INPUT)), history, INPUT
    )
    assert bag(integral(emitted)) == bag(oracle.dedup(history.left_over(), kind, size))
