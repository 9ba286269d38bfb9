"""Passes and late deletion, in memory with a clock that the test controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import pytest

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.garbage import DeletionLimit, DeletionRefused, MemoryGarbageMarks
from fennel_core.connections.object_store import MemoryObjectStore
from fennel_core.history.backlog import RollRule
from fennel_core.history.errors import RollFailed
from fennel_core.history.host import LATE, _run_pass, _State
from fennel_core.history.memory import MemoryHistoryFiles
from fennel_core.history.pruning import PrunedHistory, prune_history
from fennel_core.history.roll import TopicLayout
from fennel_core.history.store import HistoryFile
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.history.writer import BatchPublisher, HistoryWriter, PassResult
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName
from tests.support.history_world import LAYOUT, TOPIC, MemoryLog, MemoryRoller

HOUR = timedelta(hours=1)
LIMIT = DeletionLimit(20, 20)
PARTITION = (TOPIC, PartitionIndex(0))


class World:
    """Everything a writer sees, in memory."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, 12, tzinfo=UTC)
        self.files = MemoryHistoryFiles(lambda: self.now)
        self.log = MemoryLog()
        self.objects = MemoryObjectStore(lambda: self.now)
        self.marks = MemoryGarbageMarks(lambda: self.now)
        self.topics: set[TopicName] = {TOPIC}
        self.roller = MemoryRoller(
            self.log, {}, batch_records=100, file_bytes=10_000, fate=iter(())
        )

    async def with_history(self) -> Mapping[TopicName, TopicLayout]:
        return dict.fromkeys(self.topics, LAYOUT)

    async def alive(self) -> Sequence[TopicName]:
        return list(self.topics)

    def writer(self, rule: RollRule) -> HistoryWriter:
        return HistoryWriter(
            self.files, self, self.log.bounds, self.roller, rule, lambda: self.now.timestamp()
        )

    async def pruned(self, limit: DeletionLimit = LIMIT) -> PrunedHistory:
        return await prune_history(self.files, self, self.objects, self.marks, HOUR, limit)

    async def rolled(self, first: int, following: int, topic: TopicName = TOPIC) -> str:
        """Add a file of history now and return its key."""
        key = f"history/{topic}/0/{first}.parquet"
        await self.objects.put(key, b"")
        file = HistoryFile(
            topic,
            PartitionIndex(0),
            Offset(first),
            Offset(following),
            key,
            1,
            10,
            Micros(0),
            Micros(0),
        )
        assert await self.files.add(file)
        return key


class BrokenRoller:
    """Spark fails whatever it is given."""

    async def roll(self, *_: object) -> None:
        raise RollFailed("no space left")


def lag(done: PassResult) -> int:
    return done.topics[TOPIC].lag_records


async def test_few_messages_are_rolled_after_the_waiting_time() -> None:
    world = World()
    writer = world.writer(RollRule(enough_records=5, wait_s=60))
    world.log.append(0, [1, 2, None])
    assert lag(await writer.run_pass()) == 3
    world.now += timedelta(seconds=59)
    waiting = await writer.run_pass()
    assert (waiting.files, waiting.topics[TOPIC].waiting_s) == (0, 59)
    world.now += timedelta(seconds=1)
    rolled = await writer.run_pass()
    assert (rolled.files, rolled.rows, lag(rolled)) == (1, 3, 0)
    assert (rolled.topics[TOPIC].totals.rows, rolled.topics[TOPIC].waiting_s) == (3, 0)


