"""What is rolled now, how a batch is cut into files, what is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from fennel_core.history.backlog import (
    Backlog,
    FileSlice,
    RollRule,
    TopicRecord,
    backlogs,
    due_partitions,
    split_into_files,
    strays,
)
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition

A: TopicPartition = (TopicName("a"), PartitionIndex(0))
B: TopicPartition = (TopicName("a"), PartitionIndex(1))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def behind(start: int, end: int, since_s: float) -> Backlog:
    return Backlog(Offset(start), Offset(end), since_s)


def test_a_partition_is_due_when_it_has_enough_or_has_waited_long_enough() -> None:
    rule = RollRule(enough_records=10, wait_s=60)
    waiting = {A: behind(0, 9, 100.0), B: behind(5, 15, 100.0)}
    assert set(due_partitions(waiting, rule, 100.0)) == {B}
    assert set(due_partitions(waiting, rule, 159.9)) == {B}
    assert set(due_partitions(waiting, rule, 160.0)) == {A, B}


def test_a_partition_waits_since_it_fell_behind_where_it_stands_now() -> None:
    first = backlogs({}, {A: Offset(3), B: Offset(0)}, {}, 10.0)
    assert first == {A: behind(0, 3, 10.0)}
    assert backlogs({}, {A: Offset(7)}, first, 20.0) == {A: behind(0, 7, 10.0)}, "it only grew"
    assert backlogs({A: Offset(3)}, {A: Offset(7)}, first, 20.0) == {A: behind(3, 7, 20.0)}, (
        "it was rolled meanwhile"
    )
    assert backlogs({A: Offset(7)}, {A: Offset(7)}, first, 20.0) == {}


def message(place: TopicPartition, offset: int, size: int = 10) -> TopicRecord:
    return TopicRecord(place, Offset(offset), b"." * size)


def cut(
    messages: list[TopicRecord],
    floors: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    file_bytes: int = 1000,
) -> list[FileSlice]:
    as_offsets = [{place: Offset(offset) for place, offset in of.items()} for of in (floors, ends)]
    return list(split_into_files(messages, *as_offsets, file_bytes))


def shape(found: list[FileSlice]) -> list[tuple[TopicPartition, int, int, list[int]]]:
    return [
        (each.place, each.first, each.following, [offset for offset, _ in each.messages])
        for each in found
    ]


def test_a_file_begins_where_rows_end_and_ends_where_the_batch_ends() -> None:
    found = cut([message(A, 4), message(A, 6), message(B, 2)], {A: 3}, {A: 9, B: 3})
    assert shape(found) == [(A, 3, 9, [4, 6]), (B, 0, 3, [2])]


def test_what_rows_hold_already_is_trimmed() -> None:
    assert shape(cut([message(A, 4), message(A, 6)], {A: 5}, {A: 9})) == [(A, 5, 9, [6])]
    assert cut([message(A, 4), message(A, 6)], {A: 7}, {A: 9}) == []
    assert cut([message(A, 4)], {A: 20}, {A: 9}) == []


def test_a_full_file_ends_before_the_message_that_does_not_fit() -> None:
    found = cut(
        [message(A, 1), message(A, 2), message(A, 5), message(A, 6, size=99)],
        {},
        {A: 8},
        file_bytes=20,
    )
    assert shape(found) == [(A, 0, 3, [1, 2]), (A, 3, 6, [5]), (A, 6, 8, [6])]


def test_a_range_without_data_makes_no_file() -> None:
    assert cut([], {A: 3}, {A: 9}) == []


def test_no_more_than_one_file_is_held() -> None:
    taken = []

    def endless() -> Iterator[TopicRecord]:
        for offset in range(10**6):
            taken.append(offset)
            yield message(A, offset)

    first = next(split_into_files(endless(), {}, {A: Offset(10**6)}, 50))
    assert (len(first.messages), len(taken)) == (5, 6)


def test_an_object_is_a_stray_when_no_row_names_it_and_it_is_old_enough() -> None:
    hour = timedelta(hours=1)
    written = {"named": NOON - 5 * hour, "old": NOON - 2 * hour, "young": NOON - hour / 2}
    assert strays(written, {"named"}, hour, NOON) == ["old"]
