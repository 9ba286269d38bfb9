"""A file of history: the batches of an offset range as one Parquet object.

Theory. The columns are those of the topic's batches (`vocab.versions`: the dataset's columns, then
position, sign, tombstone) and two more:

    __offset  int64   Kafka offset of the message that carried the row
    __group   int32   key group of the row's key (`vocab.keys`), 0 where rows have no key

Rows are sorted by (__group, __offset) and keep their order within a message. So a reader of some
key groups finds its rows next to each other in the order of writing, and a stable sort by
`__offset` restores the order of the topic per key.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, Protocol

import polars as pl
import pyarrow.parquet as pq

from fennel_core.vocab.ids import Micros, Offset
from fennel_core.vocab.keys import key_bytes, key_group
from fennel_core.vocab.versions import decode

OFFSET: Final = "__offset"
GROUP: Final = "__group"
NUMBER: Final = "__number"
"""Not stored: the number of a row in its file, which readers may ask for."""
ROW_GROUP_ROWS: Final = 65_536
"""Rows per row group: a reader of one key group skips most of a large file by its statistics."""
BATCH_ROWS: Final = 32_768
"""Rows of a batch that a reader is given."""
ZSTD_LEVEL: Final = 3
_ROW: Final = "__row"


def file_frame(messages: Sequence[tuple[Offset, bytes]], keys: tuple[str, ...]) -> pl.DataFrame:
    """Return the rows of a file: the data messages of one partition, in order of offsets.

    `keys`: the columns whose bytes chose the partition; empty for a dataset without a key.
    """
    assert messages, "a file has at least one message"
    frames = [
        decode(value).with_columns(pl.lit(offset, pl.Int64).alias(OFFSET))
        for offset, value in messages
    ]
    frame = pl.concat(frames)
    return frame.with_columns(key_groups(frame, keys)).sort(GROUP, OFFSET, maintain_order=True)


def encode_file(frame: pl.DataFrame) -> bytes:
    """Return the bytes of a file."""
    assert {OFFSET, GROUP} <= set(frame.columns), "a file's frame comes from `file_frame`"
    sink = io.BytesIO()
    frame.write_parquet(
        sink,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        row_group_size=ROW_GROUP_ROWS,
        statistics=True,
    )
    return sink.getvalue()


def decode_file(body: bytes, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Return the rows of a file, with all columns or only `columns`."""
    return pl.read_parquet(io.BytesIO(body), columns=None if columns is None else list(columns))


class RowFilter(Protocol):
    """Selects rows while they are read."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read to decide."""
        ...

    def kept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the selected rows."""
        ...

    def may_keep(self, group: pq.RowGroupMetaData) -> bool:
        """Return whether a row group may have a selected row, by its statistics."""
        ...


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """Selects rows whose time column `name` is at `latest` or before."""

    name: str
    latest: Micros

    @property
    def names(self) -> tuple[str, ...]:
        """See `RowFilter.names`."""
        return (self.name,)

    def keeps(self) -> pl.Expr:
        """Return which rows are selected."""
        return pl.col(self.name).to_physical() <= self.latest

    def kept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """See `RowFilter.kept`."""
        return rows.filter(self.keeps())

    def may_keep(self, group: pq.RowGroupMetaData) -> bool:
        """See `RowFilter.may_keep`."""
        found = statistics_of(group, self.name)
        return found is None or not found.has_min_max or bool(found.min_raw <= self.latest)


def statistics_of(group: pq.RowGroupMetaData, name: str) -> pq.Statistics | None:
    """Return the statistics of a column of a row group, None if it has none."""
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema == name:
            return column.statistics
    return None


def file_batches(
    source: BinaryIO | io.RawIOBase,
    columns: Sequence[str],
    limit: RowFilter | None = None,
    below: Offset | None = None,
) -> Iterator[pl.DataFrame]:
    """Yield columns of a file in batches, in the order of the file, one row group at a time.

    Only these columns are read, and only row groups that may have a row of `limit`. `below`: the
    first offset to leave out. The column `NUMBER` has the numbers of the rows.
    """
    file = pq.ParquetFile(source, pre_buffer=True)
    names = [*columns, *(limit.names if limit else ()), OFFSET]
    read = [name for name in dict.fromkeys(names) if name != NUMBER]
    following = 0
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        at, following = following, following + group.num_rows
        if limit is not None and not limit.may_keep(group):
            continue
        for batch in file.iter_batches(BATCH_ROWS, row_groups=[number], columns=read):
            rows = pl.from_arrow(batch)
            assert isinstance(rows, pl.DataFrame), "a batch becomes a frame"
            if NUMBER in columns:
                rows = rows.with_row_index(NUMBER, at)
            at += rows.height
            if limit is not None:
                rows = limit.kept(rows)
            if below is not None:
                rows = rows.filter(pl.col(OFFSET) < below)
            yield rows.select(columns)


def key_groups(frame: pl.DataFrame, keys: tuple[str, ...]) -> pl.Series:
    """Return the key group of each row, as `GROUP`; computed once per distinct key."""
    if not keys or frame.is_empty():
        return pl.repeat(0, frame.height, dtype=pl.Int32, eager=True).alias(GROUP)
    distinct = (
        frame.select(keys)
        .with_row_index(_ROW)
        .group_by(keys, maintain_order=True)
        .agg(pl.col(_ROW))
    )
    groups = pl.Series(GROUP, [key_group(key) for key in key_bytes(distinct, keys)], dtype=pl.Int32)
    return distinct.select(_ROW, groups).explode(_ROW).sort(_ROW).get_column(GROUP)
