"""The slots of the simulated world: runner factory, live slot and the registry they use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import polars as pl

from fennel_core.bank.memory_registry import MemoryRegistry
from fennel_core.bank.registry import Slot
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Job
from fennel_core.engine.iteration import JobLogic
from fennel_core.engine.runner import Runner, RunnerLimits
from fennel_core.engine.service import SlotService
from fennel_core.engine.snapshots import Snapshots
from fennel_core.engine.supervisor import Supervisor
from fennel_core.hangar.store import HangarInUse
from fennel_core.operators.build import as_watermark_step, build
from fennel_core.operators.spec import step_version
from fennel_core.operators.step import OperatorStep, Outcome, StateReader
from fennel_core.vocab.ids import (
    Epoch,
    JobId,
    JobPartition,
    Millis,
    PartitionIndex,
    SlotId,
)
from tests.sim.engine import job_chain
from tests.sim.engine.disks import Machine
from tests.sim.engine.faulty_components import Process, ProcessPool, SimBroker, SimRegistry
from tests.sim.engine.memoized_step import MemoizedStep

LEASE_MS: Final = Millis(1_800)
POLL_MS: Final = 600
LIMITS: Final = RunnerLimits(iteration_bytes=6_000, environment="simulated", producer_idle_s=0.7)


DRIFTED: Final = b"drifted"
"""A key that only the state of a `DriftingStep` has."""


@cache
def _read(stored: bytes) -> tuple[Job, OperatorStep]:
    """Return job and step; steps are pure, so all runners share one, which saves a third of a
    run.
    """
    job = stored_names.loads(stored, Job)
    return job, build(job.step)


@cache
def _memoized(stored: bytes) -> MemoizedStep:
    job, step = _read(stored)
    return MemoizedStep(step, job_chain.is_dead if job.id == job_chain.CLEAN.id else None)


@dataclass
class DriftingStep:
    """A step whose replay produces different mutations."""

    inner: OperatorStep
    replaying: Callable[[], bool]

    def apply(self, reads: StateReader, source: int, batch: pl.DataFrame) -> Outcome:
        made = self.inner.apply(reads, source, batch)
        return replace(made, puts={**made.puts, DRIFTED: b"1"}) if self.replaying() else made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass
class SimRunnerFactory:
    """`engine.runner_factory.RunnerFactory` over the machine's disk, or over a snapshot."""

    snapshots: Snapshots
    process: Process
    registry: SimRegistry
    broker: SimBroker
    machine: Machine
    as_user_code: bool
    drifts: bool
    """Its libraries compute other results than those that wrote the markers."""

    async def make(self, job: JobId, part: PartitionIndex, epoch: Epoch) -> Runner | None:
        stored = await self.registry.spec(job)
        if stored is None:
            return None
        spec, step = _read(stored)
        memoized = _memoized(stored)
        logic = JobLogic(
            memoized,
            memoized if as_watermark_step(step) else None,
            step_version(spec.step),
            None,
        )
        if self.as_user_code and job == job_chain.CLEAN.id:

            async def run_user_code(batch: pl.DataFrame) -> Outcome:
                await self.process.gate()
                await self.process.delay()
                return memoized.apply(hangar, 0, batch)

            logic = JobLogic(None, None, logic.step_version, run_user_code)
        if self.drifts and logic.step is not None:
            logic = replace(
                logic, step=DriftingStep(memoized, lambda: runner.status == "replaying")
            )
        try:
            hangar = await self.snapshots.open(
                job, part, epoch, lambda held: self.machine.open(held, self.process)
            )
        except HangarInUse:
            own = self.machine.folders(self.process).state((job, part), epoch)
            self.machine.refused(own, self.process)
            raise
        runner = Runner(
            spec, part, epoch, logic, hangar, self.broker, ProcessPool(self.process), LIMITS
        )
        return runner

    def discard_state(self, job: JobId, part: PartitionIndex, why: Exception) -> None:
        self.snapshots.discard_state(job, part, why)

    async def close(self, runner: Runner) -> None:
        if self.process.alive:
            runner.hangar.close()

    def jobs_with_state(self) -> set[JobId]:
        return self.machine.stored()

    async def delete_state(self, job: JobId) -> None:
        self.machine.forget(job)

    async def superseded(self, running: Mapping[JobPartition, Epoch]) -> list[Path]:
        await self.process.delay()
        return self.machine.folders(self.process).superseded(running)

    async def delete_superseded(self, state: Path) -> bool:
        await self.process.delay()
        await self.process.gate()
        return self.machine.folders(self.process).delete_free(state)


@dataclass(eq=False)
class LiveSlot:
    """A slot that has started and has not ended."""

    slot: Slot
    machine: Machine
    process: Process
    supervisor: Supervisor
    service: SlotService
    task: asyncio.Task[None]
    drifts: bool

    @property
    def is_running(self) -> bool:
        return self.process.alive and not self.process.paused


class RecordingRegistry(MemoryRegistry):
    """The in-memory registry; it can drop jobs, and records epochs that were granted twice."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self.granted_twice: list[str] = []
        self._granted: set[tuple[JobPartition, Epoch]] = set()

    def drop(self, job: JobId) -> None:
        del self._specs[job]
        self._rows = {key: row for key, row in self._rows.items() if key[0] != job}

    def owner(self, key: JobPartition) -> SlotId | None:
        """Return the slot that holds a live lease, None if there is none."""
        row = self._rows[key]
        return row.slot if row.until_ms > self._now_ms() else None

    async def claim(
        self, wanted: Sequence[tuple[JobPartition, Epoch]], slot: SlotId, lease_ms: Millis
    ) -> dict[JobPartition, Epoch]:
        won = await super().claim(wanted, slot, lease_ms)
        self.granted_twice += [
            f"epoch {epoch} of {key} was granted twice"
            for key, epoch in won.items()
            if (key, epoch) in self._granted
        ]
        self._granted |= set(won.items())
        return won

    def epochs(self) -> dict[JobPartition, Epoch]:
        return {key: row.epoch for key, row in self._rows.items()}
