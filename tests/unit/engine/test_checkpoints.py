"""Checkpoints of one job partition that two processes of a machine take at the same time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from fennel_core.blueprints.spec import Job
from fennel_core.connections.object_store import MemoryObjectStore
from fennel_core.engine.snapshots import Snapshots
from fennel_core.engine.state_folders import HeldFolder, StateFolders
from fennel_core.engine.state_progress import StateProgress
from fennel_core.hangar.store import WriteBatch
from fennel_core.operators import spec
from fennel_core.snapshots.memory import MemoryPointers
from fennel_core.snapshots.transfer import OwnershipLost, SnapshotContext, SnapshotTaken
from fennel_core.vocab.dtypes import Field, Str
from fennel_core.vocab.ids import Epoch, JobId, Offset, PartitionIndex, TopicName, WorkspaceId
from fennel_core.vocab.schema import Schema
from tests.sim.engine.disks import Content, DiskHangar, restored
from tests.sim.engine.faulty_components import Dice, Process

T = TypeVar("T")
JOB, PART = JobId("job"), PartitionIndex(0)
NO_PROCESS = Process(Dice(random.Random(1), 0.0))  # noqa: S311  # repeatable, and no secret
SPEC = Job(
    JOB,
    WorkspaceId("w"),
    (),
    (),
    spec.TableSpec(Schema((Field("k", Str()),), (), "at")),
    TopicName("r"),
    TopicName("d"),
    1,
    "",
)


class Held(MemoryObjectStore):
    """A bucket whose uploads wait until `go` is set."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        super().__init__(lambda: datetime.now(UTC))
        self.contents = contents
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def put(self, key: str, body: bytes) -> None:
        self.asked.set()
        await self.go.wait()
        self.contents[key] = body
        self._written_at[key] = self._now()

    async def upload(self, key: str, path: Path) -> None:
        self.asked.set()
        await self.go.wait()
        await super().upload(key, path)


class InlinePool:
    async def run(self, work: Callable[[], T]) -> T:
        return work()


@dataclass
class Running:
    """The attributes of a runner that a snapshot uses."""

    hangar: DiskHangar
    epoch: Epoch
    job: Job = SPEC
    part: int = PART
    progress: StateProgress = field(
        default_factory=lambda: StateProgress(1, Offset(1), {}, 0, Epoch(1))
    )

    def persist_offsets(self) -> StateProgress:
        return self.progress


def holding(text: bytes) -> DiskHangar:
    hangar = DiskHangar(NO_PROCESS, Content({}))
    hangar.write(WriteBatch({b"%d" % n: text for n in range(20)}))
    return hangar


async def test_a_fenced_process_does_not_touch_the_checkpoint_of_its_successor(
    tmp_path: Path,
) -> None:
    contents: dict[str, bytes] = {}
    pointers = MemoryPointers(lambda: datetime.now(UTC), {(JOB, PART): Epoch(2)})
    buckets = [Held(contents), Held(contents)]
    names = iter("abcd")
    both = [
        Snapshots(
            SnapshotContext(bucket, pointers),
            StateFolders(tmp_path),
            InlinePool(),
            lambda: next(names),
        )
        for bucket in buckets
    ]
    runners: list[Any] = [
        Running(holding(b"zombie"), Epoch(1)),
        Running(holding(b"owner"), Epoch(2)),
    ]

    zombie = asyncio.create_task(both[0].take(runners[0]))
    await buckets[0].asked.wait()
    owner = asyncio.create_task(both[1].take(runners[1]))
    await buckets[1].asked.wait()
    buckets[0].go.set()
    (lost,) = await asyncio.gather(zombie, return_exceptions=True)
    assert isinstance(lost, OwnershipLost | OSError)
    buckets[1].go.set()
    assert isinstance(await owner, SnapshotTaken)

    def opener(held: HeldFolder) -> DiskHangar:
        return DiskHangar(NO_PROCESS, restored(held.path), held.release)

    found = await both[1].open(JOB, PART, Epoch(3), opener)
    assert found.scan(b"", b"\xff") == runners[1].hangar.scan(b"", b"\xff")


async def test_the_next_owner_removes_the_checkpoint_of_a_dead_process(
    tmp_path: Path,
) -> None:
    left = tmp_path / JOB / f"checkpoint-{PART}-1"
    left.mkdir(parents=True)
    bucket = Held({})
    bucket.go.set()
    pointers = MemoryPointers(lambda: datetime.now(UTC), {(JOB, PART): Epoch(2)})
    running: Any = Running(holding(b"owner"), Epoch(2))
    assert isinstance(
        await Snapshots(
            SnapshotContext(bucket, pointers), StateFolders(tmp_path), InlinePool(), lambda: "a"
        ).take(running),
        SnapshotTaken,
    )
    assert not left.exists()
