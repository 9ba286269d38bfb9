"""Sort the rows of a partition that came in blocks, in memory or, where they do not fit, on disk.

Theory. Only the columns that give the order are sorted; the others are gathered chunk by chunk, so
a row has nulls for the columns of other kinds in its chunk only, if at all. Rows of more than
`SORTED_BYTES` are sorted in *runs* of that size, each a file; the runs are merged: of the rows at
the front of all runs, those up to the smallest last row of a run's front are next.

Example. Two runs, cut into chunks of two: `1 4 | 5 9` and `2 3 | 6 7`. In front are 1 4 and 2 3;
the smallest last row is 3, so 1 2 3 are next, and 6 7 is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa

from fennel_core.offline.blocks import ROWS_KIND, BlockLayout, Placement, read_blocks, row_bytes
from fennel_core.offline.task_folders import task_folder
from fennel_core.offline.timeline import (
    CHUNK_ROWS,
    KEY,
    ORDER,
    PLACE,
    SOURCE,
    TIME,
    TimelineChunk,
)
from fennel_core.operators.rows import encode_rows
from fennel_core.vocab.versions import POS, SIGN

SORTED_BYTES: Final = 128 << 20
"""Rows that are sorted in memory; a task needs about four times as much."""
CHUNK_BYTES: Final = 8 << 20
"""A chunk of wide rows has fewer than `CHUNK_ROWS`; one of each run is in memory while they are
merged.
"""
_KIND: Final = "__kind"
_CONTENT: Final = "__content"
_RUN: Final = "__run"
_SOURCE_BITS: Final = 7
_LONGEST_SPAN_US: Final = 1 << (63 - _SOURCE_BITS)
"""Times that are farther apart, 2,283 years, do not fit in a number together with a source."""


@dataclass(frozen=True, slots=True)
class BlockSort:
    """Sorts the rows of a shuffle, in the order of its layout; it is pickled to tasks.

    At one position equal versions are neighbours, the additions first, so that nothing is
    retracted before it was added: blocks come in any order.
    """

    layout: BlockLayout
    placement: Placement
    sorted_bytes: int = SORTED_BYTES

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
        """Yield the rows of blocks with the columns of all kinds."""
        with task_folder("sort") as folder:
            runs, last = self._runs(batches, folder)
            frames = last.frames()
            for frame in _merged([*runs, frames], self.layout.order) if runs else frames:
                yield frame.drop(_CONTENT)

    def timeline(self, batches: Iterator[pa.RecordBatch]) -> Iterator[TimelineChunk]:
        """Yield the rows of blocks as a timeline."""
        sources = len(self.layout.kinds) - 1
        with task_folder("sort") as folder:
            runs, last = self._runs(batches, folder)
            if not runs:
                yield from last.timeline()
                return
            for frame in _merged([*runs, last.frames()], self.layout.order):
                yield TimelineChunk.of(frame.drop(_CONTENT), sources)

    def _runs(
        self, batches: Iterator[pa.RecordBatch], folder: Path
    ) -> tuple[list[Iterator[pl.DataFrame]], _Run]:
        """Return the runs on disk, and the last one, in memory."""
        stored: list[Path] = []
        waiting, size = list[tuple[int, pl.DataFrame]](), 0
        for kind, rows in read_blocks(batches, self.placement):
            waiting.append((kind, rows))
            size += row_bytes(rows)
            if size >= self.sorted_bytes:
                stored.append(folder / str(len(stored)))
                _store(_Run.of(waiting, self.layout).frames(), stored[-1])
                waiting, size = [], 0
        return [_read(path) for path in stored], _Run.of(waiting, self.layout)


@dataclass(frozen=True, slots=True)
class _Run:
    """Sorted rows in memory. `order`: the columns that give the order, of all rows in order;
    `parts`: the other columns by kind, at the places that `order` names.
    """

    layout: BlockLayout
    order: pl.DataFrame
    parts: Mapping[int, pl.DataFrame]

    @classmethod
    def of(cls, blocks: Sequence[tuple[int, pl.DataFrame]], layout: BlockLayout) -> _Run:
        shared = {name: layout.columns[name] for name in layout.shared}
        orders, parts = [], {}
        for kind, columns in layout.kinds.items():
            empty = pl.DataFrame(schema=columns)
            rows = pl.concat([empty, *(rows for of, rows in blocks if of == kind)], rechunk=True)
            orders.append(
                rows.select(
                    *(_column(rows, name, dtype) for name, dtype in shared.items()),
                    _contents(rows),
                    pl.lit(kind, pl.Int8).alias(_KIND),
                    pl.int_range(pl.len(), dtype=pl.UInt32).alias(PLACE),
                )
            )
            parts[kind] = rows.select(layout.own(kind))
        return cls(layout, _in_order(pl.concat(orders, rechunk=True), layout.order), parts)

    @property
    def _chunk_rows(self) -> int:
        size = sum(row_bytes(frame) for frame in (self.order, *self.parts.values()))
        return max(1, min(CHUNK_ROWS, CHUNK_BYTES * self.order.height // max(size, 1)))

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield chunks with the columns of all kinds."""
        for chunk in self.order.iter_slices(self._chunk_rows):
            columns = chunk.drop(_KIND, PLACE).get_columns()
            for kind, part in self.parts.items():
                places = chunk.select(pl.when(pl.col(_KIND) == kind).then(PLACE)).to_series()
                columns += part.select(pl.all().gather(places)).get_columns()
            yield pl.DataFrame(columns)

    def timeline(self) -> Iterator[TimelineChunk]:
        """Yield the same as chunks of a timeline."""
        versions = {kind: part for kind, part in self.parts.items() if kind != ROWS_KIND}
        for chunk in self.order.drop(_CONTENT, _KIND).iter_slices(self._chunk_rows):
            yield TimelineChunk(chunk, self.parts[ROWS_KIND], versions)