@pytest.mark.parametrize("kept", [0, 2])
async def test_records_that_were_deleted_before_are_known_as_lost_for_ever(kept: int) -> None:
    world, part = World(), PartitionIndex(0)
    writer = world.writer(RollRule(enough_records=1, wait_s=0))
    if kept:
        world.log.append(0, [1] * kept)
        await writer.run_pass()
    world.log.append(0, [1, 1, 1])
    first = kept + 2
    world.log.delete_before(0, first)
    for _ in range(2):  # the second pass finds nothing to do, and forgets nothing
        found = await writer.run_pass()
        assert found.topics[TOPIC].totals.lost_records == 2
    files = await world.files.files(TOPIC, part)
    assert [(each.first_offset, each.next_offset) for each in files][-1] == (first, first + 1)
    whole = TopicSlice((TOPIC, part), files, Offset(first + 1), Offset(first + 1), "")
    assert (whole.begins, whole.gap) == ((0, (kept, first)) if kept else (first, None))
    await world.writer(RollRule(enough_records=1, wait_s=0)).run_pass()
    assert (await world.files.totals())[TOPIC].lost_records == 2


async def test_topics_become_late_while_passes_fail() -> None:
    world, state = World(), _State()
    writer = world.writer(RollRule(enough_records=1, wait_s=60))
    writer.roller, writer.publish = BrokenRoller(), state.publish
    world.log.append(0, [1, 2])
    await _run_pass(writer, state)
    assert [(of["lag_records"], of["late"]) for of in state.report()] == [(2, False)]
    world.log.append(0, [3])
    world.now += timedelta(seconds=181)
    await _run_pass(writer, state)
    assert [(of["lag_records"], of["waiting_s"], of["late"]) for of in state.report()] == [
        (3, 181, True)
    ]
    assert LATE._value.get() == 1

    def away(topics: Sequence[TopicName]) -> NoReturn:
        raise SystemUnavailable("Kafka: away")

    writer.bounds = away
    world.now += timedelta(seconds=60)
    await _run_pass(writer, state)
    assert [(of["lag_records"], of["waiting_s"]) for of in state.report()] == [(3, 241)]
    assert await state.check() == "Kafka: away"


async def test_counts_are_published_before_a_roll_that_takes_long() -> None:
    world = World()
    writer = world.writer(RollRule(enough_records=1, wait_s=0))
    published: list[int] = []
    writer.publish = lambda counts: published.append(counts[TOPIC].lag_records)
    world.log.append(0, [1, 2])
    assert lag(await writer.run_pass()) == 0
    assert published == [2]


async def test_a_topic_whose_end_cannot_be_read_becomes_late() -> None:
    world, denied = World(), TopicName("w.topic.denied.1")
    writer = world.writer(RollRule(enough_records=1, wait_s=60))
    world.topics.add(denied)
    world.log.append(0, [1])
    assert not (await writer.run_pass()).topics[denied].late
    world.now += timedelta(seconds=181)
    counts = (await writer.run_pass()).topics
    assert (counts[denied].waiting_s, counts[denied].late, counts[TOPIC].late) == (181, True, False)
    world.topics.remove(denied)
    assert denied not in (await writer.run_pass()).topics


async def test_control_records_at_the_end_make_no_file_and_are_read_once() -> None:
    world = World()
    writer = world.writer(RollRule(enough_records=1, wait_s=0))
    world.log.append(0, [None, None])
    assert await writer.run_pass() == await writer.run_pass()
    assert lag(await writer.run_pass()) == 0
    world.log.append(0, [4])
    assert (await writer.run_pass()).rows == 4
    (file,) = await world.files.files(*PARTITION)
    assert (file.first_offset, file.next_offset) == (0, 3)


async def test_a_writer_that_lost_a_race_fails_and_covers_nothing() -> None:
    world = World()
    publisher = BatchPublisher(world.files, {})
    await world.rolled(0, 5)
    late = HistoryFile(*PARTITION, Offset(0), Offset(9), "mine", 1, 10, Micros(0), Micros(0))
    with pytest.raises(RollFailed, match="lost the race to another writer"):
        await publisher.publish([late], {PARTITION: Offset(9)})
    assert publisher.covered == {}, "no row covers offsets 5 to 9 yet"


async def test_orphans_are_deleted_after_the_grace_period_and_files_stay() -> None:
    world = World()
    kept = await world.rolled(0, 5)
    await world.objects.put("history/w.topic.abc.1/0/orphan", b"")
    await world.objects.put("history/never.topic.x.1/0/orphan", b"")
    assert (await world.pruned()).objects == 0
    world.now += HOUR + timedelta(seconds=1)
    assert (await world.pruned()).objects == 2
    assert set(world.objects.contents) == {kept}


