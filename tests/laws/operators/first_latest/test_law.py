"""Laws: a table over emitted first or latest rows returns the oracle's rows, as of any time."""

import msgspec
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.store import WriteBatch
from fennel_core.operators.build import build
from fennel_core.operators.spec import FirstLatestSpec, TableSpec
from fennel_core.operators.table.step import TableStep
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from tests.laws.operators.first_latest import oracle
from tests.support.histories import histories, integral, run

INPUT = Schema((), (Field("v", Int()), Field("k", Str())), "t")
OUTPUT = Schema((Field("k", Str()),), (Field("v", Int()),), "t")
ROW = st.fixed_dictionaries(
    {"k": st.sampled_from("ab"), "v": st.integers(0, 3), "t": st.integers(0, 6)}
)


@given(histories(ROW), st.booleans())
def test_the_table_holds_the_first_or_latest_row_as_of_any_time(history, first):
    _, emitted = run(build(FirstLatestSpec(INPUT, ("k",), first, OUTPUT)), history, INPUT)
    rows = history.left_over()
    if first:
        assert len(integral(emitted)) == len({r["k"] for r in rows})
    table, state = TableStep(TableSpec(OUTPUT)), MemoryHangar()
    for frame in emitted:
        outcome = table.apply(state, 0, frame)
        state.write(WriteBatch(outcome.puts, outcome.deletes))
    asked = [(k, q) for k in "ab" for q in range(-1, 8)]
    found = table.lookup(
        state, key_bytes(pl.DataFrame({"k": [k for k, _ in asked]}), ["k"]), [q for _, q in asked]
    )
    expected = [oracle.first_or_latest(rows, k, q, first=first) for k, q in asked]
    assert [a and msgspec.msgpack.decode(a) for a in found] == [
        e and [e["t"], e["v"]] for e in expected
    ]
