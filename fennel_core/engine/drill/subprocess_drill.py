"""Drills beside a running slot: a copy of the live state is made in it, everything else is done by
a process of its own, and slowly.

Theory. A drill reads a whole state and works out what a recovery would: seconds of a core, in
Python, beside a runner that has to answer within milliseconds. So the slot only makes the copy
(hard links), as it does for a snapshot, and a child process of the lowest priority does the rest.
It has no producer and fences nobody; its scratch is below the job's folder and goes with it,
whoever dies. When its slot dies the child ends too. One drill at a time: a slot has one disk.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import polars as pl
from rocksdict import Cache

from fennel_core.blueprints.spec import Job
from fennel_core.connections import postgres, s3
from fennel_core.connections.s3 import S3ObjectStore
from fennel_core.engine.backfill.client import QueuedBackfillClient
from fennel_core.engine.backfill.queue import BackfillQueue
from fennel_core.engine.drill.compare import drill_partition
from fennel_core.engine.environment import environment_hash
from fennel_core.engine.errors import ReplayMismatch
from fennel_core.engine.iteration import JobLogic, WorkerPool
from fennel_core.engine.kafka import KafkaBroker
from fennel_core.engine.runner import Runner, RunnerLimits
from fennel_core.engine.runner_factory import SingleThreadPool
from fennel_core.hangar.rocks import RocksHangar
from fennel_core.hangar.store import Hangar, HangarCorrupt
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.operators.build import as_watermark_step, build
from fennel_core.operators.spec import UserCodeSpec, step_version
from fennel_core.operators.step import Outcome
from fennel_core.settings.model import Settings
from fennel_core.snapshots.drills import DrillFinding, DrillVerdict
from fennel_core.snapshots.postgres import PostgresPointers
from fennel_core.snapshots.store import Pointer
from fennel_core.snapshots.transfer import SnapshotContext
from fennel_core.telemetry import logs
from fennel_core.vocab.ids import Epoch, PartitionIndex

NICE: Final = 15
CACHE_BYTES: Final = 32 * 1024 * 1024
PARENT_CHECK_S: Final = 0.5
LIVE, SCRATCH = "live", "restored"


@dataclass(frozen=True, slots=True)
class DrillTask:
    """What the child is handed: `folder` holds the copy of the live state and takes the
    snapshot.
    """

    settings: Settings
    job: Job
    part: PartitionIndex
    epoch: Epoch
    pointer: Pointer
    folder: Path


class DrillRunner:
    """A slot's side. `root` is the folder of local state."""

    def __init__(self, settings: Settings, tools: SnapshotContext, pool: WorkerPool) -> None:
        self._settings, self._tools, self._pool = settings, tools, pool
        self._one_at_a_time = asyncio.Lock()

    async def run(self, runner: Runner, max_bytes: int) -> DrillFinding:
        """Drill the job partition of a running runner; a state of more than `max_bytes` is skipped.
        SystemUnavailable, HangarClosed and OSError pass through.
        """
        job, part = runner.job, PartitionIndex(runner.part)
        folder = self._settings.state_dir / job.id / f"drill-{part}-{runner.epoch}"
        async with self._one_at_a_time:
            pointers = await self._tools.pointers.of(
                job.id, part
            )  # before the copy is made: what it holds is that or more
            if not pointers:
                return DrillFinding(
                    DrillVerdict.SKIPPED,
                    "it has no snapshot yet (`fennel-core snapshot`, DAG snapshot)",
                )
            try:
                size_bytes = await self._pool.run(
                    partial(_copied, runner.hangar, folder, runner.epoch)
                )
                if size_bytes > max_bytes:
                    return DrillFinding(
                        DrillVerdict.SKIPPED,
                        f"its state is {size_bytes} bytes, more than a drill may "
                        f"read now ({max_bytes})",
                    )
                return await _in_child(
                    DrillTask(self._settings, job, part, runner.epoch, pointers[0], folder)
                )
            except HangarCorrupt as damaged:
                runner.discard_state(str(damaged))
                return DrillFinding(
                    DrillVerdict.CORRUPT, f"the live state cannot be read, it is rebuilt: {damaged}"
                )
            finally:
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))


