"""Split a batch of records into the slices that become files. Pure.

A file ends where it is full, and the last one of a partition ends where the batch's range ends. So
control records and transaction markers at the end of the range are covered too, and a partition
without new data is not behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fennel_core.vocab.ids import Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """One data record of a topic."""

    partition: TopicPartition
    offset: Offset
    value: bytes


@dataclass(frozen=True, slots=True)
class FileSlice:
    """The content of one file: all data records of the offsets [first_offset, next_offset)."""

    partition: TopicPartition
    first_offset: Offset
    next_offset: Offset
    records: tuple[tuple[Offset, bytes], ...]


def split_into_files(
    records: Iterable[TopicRecord],
    history_ends: Mapping[TopicPartition, Offset],
    batch_ends: Mapping[TopicPartition, Offset],
    file_bytes: int,
) -> Iterator[FileSlice]:
    """Yield the files of a batch, lazily: the records of one file are in memory at a time.

    `records`: the data records of some offset ranges, grouped by partition and in order of offsets.
    `history_ends`: where the rows of each partition end (absent: 0); records below are skipped.
    `batch_ends`: where the range of each partition ends. A range without data records makes no
    file; the next file of its partition begins at the end of the rows.
    """
    held: list[tuple[Offset, bytes]] = []
    partition: TopicPartition | None = None
    first, size = Offset(0), 0
    for record in records:
        if record.partition != partition:
            if partition is not None and held:
                yield FileSlice(partition, first, batch_ends[partition], tuple(held))
            partition, held, size = record.partition, [], 0
            first = history_ends.get(partition, Offset(0))
        assert record.offset < batch_ends[record.partition], "a batch holds nothing beyond its end"
        assert not held or held[-1][0] < record.offset, "records come in order of offsets"
        if record.offset < first:
            continue
        if held and size + len(record.value) > file_bytes:
            following = Offset(held[-1][0] + 1)
            yield FileSlice(record.partition, first, following, tuple(held))
            held, size, first = [], 0, following
        held.append((record.offset, record.value))
        size += len(record.value)
    if partition is not None and held:
        yield FileSlice(partition, first, batch_ends[partition], tuple(held))
