"""How a batch is split into files."""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.history.file_slices import FileSlice, TopicRecord, split_into_files
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition

A: TopicPartition = (TopicName("a"), PartitionIndex(0))
B: TopicPartition = (TopicName("a"), PartitionIndex(1))


def record(partition: TopicPartition, offset: int, size: int = 10) -> TopicRecord:
    return TopicRecord(partition, Offset(offset), b"." * size)


def split(
    records: list[TopicRecord],
    history_ends: dict[TopicPartition, int],
    batch_ends: dict[TopicPartition, int],
    file_bytes: int = 1000,
) -> list[FileSlice]:
    as_offsets = [
        {place: Offset(offset) for place, offset in of.items()} for of in (history_ends, batch_ends)
    ]
    return list(split_into_files(records, *as_offsets, file_bytes))


def shape(found: list[FileSlice]) -> list[tuple[TopicPartition, int, int, list[int]]]:
    return [
        (
            each.partition,
            each.first_offset,
            each.next_offset,
            [offset for offset, _ in each.records],
        )
        for each in found
    ]


def test_a_file_begins_where_rows_end_and_ends_where_the_batch_ends() -> None:
    found = split([record(A, 4), record(A, 6), record(B, 2)], {A: 3}, {A: 9, B: 3})
    assert shape(found) == [(A, 3, 9, [4, 6]), (B, 0, 3, [2])]


def test_records_that_history_has_are_skipped() -> None:
    assert shape(split([record(A, 4), record(A, 6)], {A: 5}, {A: 9})) == [(A, 5, 9, [6])]
    assert split([record(A, 4), record(A, 6)], {A: 7}, {A: 9}) == []
    assert split([record(A, 4)], {A: 20}, {A: 9}) == []


def test_a_full_file_ends_before_the_message_that_does_not_fit() -> None:
    found = split(
        [record(A, 1), record(A, 2), record(A, 5), record(A, 6, size=99)],
        {},
        {A: 8},
        file_bytes=20,
    )
    assert shape(found) == [(A, 0, 3, [1, 2]), (A, 3, 6, [5]), (A, 6, 8, [6])]


def test_a_range_without_data_makes_no_file() -> None:
    assert split([], {A: 3}, {A: 9}) == []


def test_the_records_of_one_file_are_in_memory_at_a_time() -> None:
    taken = []

    def endless() -> Iterator[TopicRecord]:
        for offset in range(10**6):
            taken.append(offset)
            yield record(A, offset)

    first = next(split_into_files(endless(), {}, {A: Offset(10**6)}, 50))
    assert (len(first.records), len(taken)) == (5, 6)
