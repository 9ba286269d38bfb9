"""The contract of the stored counts of dead letters."""

from __future__ import annotations

import asyncio

from fennel_core.dead_letters.counts import CountedRange, CountKey, DeadLetterCounts, LetterCount
from fennel_core.vocab.dead_letters import DeadLetterKind
from fennel_core.vocab.ids import Millis, Offset, PartitionIndex, TopicPartition
from tests.contract.dead_letters.conftest import TOPICS

FIRST: TopicPartition = (TOPICS[0], PartitionIndex(0))
SECOND: TopicPartition = (TOPICS[0], PartitionIndex(1))
USERS = CountKey("ingest", "Users", DeadLetterKind.NOT_ADMITTED)
ORDERS = CountKey("shop.job.a.1", "Orders.clean: map", DeadLetterKind.EXPRESSION)


def counted(
    source: TopicPartition, first: int, following: int, **counts: tuple[int, int, str]
) -> CountedRange:
    keys = {"users": USERS, "orders": ORDERS}
    found = {
        keys[name]: LetterCount(rows, Millis(at), reason)
        for name, (rows, at, reason) in counts.items()
    }
    return CountedRange(source, Offset(first), Offset(following), found)


async def found(counts: DeadLetterCounts) -> dict[CountKey, LetterCount]:
    return {each.key: each.count for each in await counts.read()}


async def test_topics_that_are_not_being_destroyed_are_listed(counts: DeadLetterCounts) -> None:
    assert await counts.topics() == dict.fromkeys(TOPICS, 2)
    assert await counts.positions() == {}
    assert await counts.read() == []


async def test_ranges_add_up_and_the_newest_reason_is_kept(counts: DeadLetterCounts) -> None:
    assert await counts.add(counted(FIRST, 0, 4, users=(2, 5_000, "new"), orders=(1, 1_000, "o")))
    assert await counts.add(counted(SECOND, 0, 9, users=(3, 4_000, "old")))
    assert await counts.add(counted(FIRST, 4, 5))
    assert await counts.positions() == {FIRST: 5, SECOND: 9}
    assert await found(counts) == {
        USERS: LetterCount(5, Millis(5_000), "new"),
        ORDERS: LetterCount(1, Millis(1_000), "o"),
    }


async def test_the_workspace_of_each_count_is_known(counts: DeadLetterCounts) -> None:
    assert await counts.add(counted(FIRST, 0, 1, users=(1, 1, "a")))
    assert await counts.add(counted((TOPICS[1], PartitionIndex(0)), 0, 1, users=(7, 1, "b")))
    assert {each.workspace: each.count.rows for each in await counts.read()} == {
        "shop": 1,
        "other": 7,
    }


async def test_a_range_that_begins_elsewhere_changes_nothing(counts: DeadLetterCounts) -> None:
    assert not await counts.add(counted(FIRST, 3, 4, users=(1, 1, "a")))
    assert await counts.add(counted(FIRST, 0, 4, users=(1, 1, "a")))
    for first, following in ((0, 4), (0, 9), (3, 9), (5, 9)):
        assert not await counts.add(counted(FIRST, first, following, users=(1, 1, "a")))
    assert await counts.positions() == {FIRST: 4}
    assert await found(counts) == {USERS: LetterCount(1, Millis(1), "a")}


async def test_of_servers_that_count_the_same_range_one_does(counts: DeadLetterCounts) -> None:
    for first, following in ((0, 5), (5, 8)):
        same = counted(FIRST, first, following, users=(2, 1, "a"), orders=(1, 1, "b"))
        assert sum(await asyncio.gather(*(counts.add(same) for _ in range(6)))) == 1
    assert {key: count.rows for key, count in (await found(counts)).items()} == {
        USERS: 4,
        ORDERS: 2,
    }


async def test_a_reason_that_postgres_cannot_store_is_counted(counts: DeadLetterCounts) -> None:
    assert await counts.add(counted(FIRST, 0, 1, users=(1, 1, "zero \0 byte")))
    assert (await found(counts))[USERS].rows == 1


async def test_what_was_settled_is_counted_by_outcome(counts: DeadLetterCounts) -> None:
    sink = CountKey("shop.sink.a.1", "Users", DeadLetterKind.NOT_DELIVERED)
    for first, count in (
        (0, LetterCount(10, Millis(5_000), "new")),
        (1, LetterCount(0, Millis(0), "", replayed=1, dropped=2, refused=3, superseded=1)),
        (2, LetterCount(0, Millis(0), "", superseded=1)),
    ):
        one = CountedRange(FIRST, Offset(first), Offset(first + 1), {sink: count})
        assert await counts.add(one)
    (whole,) = (await found(counts)).values()
    assert whole == LetterCount(10, Millis(5_000), "new", 1, 2, 3, 2)
    assert whole.open == 2
