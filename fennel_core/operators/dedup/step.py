"""Dedup: keeps the last row, by (timestamp, position), of every group of duplicates.

Theory. Rows with equal `by` are duplicates when they share the timestamp; with a tumbling window,
the window ⌊t/d⌋; with a session window, when no pause of `gap` or longer lies between them. In
every case a row is kept exactly if the next row of its key is not in its group, so a batch changes
the fate of the rows it touches and of those just before them (`neighbours.py`); for a session too,
because a new row decides only about its predecessor and itself. Windows are in whole seconds, as in
the client.

State: tag `d`: ordered key of the row under `by` → all columns.
"""

from __future__ import annotations

from typing import assert_never

import polars as pl

from fennel_core.operators.adjacent_rows import read_adjacent_rows, row_difference
from fennel_core.operators.rows import columns_of, decode_rows, output_names
from fennel_core.operators.spec import DedupSpec
from fennel_core.operators.step import Outcome, OutputBatch, StateReader
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN
from fennel_core.wire import operators as wire

ROWS = b"d"
SECOND_US = 1_000_000


class DedupStep:
    """The step of `spec.DedupSpec`; input and output are keyless."""

    def __init__(self, spec: DedupSpec) -> None:
        self._spec = spec
        self._apart = _apart(spec.window)
        self._columns = columns_of(spec.input, spec.input.names)
        self._names = output_names(spec.output)

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        assert source == 0, "a dedup has one input"
        times = batch[self._spec.input.timestamp].to_physical()
        around = read_adjacent_rows(
            reads, ROWS, key_bytes(batch, self._spec.by), times, batch, self._spec.input.names
        )
        gone, come = row_difference(self._kept(around.before), self._kept(around.after))
        frames = [self._frame(rows, sign) for rows, sign in ((gone, -1), (come, 1)) if rows.height]
        return Outcome(
            puts=around.puts,
            deletes=around.deletes,
            emits=(OutputBatch(0, pl.concat(frames)),) if frames else (),
        )

    def _kept(self, rows: pl.DataFrame) -> pl.DataFrame:
        last = pl.col("key").ne_missing(pl.col("key").shift(-1)) | self._apart
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


def _apart(window: wire.Window | None) -> pl.Expr:
    """Is the next row (of the same key) in another group?"""
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
            raise ValueError(f"dedup takes a tumbling or session window, not {window}")
        case unreachable:
            assert_never(unreachable)
