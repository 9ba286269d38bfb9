"""The index of history, in memory and in Postgres."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from fennel_core.history.store import (
    NO_DATASET,
    HistoryFile,
    HistoryFiles,
    HistoryTotals,
    SearchedFiles,
    searched_upto,
)
from fennel_core.vocab.ids import DatasetName, Micros, Offset, PartitionIndex, TopicName

TOPIC, OTHER = TopicName("w.topic.abc.1"), TopicName("w.topic.def.2")
USERS = DatasetName("Users")
NUMBERS = itertools.count()


def file(
    first: int,
    following: int,
    *,
    topic: TopicName = TOPIC,
    part: int = 0,
    key: str | None = None,
    rows: int = 3,
) -> HistoryFile:
    name = key if key is not None else f"history/{topic}/{part}/{first}-{next(NUMBERS)}"
    times = (Micros(5), Micros(9)) if rows else (None, None)
    return HistoryFile(
        topic, PartitionIndex(part), Offset(first), Offset(following), name, rows, 100, *times
    )


async def test_rows_are_added_only_at_the_end_of_the_rows(files: HistoryFiles) -> None:
    assert not await files.add(file(4, 9)), "offsets 0 to 4 are missing"
    assert await files.add(file(0, 4))
    for first, following in ((0, 4), (0, 9), (3, 9), (5, 9)):
        assert not await files.add(file(first, following)), (
            f"[{first}, {following}) overlaps or leaves a gap"
        )
    assert await files.add(file(4, 9, rows=0))
    assert await files.add(file(0, 2, part=1))
    assert await files.ends([TOPIC, OTHER]) == {(TOPIC, 0): 9, (TOPIC, 1): 2}
    assert await files.ends([OTHER]) == {}


async def test_lost_records_are_skipped_once_and_counted(files: HistoryFiles) -> None:
    part, other = PartitionIndex(0), PartitionIndex(1)
    assert await files.skip(TOPIC, part, Offset(0), Offset(7)), "the topic began without them"
    assert not await files.skip(TOPIC, part, Offset(0), Offset(9)), "another writer was faster"
    assert not await files.add(file(0, 9)), "a file begins behind what is lost"
    assert await files.add(file(7, 9))
    assert not await files.skip(TOPIC, part, Offset(7), Offset(12)), "history has these"
    assert await files.skip(TOPIC, part, Offset(9), Offset(12))
    assert await files.add(file(12, 20))
    assert not await files.skip(TOPIC, other, Offset(3), Offset(4))
    assert await files.ends([TOPIC]) == {(TOPIC, 0): 20}
    assert [each.first_offset for each in await files.files(TOPIC, part)] == [7, 12]
    assert await files.totals() == {TOPIC: HistoryTotals(2, 6, 200, 10)}
    await files.remove([TOPIC])
    assert await files.totals() == {}
    assert await files.add(file(0, 9))


async def test_adding_a_file_again_changes_nothing(
    files: HistoryFiles,
) -> None:
    first, second = file(0, 4), file(4, 6)
    assert await files.add(first)
    assert await files.add(second)
    assert await files.add(first), "the response may have been lost"
    assert await files.files(TOPIC, PartitionIndex(0)) == (first, second)


async def test_the_oldest_files_are_removed_and_never_the_last(files: HistoryFiles) -> None:
    known = [file(0, 4), file(4, 9), file(9, 12)]
    other = [file(0, 4, part=1), file(0, 4, topic=OTHER)]
    for each in (*known, *other):
        assert await files.add(each)
    part = PartitionIndex(0)
    assert await files.remove_before(TOPIC, part, Offset(3)) == []
    assert await files.remove_before(TOPIC, part, Offset(8)) == [known[0].object_key]
    assert await files.files(TOPIC, part) == tuple(known[1:])
    assert await files.remove_before(TOPIC, part, Offset(99)) == [known[1].object_key]
    assert await files.remove_before(TOPIC, part, Offset(99)) == []
    assert (await files.totals())[TOPIC] == HistoryTotals(2, 6, 200)
    assert await files.ends([TOPIC, OTHER]) == {(TOPIC, 0): 12, (TOPIC, 1): 4, (OTHER, 0): 4}
    assert await files.add(file(12, 13)), "the next file begins where the last one ends"
    assert await files.remove_before(TOPIC, PartitionIndex(7), Offset(9)) == []


async def test_an_object_belongs_to_one_row(files: HistoryFiles) -> None:
    assert await files.add(file(0, 4, key="k"))
    assert not await files.add(file(4, 6, key="k"))
    assert not await files.add(file(0, 4, key="k", part=1))


async def test_files_are_in_order_of_offsets_up_to_a_limit(
    files: HistoryFiles,
) -> None:
    added = [file(0, 4), file(4, 7, rows=0), file(7, 20)]
    for each in added:
        assert await files.add(each)
    part = PartitionIndex(0)
    assert await files.files(TOPIC, part) == tuple(added)
    assert await files.files(TOPIC, part, Offset(7)) == tuple(added[:2])
    assert await files.files(TOPIC, part, Offset(8)) == tuple(added)
    assert await files.files(TOPIC, PartitionIndex(1)) == ()


async def test_of_writers_that_race_for_the_same_offset_one_wins(files: HistoryFiles) -> None:
    for start in range(0, 50, 10):
        racing = [file(start, start + 10) for _ in range(8)]
        assert sum(await asyncio.gather(*(files.add(each) for each in racing))) == 1
    assert [each.first_offset for each in await files.files(TOPIC, PartitionIndex(0))] == [
        0,
        10,
        20,
        30,
        40,
    ]


async def test_removing_a_topic_deletes_its_rows_only(files: HistoryFiles) -> None:
    mine, theirs = file(0, 4), file(0, 4, topic=OTHER)
    for each in (mine, theirs):
        await files.add(each)
    assert await files.keys(TOPIC) == {mine.object_key}
    await files.remove([TOPIC])
    assert set(await files.totals()) == {OTHER}
    assert (await files.keys(TOPIC), await files.files(TOPIC, PartitionIndex(0))) == (
        frozenset(),
        (),
    )
    assert await files.files(OTHER, PartitionIndex(0)) == (theirs,)


async def test_totals_are_sums_by_topic(files: HistoryFiles) -> None:
    assert await files.totals() == {}
    for each in (
        file(0, 4),
        file(4, 9, rows=0),
        file(0, 2, part=1),
        file(0, 1, topic=OTHER, rows=7),
    ):
        assert await files.add(each)
    assert await files.totals() == {
        TOPIC: HistoryTotals(3, 6, 300),
        OTHER: HistoryTotals(1, 7, 100),
    }


KEPT = timedelta(hours=1)


async def partition_of(files: HistoryFiles, *ends: int) -> tuple[HistoryFile, ...]:
    """Add adjacent files that end at these offsets."""
    first = 0
    for end in ends:
        assert await files.add(file(first, end))
        first = end
    return await files.files(TOPIC, PartitionIndex(0))


async def later(files: HistoryFiles) -> datetime:
    return await files.now() + KEPT


async def test_adjacent_files_are_replaced_by_one_with_their_range(files: HistoryFiles) -> None:
    known = await partition_of(files, 4, 9, 12, 20)
    assert await files.partitions(4) == [(TOPIC, 0)]
    assert await files.partitions(5) == []
    merged = file(4, 12, rows=6)
    assert await files.replace(known[1:3], merged, await later(files), KEPT)
    assert await files.files(TOPIC, PartitionIndex(0)) == (known[0], merged, known[3])
    assert await files.totals() == {TOPIC: HistoryTotals(3, 12, 300)}
    assert await files.ends([TOPIC]) == {(TOPIC, 0): 20}
    assert await files.add(file(20, 21)), "the writer goes on at the same end"
    assert not await files.add(known[1]), "a replaced file does not come back"


async def test_files_that_were_changed_meanwhile_are_not_replaced(files: HistoryFiles) -> None:
    known = await partition_of(files, 4, 9, 12)
    assert await files.replace(known[:2], file(0, 9, rows=6), await later(files), KEPT)
    before = await files.files(TOPIC, PartitionIndex(0)), await files.totals()
    for old in (known[:2], known[1:], known):
        new = file(old[0].first_offset, old[-1].next_offset, rows=3 * len(old))
        assert not await files.replace(old, new, await later(files), KEPT)
    assert (await files.files(TOPIC, PartitionIndex(0)), await files.totals()) == before
    await files.remove([TOPIC])
    gone = file(0, 12, rows=9)
    assert not await files.replace(before[0], gone, await later(files), KEPT)
    assert await files.totals() == {}


async def test_nothing_is_replaced_after_the_deadline(files: HistoryFiles) -> None:
    known = await partition_of(files, 4, 9)
    late = await files.now() - timedelta(microseconds=1)
    assert not await files.replace(known, file(0, 9, rows=6), late, KEPT)
    assert await files.files(TOPIC, PartitionIndex(0)) == known


async def test_of_two_compactions_that_replace_the_same_files_one_wins(
    files: HistoryFiles,
) -> None:
    known = await partition_of(files, 4, 9, 12, 15)
    deadline = await later(files)
    racing = [known[:2], known[:3], known[1:], known[2:], known, known[1:3]]
    won = await asyncio.gather(
        *(
            files.replace(
                old,
                file(old[0].first_offset, old[-1].next_offset, rows=3 * len(old)),
                deadline,
                KEPT,
            )
            for old in racing
        )
    )
    assert won.count(True) in (1, 2), "two only if they have no file in common"
    left = await files.files(TOPIC, PartitionIndex(0))
    assert [each.first_offset for each in left[1:]] == [each.next_offset for each in left[:-1]]
    assert (left[0].first_offset, left[-1].next_offset) == (0, 15)
    totals = (await files.totals())[TOPIC]
    assert (totals.rows, totals.files) == (12, len(left))


async def test_keys_of_replaced_files_are_retired_until_they_are_due(files: HistoryFiles) -> None:
    known = await partition_of(files, 4, 9, 12)
    merged = file(0, 9, rows=6)
    assert await files.replace(known[:2], merged, await later(files), KEPT)
    old = {each.object_key for each in known[:2]}
    assert await files.retired() == old
    assert await files.keys(TOPIC) == {*old, merged.object_key, known[2].object_key}
    assert await files.due(10) == []
    whole = file(0, 12, rows=9)
    left = await files.files(TOPIC, PartitionIndex(0))
    assert await files.replace(left, whole, await later(files), -KEPT)
    due = {merged.object_key, known[2].object_key}
    first = await files.due(1)
    assert first == await files.due(1), "they are due until they are forgotten"
    await files.forget(first)
    assert await files.due(10) == sorted(due - {*first})
    await files.forget(sorted(due))
    assert await files.due(10) == []
    assert await files.keys(TOPIC) == {*old, whole.object_key}
    await files.remove([TOPIC])
    assert await files.retired() == frozenset()


async def test_a_file_is_replaced_by_one_without_rows_of_erased_keys(files: HistoryFiles) -> None:
    known = await partition_of(files, 4, 9, 12)
    fewer = replace(file(4, 9, rows=1), searched_to=7, removed_rows=2, min_stamp=5)
    fewer = replace(fewer, searched_for=USERS)
    assert await files.replace([known[1]], fewer, await later(files), KEPT)
    assert await files.files(TOPIC, PartitionIndex(0)) == (known[0], fewer, known[2])
    assert await files.totals() == {TOPIC: HistoryTotals(3, 7, 300)}
    none = replace(fewer, row_count=0, min_ts=None, max_ts=None, removed_rows=3, searched_to=8)
    none = replace(none, object_key="none")
    assert await files.replace([fewer], none, await later(files), KEPT)
    assert await files.totals() == {TOPIC: HistoryTotals(3, 6, 300)}
    assert await files.searched(TOPIC) == [
        SearchedFiles(NO_DATASET, 0, False, 2, 6, 0, 0),
        SearchedFiles(USERS, 8, False, 0, 0, 3, 0),
        SearchedFiles(NO_DATASET, 0, True, 1, 0, 0, 0),
        SearchedFiles(USERS, 7, True, 1, 0, 0, 5),
    ], "a file without rows has no erased row"
    assert await files.searched(OTHER) == []


async def test_no_row_is_lost_without_being_counted(files: HistoryFiles) -> None:
    (known,) = await partition_of(files, 4)
    for wrong in (file(0, 4, rows=2), replace(file(0, 4, rows=2), removed_rows=2)):
        with pytest.raises(AssertionError, match="without being counted"):
            await files.replace([known], wrong, await later(files), KEPT)
    fewer = replace(file(0, 4, rows=2), removed_rows=1)
    assert await files.replace([known], fewer, await later(files), KEPT)
    with pytest.raises(AssertionError, match="forgotten"):
        await files.replace([fewer], file(0, 4, rows=3), await later(files), KEPT)


async def test_a_file_is_replaced_by_one_without_expired_rows(files: HistoryFiles) -> None:
    known = await partition_of(files, 4, 9, 12)
    fewer = replace(file(4, 9, rows=1), expired_to=Micros(7), expired_rows=2)
    assert await files.replace([known[1]], fewer, await later(files), KEPT)
    assert await files.files(TOPIC, PartitionIndex(0)) == (known[0], fewer, known[2])
    assert await files.totals() == {TOPIC: HistoryTotals(3, 7, 300, 0, 2)}
    await files.mark_expired([known[0].object_key, fewer.object_key, "unknown"], Micros(9))
    await files.mark_expired([known[0].object_key], Micros(8))
    found = await files.files(TOPIC, PartitionIndex(0))
    assert [each.expiry_searched_to for each in found] == [9, 9, 0], "a mark only grows"
    assert [each.expired_to for each in found] == [0, 7, 0], "no row has left"
    whole = replace(file(0, 12, rows=6), expired_rows=3, expired_to=Micros(9))
    assert await files.replace(found, whole, await later(files), KEPT)
    assert await files.totals() == {TOPIC: HistoryTotals(1, 6, 100, 0, 3)}
    forgotten = replace(whole, object_key="forgotten", row_count=9, expired_rows=0)
    with pytest.raises(AssertionError, match="nor is this"):
        await files.replace([whole], forgotten, await later(files), KEPT)
    assert await files.add(file(12, 13))
    assert await files.remove_before(TOPIC, PartitionIndex(0), Offset(12)) == [whole.object_key]
    assert await files.totals() == {TOPIC: HistoryTotals(1, 3, 100, 0, 0)}


async def test_files_without_rows_of_erased_keys_are_marked(files: HistoryFiles) -> None:
    known = await partition_of(files, 4, 9, 12)
    keys = [each.object_key for each in known]
    await files.mark_searched([keys[0], keys[2], "unknown"], USERS, 5)
    await files.mark_searched([keys[0]], USERS, 3)
    found = await files.files(TOPIC, PartitionIndex(0))
    assert [each.searched_to for each in found] == [5, 0, 5], "a mark only grows"
    assert [searched_upto(each, DatasetName("Customers")) for each in found] == [0, 0, 0]
    assert await files.add(known[0]), "the writer may not know that it was added"
    merged = file(0, 12, rows=9)
    assert await files.replace(known, merged, await later(files), KEPT), "a mark is no change"
    found_of = [(each.searched_for, each.searched_to) for each in await files.searched(TOPIC)]
    assert found_of == [(NO_DATASET, 0), (NO_DATASET, 0), (USERS, 5)]
    await files.mark_searched([merged.object_key], USERS, 7)
    await files.mark_searched([merged.object_key], DatasetName("Customers"), 2)
    (found_file,) = await files.files(TOPIC, PartitionIndex(0))
    assert (searched_upto(found_file, USERS), found_file.searched_to) == (0, 2)
