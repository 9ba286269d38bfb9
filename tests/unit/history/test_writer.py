"""Rounds and late deletion, over twins with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from fennel_core.history.backlog import RollRule
from fennel_core.history.memory import MemoryHistoryFiles
from fennel_core.history.roll import TopicLayout
from fennel_core.history.store import HistoryFile
from fennel_core.history.writer import BatchPublisher, HistoryWriter, RollFailed, prune_history
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName
from tests.support.history_world import LAYOUT, TOPIC, MemoryLog, MemoryRoller

HOUR = timedelta(hours=1)
PLACE = (TOPIC, PartitionIndex(0))


class World:
    """Everything a writer sees, in memory."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, 12, tzinfo=UTC)
        self.files = MemoryHistoryFiles(lambda: self.now)
        self.log = MemoryLog()
        self.objects: dict[str, datetime] = {}
        self.topics: set[TopicName] = {TOPIC}
        self.roller = MemoryRoller(
            self.log, {}, batch_records=100, file_bytes=10_000, fate=iter(())
        )

    async def wanted(self) -> Mapping[TopicName, TopicLayout]:
        return dict.fromkeys(self.topics, LAYOUT)

    async def alive(self) -> Sequence[TopicName]:
        return list(self.topics)

    async def written(self, prefix: str) -> Mapping[str, datetime]:
        return {key: at for key, at in self.objects.items() if key.startswith(prefix)}

    async def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self.objects[key]

    def writer(self, rule: RollRule) -> HistoryWriter:
        return HistoryWriter(
            self.files, self, self.log.bounds, self.roller, rule, lambda: self.now.timestamp()
        )

    async def rolled(self, first: int, following: int, topic: TopicName = TOPIC) -> str:
        """A file of history, made now."""
        key = f"history/{topic}/0/{first}.parquet"
        self.objects[key] = self.now
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


async def test_few_messages_wait_and_are_rolled_when_they_have_waited() -> None:
    world = World()
    writer = world.writer(RollRule(enough_records=5, wait_s=60))
    world.log.append(0, [1, 2, None])
    assert (await writer.round()).lag == {TOPIC: 3}
    world.now += timedelta(seconds=59)
    assert (await writer.round()).files == 0
    world.now += timedelta(seconds=1)
    rolled = await writer.round()
    assert (rolled.files, rolled.rows, rolled.lag, rolled.totals[TOPIC].rows) == (
        1,
        3,
        {TOPIC: 0},
        3,
    )


async def test_control_records_at_the_end_make_no_file_and_are_looked_at_once() -> None:
    world = World()
    writer = world.writer(RollRule(enough_records=1, wait_s=0))
    world.log.append(0, [None, None])
    assert await writer.round() == await writer.round()
    assert (await writer.round()).lag == {TOPIC: 0}
    world.log.append(0, [4])
    assert (await writer.round()).rows == 4
    (file,) = await world.files.files(*PLACE)
    assert (file.first_offset, file.next_offset) == (0, 3)


async def test_a_writer_that_was_outrun_ends_its_query_and_goes_on_from_the_rows() -> None:
    world = World()
    rows = BatchPublisher(world.files, {})
    await world.rolled(0, 5)
    late = HistoryFile(*PLACE, Offset(0), Offset(9), "mine", 1, 10, Micros(0), Micros(0))
    with pytest.raises(RollFailed, match="another writer was faster"):
        await rows.publish([late], {PLACE: Offset(9)})
    assert rows.covered == {}, "offsets 5 to 9 are nobody's yet"


async def test_strays_go_after_the_grace_period_and_what_rows_name_stays() -> None:
    world = World()
    kept = await world.rolled(0, 5)
    world.objects["history/w.topic.abc.1/0/stray"] = world.objects[
        "history/never.topic.x.1/0/stray"
    ] = world.now
    assert (await prune_history(world.files, world, world, HOUR)).objects == 0
    world.now += HOUR + timedelta(seconds=1)
    assert (await prune_history(world.files, world, world, HOUR)).objects == 2
    assert set(world.objects) == {kept}


async def test_the_history_of_a_deleted_topic_goes_late_and_not_when_the_topic_comes_back() -> None:
    world, other = World(), TopicName("w.topic.def.2")
    world.topics.add(other)
    mine, theirs = await world.rolled(0, 5), await world.rolled(0, 5, other)
    world.topics = {other}
    for _ in range(2):
        assert (await prune_history(world.files, world, world, HOUR)).topics == 0
        world.now += HOUR / 2
    world.topics = {TOPIC, other}
    await prune_history(world.files, world, world, HOUR)
    world.topics = {other}
    await prune_history(world.files, world, world, HOUR)
    world.now += HOUR + timedelta(seconds=1)
    done = await prune_history(world.files, world, world, HOUR)
    assert (done.topics, done.objects) == (1, 1)
    assert (set(world.objects), set(await world.files.totals())) == ({theirs}, {other})
    assert mine not in world.objects