async def test_an_object_that_was_an_orphan_only_for_a_moment_is_kept() -> None:
    world = World()
    await world.objects.put("history/w.topic.abc.1/0/0.parquet", b"")
    await world.pruned()
    world.now += HOUR
    await world.rolled(0, 5)
    world.now += HOUR
    assert (await world.pruned()).objects == 0
    await world.files.remove([TOPIC])
    assert (await world.pruned()).objects == 0, "its time starts again, old as the object may be"


async def test_history_of_a_deleted_topic_is_deleted_late_unless_it_returns() -> None:
    world, other = World(), TopicName("w.topic.def.2")
    world.topics.add(other)
    mine, theirs = await world.rolled(0, 5), await world.rolled(0, 5, other)
    world.topics = {other}
    for _ in range(2):
        assert (await world.pruned()).topics == 0
        world.now += HOUR / 2
    world.topics = {TOPIC, other}
    await world.pruned()
    world.topics = {other}
    await world.pruned()
    world.now += HOUR + timedelta(seconds=1)
    done = await world.pruned()
    assert (done.topics, done.objects) == (1, 1)
    assert (set(world.objects.contents), set(await world.files.totals())) == ({theirs}, {other})
    assert mine not in world.objects.contents


async def test_a_bank_without_topics_deletes_no_history_beyond_the_limit() -> None:
    world = World()
    topics = [TopicName(f"w.topic.abc.{number}") for number in range(LIMIT.items + 1)]
    for topic in topics:
        await world.rolled(0, 5, topic)
    world.topics = set()
    await world.pruned()
    world.now += 2 * HOUR
    with pytest.raises(DeletionRefused, match="FENNEL_GARBAGE_PERCENT=100"):
        await world.pruned()
    assert set(await world.files.totals()) == set(topics)
    assert len(world.objects.contents) == len(topics)
    assert (await world.pruned(DeletionLimit(0, 100))).topics == len(topics)


async def test_replaced_files_stay_for_readers_and_are_then_deleted_whatever_the_limit() -> None:
    world = World()
    old = [await world.rolled(5 * n, 5 * n + 5) for n in range(3)]
    made = f"history/{TOPIC}/0/merged"
    await world.objects.put(made, b"")
    files = await world.files.files(*PARTITION)
    merged = HistoryFile(*PARTITION, Offset(0), Offset(15), made, 3, 30, Micros(0), Micros(0))
    assert await world.files.replace(files, merged, world.now, 3 * HOUR)
    for _ in range(3):
        assert await world.pruned(DeletionLimit(0, 0)) == PrunedHistory(0, 0, 0)
        world.now += HOUR
    assert set(world.objects.contents) == {*old, made}, "reads that were planned before need them"
    world.now += timedelta(seconds=1)
    assert await world.pruned(DeletionLimit(0, 0)) == PrunedHistory(0, 0, 3)
    assert set(world.objects.contents) == {made}


async def test_a_topic_of_which_only_retired_objects_are_left_is_not_unknown() -> None:
    world = World()
    await world.rolled(0, 5)
    files = await world.files.files(*PARTITION)
    merged = HistoryFile(*PARTITION, Offset(0), Offset(5), "m", 1, 10, Micros(0), Micros(0))
    assert await world.files.replace(files, merged, world.now, 3 * HOUR)
    await world.files.remove_before(*PARTITION, Offset(5))
    world.files._rows.clear()  # what deleting its workspace leaves
    world.topics = set()
    for _ in range(2):
        assert await world.pruned(DeletionLimit(0, 0)) == PrunedHistory(0, 0, 0)
        world.now += HOUR
    world.now += 2 * HOUR
    assert (await world.pruned(DeletionLimit(0, 0))).retired == 1
    assert world.objects.contents == {}
