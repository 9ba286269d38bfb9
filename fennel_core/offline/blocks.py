"""Blocks: the rows that a task has for one partition of a shuffle, as one value.

Theory. Spark shuffles rows one by one: each is converted from Arrow, hashed, copied, compared while
it is sorted, and converted back, which costs more than everything else that is done with it. A
block has thousands of rows as one value, an Arrow stream. Spark moves blocks as it moves rows: it
stores them between stages, and repeats tasks that fail. Rows are split into blocks here, and are
sorted behind the shuffle (`block_sort`), both in whole columns.

    task 0:  rows, split by KEY  ──>  (0, block) (1, block)  ─┐
    task 1:  rows, split by KEY  ──>  (0, block) (1, block)  ─┴─ shuffle ──> all blocks of 0, …

A shuffle has rows of several kinds, such as requests and the versions of each dataset; a block has
rows of one kind, with the columns of that kind only.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from fennel_core.offline.rows import ROW
from fennel_core.offline.timeline import KEY, SOURCE, TIME
from fennel_core.vocab.versions import META

BLOCKS: Final = (
    f"{(PARTITION := 'partition')} int, {(KIND := 'kind')} int, {(BLOCK := 'block')} binary"
)
"""The columns of blocks in Spark."""
ROWS_KIND: Final = -1
"""The kind of rows of the query; versions of dataset n have kind n."""
ANSWERS_KIND: Final = -2
"""The kind of answers to user code (`lookup_rounds`)."""
CUT_KIND: Final = -3
"""The kind of a block that is a `SmallerParts` of `lookup_rounds`: its batch, instead of rows, and
the rows of a part, instead of a partition.
"""
SPLIT_ROWS: Final = 32_768
"""Rows that are split at once: few enough to stay in a cache of the processor."""
COLLECTED_BYTES: Final = 64 << 20
"""What a task collects before it makes blocks: one of 1,000 partitions has 64 KiB then."""
_SHARED: Final = frozenset({KEY, TIME, SOURCE, *META})
_SCHEMA: Final = pa.schema([(PARTITION, pa.int32()), (KIND, pa.int32()), (BLOCK, pa.binary())])


class Placement(Protocol):
    """Which partition of a shuffle a row goes to; it is pickled to tasks."""

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        ...

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """Return the partition of each row."""
        ...


@dataclass(frozen=True, slots=True)
class ByHash:
    """Rows with equal values of a column are in one partition.

    Hashes of Polars are the same in all processes with one version of it. A cluster where they are
    not is noticed by the reader of blocks (`read_blocks`).
    """

    column: str
    partitions: int

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """See `Placement.of`."""
        return rows[self.column].hash(seed=0) % self.partitions


@dataclass(frozen=True, slots=True)
class ByRun:
    """Partition n has the n-th run of `rows` rows that are numbered from 0, all of equal length."""

    rows: int
    partitions: int

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """See `Placement.of`."""
        return rows[ROW] * self.partitions // max(self.rows, 1)


@dataclass(frozen=True, slots=True)
class ByBatch:
    """Rows are in batches of `rows` by number, which the partitions get in turns."""

    rows: int
    partitions: int

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """See `Placement.of`."""
        return rows[ROW] // self.rows % self.partitions


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The columns of the rows of a shuffle by kind, and those by which they are sorted."""

    kinds: Mapping[int, Mapping[str, pl.DataType]]
    order: tuple[str, ...]

    @property
    def columns(self) -> Mapping[str, pl.DataType]:
        """The columns of all kinds."""
        return {name: kind for of in self.kinds.values() for name, kind in of.items()}

    @property
    def shared(self) -> Sequence[str]:
        """The columns that rows of several kinds have, and those that give the order."""
        return [name for name in self.columns if name in _SHARED or name in self.order]

    def own(self, kind: int) -> Sequence[str]:
        """The other columns of a kind."""
        shared = self.shared
        return [name for name in self.kinds[kind] if name not in shared]


