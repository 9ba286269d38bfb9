"""Law: the integral of a join equals the oracle over the rows of both sides that were not
retracted, in any order of arrival.
"""

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.operators.join.stream_table import StreamTableJoinStep
from fennel_core.operators.spec import JoinSpec
from fennel_core.vocab.dtypes import Field, Int, Optional, Str, Timestamp
from fennel_core.vocab.schema import Schema
from tests.laws.operators.join import oracle
from tests.support.histories import bag, histories, integral, run

LEFT = Schema((), (Field("a", Str()), Field("x", Int())), "t")
RIGHT = Schema((Field("k", Str()),), (Field("v", Optional(Int())),), "ts")
OUTPUT = Schema(
    (), (*LEFT.values, Field("v", Optional(Int())), Field("ts", Optional(Timestamp()))), "t"
)
TIMES = st.integers(0, 12)
LEFT_ROWS = st.fixed_dictionaries({"a": st.sampled_from("pq"), "x": st.integers(0, 2), "t": TIMES})
RIGHT_ROWS = st.fixed_dictionaries(
    {
        "k": st.sampled_from("pq"),
        "ts": TIMES,
        "v": st.none() | st.integers(0, 3),
        "__tombstone": st.sampled_from([False, False, False, True]),
    }
).map(lambda row: {**row, "v": None} if row["__tombstone"] else row)


@given(
    histories(LEFT_ROWS, RIGHT_ROWS),
    st.sampled_from([None, 0, 1, 4]),
    st.sampled_from([0, 0, 1, 5]),
    st.booleans(),
)
def test_a_join_adds_up_to_the_last_right_version_inside_the_bounds(history, low, high, inner):
    spec = JoinSpec(LEFT, RIGHT, ("a",), ("v", "ts"), inner, low, high, OUTPUT)
    _, emitted = run(StreamTableJoinStep(spec), history, LEFT, RIGHT)
    expected = oracle.join(history.left_over(0), history.left_over(1), low, high, inner)
    assert bag(integral(emitted)) == bag(expected)