def _copied(hangar: Hangar, folder: Path, epoch: int) -> int:
    """Copy the live state; how many bytes its files have."""
    part = folder.name.split("-")[1]
    for left in folder.parent.glob(f"drill-{part}-*"):
        if int(left.name.rpartition("-")[2]) <= epoch:
            shutil.rmtree(
                left, ignore_errors=True
            )  # of a process that died, or of an owner before us
    hangar.checkpoint(folder / LIVE)
    return sum(path.stat().st_size for path in (folder / LIVE).iterdir())


async def _in_child(task: DrillTask) -> DrillFinding:
    words = [sys.executable, "-m", __name__]
    child = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        said, _ = await child.communicate(pickle.dumps(task))
    finally:
        if child.returncode is None:
            child.kill()
    if not said:
        return DrillFinding(
            DrillVerdict.UNKNOWN,
            f"the drill's process ended with {child.returncode} and without an "
            "answer: see the engine's log",
        )
    finding = pickle.loads(said)  # noqa: S301  # from a child of our own, over its pipe
    assert isinstance(finding, DrillFinding)
    return finding


async def _carried_out(task: DrillTask) -> DrillFinding:
    settings = task.settings
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="drill", size=1
    ) as pool:
        broker = KafkaBroker(settings)
        try:
            tools = SnapshotContext(
                S3ObjectStore(s3.client(settings), settings.s3_bucket), PostgresPointers(pool)
            )

            async def sleep(ms: int) -> None:
                await asyncio.sleep(ms / 1000)

            backfill_client = QueuedBackfillClient(
                PostgresHistoryFiles(pool),
                BackfillQueue(pool),
                tools.objects,
                settings.backfill_from_rows,
                sleep,
            )
            limits = RunnerLimits(settings.iteration_bytes, environment_hash())
            threads, cache = SingleThreadPool(), Cache(CACHE_BYTES)

            def opener(path: Path) -> Hangar:
                return RocksHangar(path, cache)

            def runner_over(hangar: Hangar) -> Runner:
                return Runner(
                    task.job,
                    task.part,
                    task.epoch,
                    work_of(task.job),
                    hangar,
                    broker,
                    threads,
                    limits,
                    backfill_client,
                )

            live = opener(task.folder / LIVE)
            try:
                return await drill_partition(
                    tools, task.pointer, live, task.folder / SCRATCH, opener, runner_over
                )
            finally:
                live.close()
        finally:
            await broker.close()


def work_of(job: Job) -> JobLogic:
    """What a rehearsal computes: user code is never run, and where it is all there is, there is no
    state to replay.
    """

    async def refuse(_: pl.DataFrame) -> Outcome:
        raise ReplayMismatch("a job of user code keeps no state, and its marker speaks of some")

    step = None if isinstance(job.step, UserCodeSpec) else build(job.step)
    return JobLogic(
        step,
        None if step is None else as_watermark_step(step),
        step_version(job.step),
        refuse if step is None else None,
    )


def main() -> None:
    """Read a task from stdin, write what was found to stdout."""
    answer = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no part of the answer
    os.nice(NICE)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    task: DrillTask = pickle.load(sys.stdin.buffer)  # noqa: S301  # from our own parent, over its pipe
    logs.configure("drill", task.settings.log_level, hidden=logs.secrets_of(task.settings))
    found = asyncio.run(_carried_out(task))
    with os.fdopen(answer, "wb") as stream:
        stream.write(pickle.dumps(found))


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


if __name__ == "__main__":
    from fennel_core.engine.drill import subprocess_drill

    subprocess_drill.main()  # not `main`: what is pickled must bear the module's name
