"""Law: whatever the order, split, lateness and retractions, a lookup equals the oracle over the
versions that were not retracted.
"""

import msgspec
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.operators.spec import TableSpec
from fennel_core.operators.table.step import TableStep
from fennel_core.vocab.dtypes import Field, Int, Optional, Str
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from tests.laws.operators.table import oracle
from tests.support.histories import histories, run

SCHEMA = Schema((Field("k", Str()),), (Field("v", Optional(Int())),), "t")
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from("abé"),
        "t": st.sampled_from([-5, 0, 1, 2, 300]),
        "v": st.none() | st.integers(-3, 3),
        "__tombstone": st.booleans(),
    }
).map(lambda row: {**row, "v": None} if row["__tombstone"] else row)


@given(histories(ROW))
def test_a_lookup_returns_the_last_version_at_or_before_its_time(history):
    state, emitted = run(TableStep(TableSpec(SCHEMA)), history, SCHEMA)
    assert not emitted
    asked = [(k, q) for k in "abéz" for q in (-6, -5, 0, 1, 2, 299, 300, 10**15)]

    frame = pl.DataFrame({"k": [k for k, _ in asked]})
    found = TableStep(TableSpec(SCHEMA)).lookup(
        state, key_bytes(frame, ["k"]), [q for _, q in asked]
    )
    expected = [oracle.lookup(history.left_over(), k, q) for k, q in asked]
    assert [a if a is None else msgspec.msgpack.decode(a) for a in found] == expected