def _column(rows: pl.DataFrame, name: str, dtype: pl.DataType) -> pl.Expr:
    return (pl.col(name) if name in rows.columns else pl.lit(None, dtype)).alias(name)


def _contents(rows: pl.DataFrame) -> pl.Series:
    """Return the content of versions, at positions of which one version is a retraction."""
    nothing = pl.Series(_CONTENT, [None], dtype=pl.Binary).new_from_index(0, rows.height)
    if SIGN not in rows.columns or not (rows[SIGN] < 0).any():
        return nothing
    corrected = rows[POS].is_in(rows.filter(pl.col(SIGN) < 0)[POS].unique().implode())
    some = rows.filter(corrected)
    columns = [name for name in rows.columns if name not in {SIGN, POS}]
    contents = pl.Series(_CONTENT, encode_rows(some, columns), dtype=pl.Binary)
    return nothing.scatter(corrected.arg_true(), contents)


def _in_order(rows: pl.DataFrame, order: Sequence[str]) -> pl.DataFrame:
    # A sort by fewer columns is faster, and most rows have no retraction.
    plain = rows[_CONTENT].null_count() == rows.height
    by = [*order, *([] if plain or SIGN not in rows.columns else [_CONTENT, SIGN])]
    # Stable: the last row of a chunk stays behind the others of its chunk (`_merged`).
    if tuple(order) == ORDER and rows.height > 0 and _span_us(rows) < _LONGEST_SPAN_US:
        return rows[_timeline_places(rows, by)]
    return rows.sort(by, descending=[name == SIGN for name in by], maintain_order=True)


def _timeline_places(rows: pl.DataFrame, by: Sequence[str]) -> pl.Series:
    """Return the places of the rows of a timeline in order; `by` begins with `ORDER`.

    Time and source fit in one number, and grouping by key keeps the order by that number. Only the
    few rows that have all three in common are compared as a sort by several columns does it.
    """
    numbers = (rows[TIME] - rows[TIME].min()) * (1 << _SOURCE_BITS) + rows[SOURCE]
    by_time = numbers.arg_sort()
    groups = pl.DataFrame([rows[KEY].gather(by_time), by_time.alias(PLACE)]).group_by(KEY)
    places = groups.agg(PLACE).sort(KEY)[PLACE].explode()
    same = pl.all_horizontal(pl.col(KEY, TIME, SOURCE) == pl.col(KEY, TIME, SOURCE).shift(1))
    as_before = rows.select(KEY, TIME, SOURCE)[places].select(same.fill_null(value=False))
    tied = as_before.to_series() | as_before.to_series().shift(-1, fill_value=False)
    if not tied.any():
        return places
    some = places.filter(tied).sort()
    descending = [name == SIGN for name in by]
    compared = pl.arg_sort_by(by, descending=descending, maintain_order=True)
    return places.scatter(tied.arg_true(), some.gather(rows[some].select(compared).to_series()))


def _span_us(rows: pl.DataFrame) -> int:
    bounds = rows.select(pl.col(TIME).max().alias("last"), pl.col(TIME).min().alias("first"))
    return int(bounds.item(0, "last")) - int(bounds.item(0, "first"))


# ── runs on disk ─────────────────────────────────────────────────────────────────────────────────


def _store(chunks: Iterator[pl.DataFrame], path: Path) -> None:
    """Write a run, which has rows, to a file."""
    writer: pa.RecordBatchStreamWriter | None = None
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    for chunk in chunks:
        table = chunk.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        if writer is None:
            writer = pa.ipc.new_stream(path, table.schema, options=options)
        writer.write_table(table)
    assert writer is not None, "a run has rows"
    writer.close()


def _read(path: Path) -> Iterator[pl.DataFrame]:
    with pa.OSFile(str(path)) as file:
        for batch in pa.ipc.open_stream(file):
            rows = pl.from_arrow(batch)
            assert isinstance(rows, pl.DataFrame), "a batch becomes a frame"
            yield rows


def _merged(runs: Sequence[Iterator[pl.DataFrame]], order: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Yield the rows of all runs in order; a chunk of each run is in memory."""
    front = pl.concat([chunk for number in range(len(runs)) for chunk in _next(runs, number)])
    while not front.is_empty():
        front = _in_order(front, order)
        last = int(front[_RUN].is_not_null().arg_max() or 0)
        yield from front[: last + 1].drop(_RUN).iter_slices(CHUNK_ROWS)
        front = pl.concat([front[last + 1 :], *_next(runs, front.item(last, _RUN))])


def _next(runs: Sequence[Iterator[pl.DataFrame]], number: int) -> Iterator[pl.DataFrame]:
    """Yield the next chunk of a run, if it has one; its last row has the number of the run."""
    chunk = next(runs[number], None)
    if chunk is not None:
        is_last = pl.int_range(pl.len()) == pl.len() - 1
        yield chunk.with_columns(pl.when(is_last).then(pl.lit(number, pl.Int32)).alias(_RUN))
