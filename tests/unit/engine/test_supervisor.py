"""The supervisor and tasks that do not end when they are told to."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any, cast

from fennel_core.bank.memory_registry import MemoryRegistry
from fennel_core.bank.registry import Slot
from fennel_core.engine.supervisor import Supervisor, Workshop
from fennel_core.vocab.ids import EngineId, Epoch, JobId, Millis, PartitionIndex, SlotId

JOB, PART = JobId("w.job.a.1"), PartitionIndex(0)
KEY = (JOB, PART)


@dataclass
class EndlessRunner:
    status: str = "running"
    lag: int | None = 0
    ran: bool = False

    async def run(self) -> None:
        self.ran = True
        await asyncio.Event().wait()


@dataclass
class Deaf:
    """A workshop that is cancelled while it makes a runner, and makes it all the same."""

    making: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    runner: EndlessRunner = field(default_factory=EndlessRunner)
    closed: bool = False

    async def make(self, job: JobId, part: PartitionIndex, epoch: Epoch) -> Any:
        self.making.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self.go_on.wait()
        return self.runner

    async def close(self, runner: Any) -> None:
        self.closed = True

    def stored(self) -> set[JobId]:
        return set()


@dataclass
class Still:
    def monotonic_ms(self) -> int:
        return 0

    async def sleep(self, ms: int) -> None:
        await asyncio.Event().wait()


async def test_a_runner_whose_cancellation_was_lost_while_it_was_made_is_stopped_all_the_same() -> None:
    registry, workshop = MemoryRegistry(lambda: 0), Deaf()
    registry.add(JOB, b"spec", 1)
    slot = Slot(SlotId("s"), EngineId("e"), "run/s.sock")
    await registry.heartbeat(slot, Millis(1000))
    supervisor = Supervisor(slot, registry, cast(Workshop, workshop), Still(), Millis(1000), 1000)
    await supervisor.tick()
    await workshop.making.wait()
    registry.condemn(JOB)
    async with asyncio.timeout(5):
        await supervisor.tick()
    assert KEY not in supervisor.hosted
    assert workshop.closed, "its store is released"
    assert not workshop.runner.ran
