"""Dedup: keep the last row, by (timestamp, position), of every group of duplicates.

Theory. Rows with equal `by` are duplicates when they share the timestamp; with a tumbling window,
when they share the window floor(t/d); with a session window, when no pause of `gap` or longer lies
between them. In every case a row is kept exactly if the next row of its key is not in its group. So
a batch decides about the rows it touches and those just before them (`adjacent_rows.py`); this
holds for sessions too, because a new row affects only its predecessor and itself. Windows are in
whole seconds, as in the client.

State: tag `d`: ordered key of the row under `by` → all columns.
"""

from __future__ import annotations

from typing import assert_never

import polars as pl

from fennel_core.operators.adjacent_rows import read_adjacent_rows, row_difference
from fennel_core.operators.errors import UnsupportedWindow
from fennel_core.operators.rows import columns_of, decode_rows, output_names
from fennel_core.operators.spec import DedupSpec
from fennel_core.operators.step import Outcome, OutputBatch, StateReader
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN
from fennel_core.wire import operators as wire

ROWS = b"d"
SECOND_US = 1_000_000


class DedupStep:
    """Runs a `DedupSpec`; input and output are keyless."""

    def __init__(self, spec: DedupSpec) -> None:
        self._spec = spec
        self._next_in_other_group = _next_in_other_group(spec.window)
        self._columns = columns_of(spec.input, spec.input.names)
        self._names = output_names(spec.output)

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        assert source == 0, "a dedup has one input"
        times = batch[self._spec.input.timestamp].to_physical()
        keys = key_bytes(batch, self._spec.by)
        rows = read_adjacent_rows(reads, ROWS, keys, times, batch, self._spec.input.names)
        removed, added = row_difference(self._kept(rows.before), self._kept(rows.after))
        frames = [
            self._frame(kept, sign) for kept, sign in ((removed, -1), (added, 1)) if kept.height
        ]
        return Outcome(
            puts=rows.puts,
            deletes=rows.deletes,
            emits=(OutputBatch(0, pl.concat(frames)),) if frames else (),
        )

    def _kept(self, rows: pl.DataFrame) -> pl.DataFrame:
        last = pl.col("key").ne_missing(pl.col("key").shift(-1)) | self._next_in_other_group
        return rows.filter(last & ~pl.col("edge")).select(POS, "row")

    def _frame(self, rows: pl.DataFrame, sign: int) -> pl.DataFrame:
        meta = (
            rows[POS],
            pl.lit(sign, pl.Int8).alias(SIGN),
            pl.lit(value=False).alias(IS_TOMBSTONE),
        )
        return (
            decode_rows(rows["row"].to_list(), self._columns).with_columns(meta).select(self._names)
        )


def _next_in_other_group(window: wire.Window | None) -> pl.Expr:
    """Return whether the next row (of the same key) is in another group."""
    here, following = pl.col("ts"), pl.col("ts").shift(-1)
    match window:
        case None:
            return here != following
        case wire.Tumbling(duration_us=duration):
            seconds = duration // SECOND_US
            return here.floordiv(SECOND_US).floordiv(seconds) != following.floordiv(
                SECOND_US
            ).floordiv(seconds)
        case wire.Session(gap_us=gap):
            return following - here >= gap
        case wire.Forever() | wire.Sliding() | wire.Hopping() | wire.ForeverHopping():
            raise UnsupportedWindow(f"dedup accepts a tumbling or a session window, not {window}")
        case unreachable:
            assert_never(unreachable)
