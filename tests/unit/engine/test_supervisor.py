"""What a supervisor tells the registry, whatever becomes of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fennel_core.bank.memory_registry import MemoryRegistry
from fennel_core.bank.registry import JobPartition, RegistryUnavailable, Report, Slot
from fennel_core.engine.supervisor import Hosted, Supervisor
from fennel_core.vocab.ids import EngineId, Epoch, JobId, Millis, PartitionIndex, SlotId

KEY = (JobId("job"), PartitionIndex(0))
ME = Slot(SlotId("me"), EngineId("e"), "here")


class Forgetful(MemoryRegistry):
    """A registry whose answers can be lost after it did what it was asked."""

    answers = True

    async def report(self, reports: Mapping[JobPartition, tuple[Epoch, Report]], slot: SlotId) -> None:
        await super().report(reports, slot)
        if not self.answers:
            raise RegistryUnavailable("the answer was lost")


@dataclass
class Running:
    """What is asked of a runner."""

    lag: int
    status: str = "running"


class Clock:
    def monotonic_ms(self) -> int:
        return 0

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(0)


async def test_what_the_registry_may_have_heard_is_corrected_even_when_things_are_again_as_they_were_before() -> None:
    registry = Forgetful(lambda: 0)
    registry.add(KEY[0], b"", 1)
    await registry.heartbeat(ME, Millis(1000))
    epoch = (await registry.claim([(KEY, Epoch(0))], ME.id, Millis(1000)))[KEY]
    workshop: Any = None
    runner: Any = Running(0)
    supervisor = Supervisor(ME, registry, workshop, Clock(), Millis(1000), 1000)
    supervisor.hosted[KEY] = Hosted(epoch, runner=runner)
    for lag, answers in ((0, True), (6, False), (0, True)):
        runner.lag, registry.answers = lag, answers
        reporting = asyncio.gather(supervisor._report(), return_exceptions=True)
        await reporting
        assert registry.reports()[KEY][1].lag == lag
