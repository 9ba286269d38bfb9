"""The first or the latest row of each key.

Theory. `latest` keeps no state: every row is a version of its key, and a version is valid until the
next one, so the latest row as of any time is what a keyed dataset means anyway. `first` has one
version per key, the least by `(timestamp, position)`. A late row that is earlier replaces it, and
when it is retracted the next one takes its place; so all rows are kept in order, and the first is
found with one seek.

State (first only): tag `f`: ordered key of the row under its group → all columns of the input.
"""

from __future__ import annotations

import polars as pl

from fennel_core.operators.adjacent_rows import StateEntry
from fennel_core.operators.rows import (
    MAX_TIME,
    TIME_BYTES,
    apply_signs,
    columns_of,
    decode_rows,
    encode_rows,
    ordered_keys,
    output_names,
    prefixes,
    time_bytes,
)
from fennel_core.operators.spec import FirstLatestSpec
from fennel_core.operators.step import Outcome, OutputBatch, StateReader
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

ROWS = b"f"


class LatestStep:
    """Runs a `FirstLatestSpec` with `first` false."""

    def __init__(self, spec: FirstLatestSpec) -> None:
        assert not spec.first, "see FirstStep"
        self._names = output_names(spec.output)

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:  # noqa: ARG002  # the contract of OperatorStep
        return Outcome(emits=(OutputBatch(0, batch.select(self._names)),))


class FirstStep:
    """Runs a `FirstLatestSpec` with `first` true."""

    def __init__(self, spec: FirstLatestSpec) -> None:
        assert spec.first, "see LatestStep"
        self._spec = spec
        self._columns = columns_of(spec.input, spec.input.names)
        self._names = output_names(spec.output)

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        assert source == 0, "first has one input"
        keys = key_bytes(batch, self._spec.keys)
        times = batch[self._spec.input.timestamp].to_physical()
        state_keys = ordered_keys(ROWS, keys, times, batch[POS])
        rows = encode_rows(batch, self._spec.input.names)
        puts, deletes = apply_signs(reads, state_keys, rows, batch[SIGN])
        touched = (
            pl.DataFrame({"key": keys, "state_key": state_keys})
            .group_by("key", maintain_order=True)
            .agg("state_key")
        )
        removed: list[tuple[bytes, bytes]] = []
        added: list[tuple[bytes, bytes]] = []
        for prefix, of_key in zip(
            prefixes(ROWS, touched["key"].to_list()), touched["state_key"].to_list(), strict=True
        ):
            old, new = _first_before_and_after(reads, prefix, of_key, puts, deletes)
            if old != new:
                position_at = len(prefix) + TIME_BYTES
                removed += [(old[0][position_at:], old[1])] if old else []
                added += [(new[0][position_at:], new[1])] if new else []
        frames = [
            self._frame(entries, sign) for entries, sign in ((removed, -1), (added, 1)) if entries
        ]
        return Outcome(
            puts=puts, deletes=deletes, emits=(OutputBatch(0, pl.concat(frames)),) if frames else ()
        )

    def _frame(self, entries: list[tuple[bytes, bytes]], sign: int) -> pl.DataFrame:
        """Return the versions of some positions and stored rows."""
        rows = decode_rows([row for _, row in entries], self._columns)
        positions = pl.Series(POS, [position for position, _ in entries], dtype=pl.Binary)
        return rows.with_columns(
            positions, pl.lit(sign, pl.Int8).alias(SIGN), pl.lit(value=False).alias(IS_TOMBSTONE)
        ).select(self._names)


def _first_before_and_after(
    reads: StateReader,
    prefix: bytes,
    touched: list[bytes],
    puts: dict[bytes, bytes],
    deletes: frozenset[bytes],
) -> tuple[StateEntry | None, StateEntry | None]:
    """Return the first entry of a key before and after a batch that touches some of its state
    keys.
    """
    # One entry more than the batch deletes: the first of the others is among them.
    deleted = sum(key in deletes for key in touched)
    stored = reads.scan(prefix, prefix + time_bytes(MAX_TIME), limit=deleted + 1)
    left = [entry for entry in stored if entry[0] not in deletes and entry[0] not in puts]
    left += [(key, puts[key]) for key in touched if key in puts]
    return (stored[0] if stored else None), min(left, default=None)
