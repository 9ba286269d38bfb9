"""Create runners for a supervisor from the job's specification and local state or a snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import polars as pl
from rocksdict import Cache

from fennel_core.admission.validator import Validator
from fennel_core.bank.registry import Registry
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Job
from fennel_core.connections.erasures import Erased
from fennel_core.engine import source_replay, usercode
from fennel_core.engine.backfill.client import BackfillClient
from fennel_core.engine.broker import Broker
from fennel_core.engine.iteration import JobLogic, WorkerPool
from fennel_core.engine.runner import Runner, RunnerLimits
from fennel_core.engine.snapshots import Snapshots
from fennel_core.engine.state_folders import HeldFolder, StateFolders
from fennel_core.executors.client import Callbacks, Executors
from fennel_core.hangar.rocks import RocksHangar
from fennel_core.hangar.store import Hangar
from fennel_core.operators.build import as_watermark_step, build
from fennel_core.operators.spec import (
    SourceReplaySpec,
    UserCodeSpec,
    has_native_step,
    step_version,
)
from fennel_core.operators.step import Outcome
from fennel_core.vocab.ids import Epoch, JobId, JobPartition, PartitionIndex, WorkspaceId

T = TypeVar("T")
CallbacksFor = Callable[[WorkspaceId, str], Callbacks]
ReadErased = Callable[[WorkspaceId], Awaitable[Erased]]


class SingleThreadPool:
    """`WorkerPool` with one thread: a slot has one core, and one thread keeps results in order."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="step")

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class RocksStores:
    """Opens one RocksDB per job partition; all share one block cache."""

    def __init__(self, cache_bytes: int) -> None:
        self._cache = Cache(cache_bytes)

    def open(self, held: HeldFolder) -> Hangar:
        """Open the store in a folder, which is released when the store is closed."""
        return RocksHangar(held.path, self._cache, held.release)


class RunnerFactory(Protocol):
    """Creates runners and manages their local state."""

    async def make(self, job: JobId, part: PartitionIndex, epoch: Epoch) -> Runner | None:
        """Return a runner over the job partition's state; None if the registry lacks the job."""

    def discard_state(self, job: JobId, part: PartitionIndex, why: Exception) -> None:
        """Start the next runner of this job partition from another state than the last one."""

    async def close(self, runner: Runner) -> None:
        """Close the runner's store and keep its local state."""

    def jobs_with_state(self) -> set[JobId]:
        """Return the jobs that have local state on this machine."""

    async def delete_state(self, job: JobId) -> None:
        """Delete a job's local state."""

    async def superseded(self, running: Mapping[JobPartition, Epoch]) -> list[Path]:
        """Return the states of earlier owners of job partitions that run here, by epoch."""

    async def delete_superseded(self, state: Path) -> bool:
        """Delete the state of an earlier owner; return False if that process still holds it."""


class SlotRunnerFactory:
    """`RunnerFactory` of a slot: RocksDB stores, restored by `engine.snapshots`."""

    def __init__(
        self,
        registry: Registry,
        broker: Broker,
        stores: RocksStores,
        folders: StateFolders,
        snapshots: Snapshots,
        executors: Executors,
        callbacks: CallbacksFor,
        read_erased: ReadErased,
        limits: RunnerLimits,
        pool: WorkerPool,
        backfill_client: BackfillClient,
    ) -> None:
        self._registry, self._broker, self._stores, self._limits, self._pool = (
            registry,
            broker,
            stores,
            limits,
            pool,
        )
        self._folders = folders
        self._snapshots, self._executors, self._callbacks, self._backfill_client = (
            snapshots,
            executors,
            callbacks,
            backfill_client,
        )
        self._read_erased = read_erased
        self._specs: dict[JobId, Job] = {}

    async def make(self, job: JobId, part: PartitionIndex, epoch: Epoch) -> Runner | None:
        spec = self._specs.get(job)
        if spec is None:
            stored = await self._registry.spec(job)
            if stored is None:
                return None
            spec = self._specs[job] = stored_names.loads(stored, Job)
        step = build(spec.step) if has_native_step(spec.step) else None
        logic = JobLogic(
            step,
            None if step is None else as_watermark_step(step),
            step_version(spec.step),
            self._awaited(spec),
        )
        hangar = await self._snapshots.open(job, part, epoch, self._stores.open)
        return Runner(
            spec,
            part,
            epoch,
            logic,
            hangar,
            self._broker,
            self._pool,
            self._limits,
            self._backfill_client,
        )

    def _awaited(self, job: Job) -> Callable[[pl.DataFrame], Awaitable[Outcome]] | None:
        """Return the computation of a job without a native step, None for other jobs."""
        # A job is one version of its code: another one is another job.
        callbacks = self._callbacks(job.workspace, job.id)
        match job.step:
            case UserCodeSpec() as user_code:
                run = partial(self._executors.run, callbacks=callbacks)
                return partial(usercode.run_user_code, run, user_code, job.title)
            case SourceReplaySpec() as replay:
                return partial(
                    source_replay.run_source_replay,
                    Validator(self._executors, callbacks),
                    partial(self._read_erased, job.workspace),
                    replay,
                    job.outputs[0].topic,
                )
            case _:
                return None

    def discard_state(self, job: JobId, part: PartitionIndex, why: Exception) -> None:
        self._snapshots.discard_state(job, part, why)

    async def close(self, runner: Runner) -> None:
        # The awaiting task may be cancelled. Without shield() the queued close() would be cancelled
        # too, the store would stay open in this process, and the next owner would find it locked.
        await asyncio.shield(self._pool.run(runner.hangar.close))

    def jobs_with_state(self) -> set[JobId]:
        return self._folders.jobs()

    async def delete_state(self, job: JobId) -> None:
        self._specs.pop(job, None)
        await self._pool.run(partial(self._folders.delete_job, job))

    async def superseded(self, running: Mapping[JobPartition, Epoch]) -> list[Path]:
        return await asyncio.to_thread(self._folders.superseded, running)

    async def delete_superseded(self, state: Path) -> bool:
        return await asyncio.to_thread(self._folders.delete_free, state)
