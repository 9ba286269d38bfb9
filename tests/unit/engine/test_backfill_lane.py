"""The backfill lane survives failing requests and turns, and one read serves all that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from fennel_core.blueprints.spec import Job
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.engine.backfill.client import QueuedBackfillClient
from fennel_core.engine.backfill.errors import BackfillCorrupt
from fennel_core.engine.backfill.lane import IDLE_S, REPORTED_FAILURES, BackfillLane
from fennel_core.engine.backfill.queue import BackfillRequest
from fennel_core.history.memory import MemoryHistoryFiles
from fennel_core.history.store import HistoryFile
from fennel_core.operators.spec import TableSpec
from fennel_core.vocab.dtypes import Field, Int
from fennel_core.vocab.ids import (
    JobId,
    JobPartition,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    WorkspaceId,
)
from fennel_core.vocab.schema import Schema
from tests.support.polling import eventually


def key(part: int) -> JobPartition:
    return JobId("job"), PartitionIndex(part)


@dataclass
class World:
    """A queue and a server of backfills; each of `errors` is raised by one turn."""

    requested: list[JobPartition] = field(default_factory=list)
    served: list[JobPartition] = field(default_factory=list)
    failed: dict[JobPartition, str] = field(default_factory=dict)
    pauses: list[float] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    poisoned: frozenset[JobPartition] = frozenset()
    wakes: asyncio.Event = field(default_factory=asyncio.Event)
    unlistenable: int = 0
    paused: Callable[[], None] = lambda: None

    async def claim(self) -> list[JobPartition]:
        if self.errors:
            raise self.errors.pop()
        claimed, self.requested = self.requested, []
        return claimed

    async def fail(self, job: JobId, part: PartitionIndex, error: str) -> None:
        self.failed[job, part] = error

    async def serve(self, job: JobId, part: PartitionIndex) -> None:
        if (job, part) in self.poisoned:
            raise KeyError("a step of a newer version")
        self.served.append((job, part))

    async def delete_orphans(self) -> None:
        return

    async def wakeups(self) -> AsyncIterator[object]:
        if self.unlistenable:
            self.unlistenable -= 1
            raise ValueError("not a notification")
        while True:
            await self.wakes.wait()
            self.wakes.clear()
            yield None

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.paused()
        await asyncio.sleep(3600 if seconds == IDLE_S else 0)

    def request(self, *parts: int) -> None:
        self.requested += map(key, parts)
        self.wakes.set()


@asynccontextmanager
async def running(world: World, lane: BackfillLane | None = None) -> AsyncIterator[BackfillLane]:
    lane = lane or BackfillLane(world, world, world.wakeups, world.sleep)
    task = asyncio.create_task(lane.run())
    try:
        yield lane
        assert not task.done(), "only cancellation ends the lane"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_unexpected_error_fails_its_request_and_no_other() -> None:
    world = World(poisoned=frozenset({key(1)}))
    async with running(world) as lane:
        world.request(0, 1, 2)
        await eventually(lambda: world.failed and len(world.served) == 2, within_s=5)
        assert world.served == [key(0), key(2)]
        assert world.failed == {key(1): "KeyError: 'a step of a newer version'"}
        world.request(3)
        await eventually(lambda: key(3) in world.served, within_s=5)
        assert lane.problem() is None


async def test_a_failing_turn_is_reported_and_tried_again_with_growing_pauses() -> None:
    world = World(errors=[ValueError("no such column")] * REPORTED_FAILURES)
    problems: list[str | None] = []
    lane = BackfillLane(world, world, world.wakeups, world.sleep)
    world.paused = lambda: problems.append(lane.problem())
    async with running(world, lane):
        await eventually(lambda: IDLE_S in world.pauses, within_s=5)
        assert problems == [None, None, "ValueError: no such column", None]
        assert world.pauses == [1.0, 2.0, 4.0, IDLE_S]
        world.request(0)
        await eventually(lambda: world.served == [key(0)], within_s=5)
        assert lane.problem() is None


async def test_one_unavailable_turn_is_not_a_problem_yet() -> None:
    world = World(errors=[SystemUnavailable("Postgres restarts")])
    async with running(world) as lane:
        await eventually(lambda: IDLE_S in world.pauses, within_s=5)
        assert lane.problem() is None


async def test_a_broken_listener_is_started_again() -> None:
    world = World(unlistenable=2)
    async with running(world):
        world.request(0)
        await eventually(lambda: world.served == [key(0)], within_s=5)


async def test_a_lane_that_does_not_run_is_a_problem() -> None:
    world = World()
    lane = BackfillLane(world, world, world.wakeups, world.sleep)
    assert lane.problem() == "the backfill lane is not running"


@dataclass
class CountingQueue:
    reads: int = 0

    async def find_all(self, asked: Collection[JobPartition]) -> dict[JobPartition, Any]:
        self.reads += 1
        state = BackfillRequest("staged", "m", None) if self.reads > 3 else None
        running = BackfillRequest("running", None, None)
        return dict.fromkeys(asked, state or running)


async def test_partitions_that_wait_for_backfills_share_one_read_per_interval() -> None:
    queue: Any = CountingQueue()
    nothing: Any = None

    async def sleep(ms: int) -> None:
        await asyncio.sleep(0)

    client = QueuedBackfillClient(nothing, queue, nothing, 0, sleep)

    job: Any = SimpleNamespace(id=JobId("job"))
    waiting = [client._await_result(job, PartitionIndex(part)) for part in range(100)]
    assert {each.state for each in await asyncio.gather(*waiting)} == {"staged"}
    assert queue.reads == 4


async def test_a_job_that_starts_without_rows_of_erased_keys_says_how_many() -> None:
    topic = TopicName("w.topic.a.1")
    files = MemoryHistoryFiles()
    for first, removed in ((0, 2), (4, 3)):
        place = (topic, PartitionIndex(0), Offset(first), Offset(first + 4))
        times = (Micros(1), Micros(2))
        assert await files.add(
            HistoryFile(
                *place, f"{first}", 1, 1, *times, removed_rows=removed, expired_rows=2 * removed
            )
        )
    queue: Any = SimpleNamespace(request=AsyncMock())
    objects: Any = SimpleNamespace(get=AsyncMock(return_value=None))
    client = QueuedBackfillClient(files, queue, objects, 0, AsyncMock())
    client._await_result = AsyncMock(return_value=BackfillRequest("staged", "m", None))  # type: ignore[method-assign]  # the batch
    table = TableSpec(Schema((Field("k", Int()),), (), "at"))
    unused = TopicName("unused")
    owner = WorkspaceId("w")
    job = Job(JobId("job"), owner, (topic,), (), table, unused, unused, 1, "Users: table")
    with capture_logs() as logged, pytest.raises(BackfillCorrupt):
        await client.obtain(job, PartitionIndex(0), {topic: Offset(8)})
    assert [
        (line["event"], line.get("removed_rows", line.get("expired_rows"))) for line in logged
    ] == [
        ("a job starts without rows of erased keys", 5),
        ("a job starts without rows that are older than `history`", 10),
    ]
