"""Table: keeps every version of a keyed dataset.

Theory. A version lives until the next one of its key, so its end is derived: the row of a key as of
time q is the version with the largest `(timestamp, position)` at or before q, and that is one
reverse seek. A late row needs no special case: it takes its place in the order and every question
is answered as if it had come in time. `−` takes its version out. There is at most one version per
`(key, timestamp, position)`, so `−old +new` at the same place replaces (`rows.apply_signs`).

State: tag `v`: ordered key of the version → `[timestamp, values…]` or a tombstone. The bytes are
what a lookup answers: they pass through untouched.
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
    """The step of `spec.TableSpec`; serves lookups."""

    def __init__(self, spec: TableSpec) -> None:
        assert spec.schema.keyed, "a table needs a key"
        self._keys = spec.schema.key_names
        self._row = [spec.schema.timestamp, *spec.schema.value_names]
        self._timestamp = spec.schema.timestamp

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        """Put and take versions; emits nothing."""
        assert source == 0, "a table has one input"
        keys = key_bytes(batch, self._keys)
        places = ordered_keys(VERSIONS, keys, batch[self._timestamp].cast(pl.Int64), batch[POS])
        rows = encode_rows(batch, self._row)
        rows = with_tombstones(rows, batch[IS_TOMBSTONE])
        puts, deletes = apply_signs(reads, places, rows, batch[SIGN])
        return Outcome(puts=puts, deletes=deletes)

    def lookup(
        self, reads: StateReader, keys: Sequence[bytes], as_of: Sequence[Micros]
    ) -> list[bytes | None]:
        """One reverse seek per key: the latest version at or before its time, None when that is a
        tombstone or there is none.
        """
        found: list[bytes | None] = []
        for prefix, moment in zip(prefixes(VERSIONS, keys), as_of, strict=True):
            latest = reads.scan(prefix, prefix + time_bytes(moment + 1), reverse=True, limit=1)
            found.append(None if not latest or latest[0][1] == TOMBSTONE else latest[0][1])
        return found