def write_blocks(
    frames: Iterator[pl.DataFrame], layout: BlockLayout, kind: int, placement: Placement
) -> Iterator[pa.RecordBatch]:
    """Yield the blocks of rows of one kind. A column that a batch does not have is null."""
    columns = layout.kinds[kind]
    split, size = defaultdict[int, list[pl.DataFrame]](list), 0
    for frame in frames:
        fitting = COLLECTED_BYTES * frame.height // max(row_bytes(frame), 1)
        for some in frame.iter_slices(max(1, min(SPLIT_ROWS, fitting))):
            typed = some.select(
                _column(some, name, dtype).alias(name) for name, dtype in columns.items()
            )
            for partition, rows in _split(typed, placement):
                split[partition].append(rows)
            size += row_bytes(typed)
            if size >= COLLECTED_BYTES:
                yield _blocks(split, kind)
                split, size = defaultdict(list), 0
    if split:
        yield _blocks(split, kind)


def cut_block(batch: int, rows: int) -> pa.RecordBatch:
    """Return a block of `CUT_KIND`."""
    row = {PARTITION: rows, KIND: CUT_KIND, BLOCK: batch.to_bytes(8, "big")}
    return pa.RecordBatch.from_pylist([row], schema=_SCHEMA)


def row_bytes(rows: pl.DataFrame) -> int:
    """Return about how many bytes rows have when each has its own copy of its texts."""
    texts = [name for name, dtype in rows.schema.items() if dtype in {pl.String, pl.Binary}]
    copied = rows.select(pl.col(name).cast(pl.Binary).bin.size().sum() for name in texts)
    return int(rows.estimated_size() + sum(copied.row(0) if texts else ()))


def _column(rows: pl.DataFrame, name: str, dtype: pl.DataType) -> pl.Expr:
    return pl.col(name).cast(dtype) if name in rows.columns else pl.lit(None, dtype)


def _split(rows: pl.DataFrame, placement: Placement) -> Iterator[tuple[int, pl.DataFrame]]:
    places = placement.of(rows).cast(pl.UInt32)
    ordered = rows[places.arg_sort()]
    counts = np.bincount(places.to_numpy(), minlength=placement.partitions)
    ends = np.cumsum(counts)
    for number in np.flatnonzero(counts):
        yield int(number), ordered[int(ends[number] - counts[number]) : int(ends[number])]


def _blocks(split: Mapping[int, Sequence[pl.DataFrame]], kind: int) -> pa.RecordBatch:
    streams, ends = io.BytesIO(), [0]
    for frames in split.values():
        # The oldest format copies texts; newer ones refer to buffers that have those of all blocks.
        rows = pl.concat(frames, rechunk=True)
        rows.write_ipc_stream(streams, compat_level=pl.CompatLevel.oldest())
        ends.append(streams.getbuffer().nbytes)
    offsets = pa.py_buffer(np.array(ends, dtype=np.int32))
    blocks = pa.Array.from_buffers(
        pa.binary(), len(split), [None, offsets, pa.py_buffer(streams.getbuffer())]
    )
    kinds = np.full(len(split), kind, dtype=np.int32)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(split), pa.int32()), pa.array(kinds), blocks], schema=_SCHEMA
    )


def read_blocks(
    batches: Iterator[pa.RecordBatch], placement: Placement
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield the kind and the rows of each block."""
    for batch in batches:
        for partition, kind, block in zip(*batch.columns, strict=True):
            # Without a copy: the batch stays in memory as long as its blocks.
            rows = pl.from_arrow(pa.ipc.open_stream(block.as_buffer()).read_all())
            assert isinstance(rows, pl.DataFrame), "a table becomes a frame"
            if (placement.of(rows) != partition.as_py()).any():
                raise AssertionError(
                    "processes of this job disagree about the partition of a row; all hosts of a "
                    "Spark cluster need the same build of polars"
                )
            yield kind.as_py(), rows
