"""Law: a table over a table-table join returns, as of any time, the left row with the right row
that is valid then.
"""

import msgspec
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.store import WriteBatch
from fennel_core.operators.build import build
from fennel_core.operators.intervals.step import IntervalsStep
from fennel_core.operators.spec import IntervalsSpec, JoinSpec, TableSpec, with_validity
from fennel_core.operators.table.step import TableStep
from fennel_core.vocab.dtypes import Field, Int, Optional, Str
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from tests.laws.operators.join import oracle
from tests.support.histories import as_frame, histories

LEFT = Schema((Field("id", Str()),), (Field("a", Str()),), "t")
RIGHT = Schema((Field("k", Str()),), (Field("v", Int()),), "ts")
OUTPUT = Schema((Field("id", Str()),), (Field("a", Str()), Field("v", Optional(Int()))), "t")
TIMES = st.integers(0, 10)
TOMBSTONES = st.sampled_from([False, False, False, True])
LEFT_ROWS = st.fixed_dictionaries(
    {"id": st.sampled_from("xy"), "a": st.sampled_from("pq"), "t": TIMES, "__tombstone": TOMBSTONES}
)
RIGHT_ROWS = st.fixed_dictionaries(
    {"k": st.sampled_from("pq"), "v": st.integers(0, 3), "ts": TIMES, "__tombstone": TOMBSTONES}
)


@given(histories(LEFT_ROWS, RIGHT_ROWS, max_rows=9), st.booleans())
def test_a_lookup_joins_the_rows_that_are_valid_on_both_sides(history, inner):
    intervals = IntervalsStep(IntervalsSpec(LEFT, with_validity(LEFT)))
    table = TableStep(TableSpec(OUTPUT))
    joins = {
        part: build(JoinSpec(with_validity(LEFT), RIGHT, ("a",), ("v",), inner, None, 0, OUTPUT))
        for part in "pq"
    }
    states = {name: MemoryHangar() for name in ("intervals", "p", "q", "table")}

    def step(name, step, source, frame):
        outcome = step.apply(states[name], source, frame)
        states[name].write(WriteBatch(outcome.puts, outcome.deletes))
        return [emit.frame for emit in outcome.emits]

    for batch in history.batches:
        source = batch[0].source
        frame = as_frame((LEFT, RIGHT)[source], batch)
        arrived = [frame] if source else step("intervals", intervals, 0, frame)
        # Two partitions of the join key, so that rows of one left key come from both.
        for part in "qp":
            for rows in arrived:
                mine = rows.filter(pl.col("k" if source else "a") == part)
                for joined in step(part, joins[part], source, mine) if mine.height else []:
                    step("table", table, 0, joined)

    asked = [(k, q) for k in "xy" for q in range(-1, 12)]
    found = table.lookup(
        states["table"],
        key_bytes(pl.DataFrame({"id": [k for k, _ in asked]}), ["id"]),
        [q for _, q in asked],
    )
    expected = [
        oracle.valid_at(history.left_over(0), history.left_over(1), key, as_of, inner)
        for key, as_of in asked
    ]
    assert [a and msgspec.msgpack.decode(a)[1:] for a in found] == expected
