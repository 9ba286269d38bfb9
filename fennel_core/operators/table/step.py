"""Table: keep every version of a keyed dataset.

Theory. A version is valid until the next one of its key, so its end is derived: the row of a key as
of time q is the version with the largest `(timestamp, position)` at or before q, and that is one
reverse seek. A late row needs no special case: it is stored in order, and every lookup returns what
it would if the row had come in time. `-` removes its version. There is at most one version per
`(key, timestamp, position)`, so `-old +new` at the same state key replaces (`rows.apply_signs`).

State: tag `v`: ordered key of the version → `[timestamp, values...]` or a tombstone. Lookups return
these bytes unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from fennel_core.operators.rows import (
    TOMBSTONE,
    apply_signs,
    encode_rows,
    ordered_keys,
    prefixes,
    time_bytes,
    with_tombstones,
)
from fennel_core.operators.spec import TableSpec
from fennel_core.operators.step import Outcome, StateReader
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

VERSIONS = b"v"


class TableStep:
    """Runs a `TableSpec`; serves lookups."""

    def __init__(self, spec: TableSpec) -> None:
        assert spec.schema.keyed, "a table needs a key"
        self._keys = spec.schema.key_names
        self._row = [spec.schema.timestamp, *spec.schema.value_names]
        self._timestamp = spec.schema.timestamp

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        """Add and remove versions; emit nothing."""
        assert source == 0, "a table has one input"
        keys = key_bytes(batch, self._keys)
        times = batch[self._timestamp].cast(pl.Int64)
        rows = with_tombstones(encode_rows(batch, self._row), batch[IS_TOMBSTONE])
        state_keys = ordered_keys(VERSIONS, keys, times, batch[POS])
        puts, deletes = apply_signs(reads, state_keys, rows, batch[SIGN])
        return Outcome(puts=puts, deletes=deletes)

    def lookup(
        self, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[Micros]
    ) -> list[bytes | None]:
        """Return the latest version at or before its time for each key, None where that is a
        tombstone or there is none. One reverse seek per key.
        """
        found: list[bytes | None] = []
        for prefix, time in zip(prefixes(VERSIONS, keys), as_of, strict=True):
            latest = reads.scan(prefix, prefix + time_bytes(time + 1), reverse=True, limit=1)
            found.append(None if not latest or latest[0][1] == TOMBSTONE else latest[0][1])
        return found
