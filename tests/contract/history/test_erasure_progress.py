"""How far erased keys have left history, over a real Postgres."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from fennel_core.connections import erasures
from fennel_core.connections.erasures import ErasureCount
from fennel_core.connections.postgres import pool
from fennel_core.history.erasable_topics import OTHER_KEYS, REQUESTS
from fennel_core.history.erased_topic_keys import erased_keys_of, erasures_of
from fennel_core.history.erasing_run import plan_removal
from fennel_core.history.erasure_progress import ErasureProgress, erasure_progress
from fennel_core.history.erasure_report import KEYS_LEFT, ROWS_REMOVED, ErasureReport
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.store import HistoryFile
from fennel_core.history.topics import HistoryTopics
from fennel_core.vocab.ids import DatasetName, Micros, Offset, PartitionIndex, TopicName
from tests.support.erased_dataset import DATASET, RAW, WORKSPACE, commit_dataset, erase
from tests.support.history_world import TOPIC

KEPT = timedelta(hours=1)
LATER = 1 << 62
"""A stamp after every erasure of this test."""


def file(first: int, key: str, stamp: int = 1, topic: TopicName = TOPIC) -> HistoryFile:
    place = (topic, PartitionIndex(0), Offset(first), Offset(first + 4))
    return HistoryFile(*place, key, 3, 1, Micros(1), Micros(2), min_stamp=stamp)


async def test_a_key_is_left_until_no_file_and_no_replaced_object_may_have_its_rows(
    database: str,
) -> None:
    async with pool(database, name="test", size=2) as connections:
        files, topics = PostgresHistoryFiles(connections), HistoryTopics(connections)
        report = ErasureReport(connections)
        await commit_dataset(connections, 1)

        async def progress() -> dict[str, ErasureProgress]:
            found = await erasure_progress(connections, topics, files)
            return {each.topic.topic: each for each in found}

        async def counted() -> tuple[int, int, int, int, int]:
            found = (await progress())[TOPIC]
            return (found.left.keys, found.files, found.rows, found.objects, found.removed_rows)

        first, second = file(0, "first"), file(4, "second", LATER)
        for each in (first, second, file(0, "requests", topic=RAW)):
            assert await files.add(each)
        assert await progress() == {}, "no key is erased"
        assert await erasures_of(connections, await topics.erasable()) == {}

        await erase(connections, [1, 2])
        (count,) = await erasures.counts(connections)
        assert count == ErasureCount(WORKSPACE, DATASET, 2, count.newest, (("k",),))
        assert await counted() == (2, 2, 6, 0, 0)
        found = await erasures_of(connections, await topics.erasable())
        assert list(found) == [TOPIC], "requests are kept"
        assert found[TOPIC].newest == count.newest
        assert found[TOPIC].keys == await erased_keys_of(connections, TOPIC)
        (keys,) = found[TOPIC].keys
        assert (keys.columns, len(keys.keys)) == (("k",), 2)

        without = replace(
            first,
            object_key="without",
            row_count=1,
            removed_rows=2,
            searched_to=count.newest,
            searched_for=DATASET,
        )
        assert await files.replace([first], without, await files.now() + KEPT, KEPT)
        assert await counted() == (2, 1, 3, 1, 2), "the replaced object is still there"
        await report.read()
        assert KEYS_LEFT.labels("w", "waiting")._value.get() == 2
        await files.forget(["first"])
        assert await counted() == (0, 0, 0, 0, 2), "rows of the second file came later"
        assert (await progress())[TOPIC].left.since is None

        await erase(connections, [3])
        assert (await counted())[0] == 1, "a file that was searched may have rows of a later one"
        await report.read()
        requests = (await progress())[RAW]
        assert (requests.left.keys, requests.topic.kept_because) == (3, REQUESTS)
        assert KEYS_LEFT.labels("w", "waiting")._value.get() == 1
        assert KEYS_LEFT.labels("w", "kept")._value.get() == 3
        assert ROWS_REMOVED.labels("w")._value.get() == 2
        (row,) = (row for row in report.rows() if row["topic"] == TOPIC)
        assert (row["dataset"], row["keys"], row["keys_left"]) == (DATASET, 3, 1)
        assert str(row["since"]).startswith("20")


async def test_a_search_for_another_dataset_of_the_topic_proves_nothing(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        files, topics = PostgresHistoryFiles(connections), HistoryTopics(connections)
        await commit_dataset(connections, 1)
        await erase(connections, [1])
        assert await files.add(file(0, "first"))
        await files.mark_searched(["first"], DatasetName("Customers"), 1_000)

        async def left() -> tuple[int, int]:
            (found,) = [
                each
                for each in await erasure_progress(connections, topics, files)
                if each.topic.topic == TOPIC
            ]
            return found.left.keys, found.files

        assert await left() == (1, 1), "its erasures were others"
        erased = (await erasures_of(connections, await topics.erasable()))[TOPIC]
        found = await files.files(TOPIC, PartitionIndex(0))
        plan = plan_removal(found, erased, Offset(4))
        assert [each.object_key for each in plan.files] == ["first"]
        await files.mark_searched(["first"], DATASET, erased.newest)
        assert await left() == (0, 0)


async def test_a_computed_dataset_may_get_rows_of_erased_keys_later(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        files, topics = PostgresHistoryFiles(connections), HistoryTopics(connections)
        await commit_dataset(connections, 1, is_source=False)
        await erase(connections, [1])
        assert await files.add(file(0, "later", LATER))
        found = await erasure_progress(connections, topics, files)
        assert {each.topic.topic: each.left.keys for each in found}[TOPIC] == 1


async def test_a_file_without_rows_holds_no_erased_key(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        files = PostgresHistoryFiles(connections)
        await commit_dataset(connections, 1)
        await erase(connections, [1])
        empty = replace(file(0, "empty", 0), row_count=0, min_ts=None, max_ts=None)
        assert await files.add(empty)
        assert await files.add(file(4, "later", LATER))
        found = await erasure_progress(connections, HistoryTopics(connections), files)
        assert {each.topic.topic: each.left.keys for each in found}[TOPIC] == 0


async def test_a_topic_with_another_key_than_the_erasure_keeps_its_rows(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        files, topics = PostgresHistoryFiles(connections), HistoryTopics(connections)
        await commit_dataset(connections, 1)
        await erase(connections, [1])
        assert await files.add(file(0, "first"))
        assert list(await erasures_of(connections, await topics.erasable())) == [TOPIC]
        await erasures.add(connections, WORKSPACE, DATASET, ("at",), [b"a"])
        assert await erasures_of(connections, await topics.erasable()) == {}
        found = await erasure_progress(connections, topics, files)
        (shown,) = (each for each in found if each.topic.topic == TOPIC)
        assert (shown.topic.kept_because, shown.left.keys) == (OTHER_KEYS, 2)
