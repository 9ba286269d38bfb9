"""Run drills beside a slot: the slot copies the live state, a child process does the rest, slowly.

Theory. A drill reads a whole state and replays what a recovery would: seconds of CPU time in
Python, beside runners that must respond within milliseconds. So the slot only makes the copy (hard
links), as for a snapshot, and a child process of low priority does the rest. The child has no
producer and fences no owner. Its scratch folder is in the job's folder and is removed with it,
whichever process dies first; when the slot dies, the child exits too. A slot runs one drill at a
time, because it has one disk.
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
from fennel_core.connections import postgres
from fennel_core.connections.installation import installation_objects
from fennel_core.engine.backfill.client import QueuedBackfillClient
from fennel_core.engine.backfill.queue import BackfillQueue
from fennel_core.engine.drill.compare import drill_partition
from fennel_core.engine.environment import environment_hash
from fennel_core.engine.errors import ReplayMismatch
from fennel_core.engine.iteration import JobLogic, WorkerPool
from fennel_core.engine.kafka.broker import KafkaBroker
from fennel_core.engine.runner import Runner, RunnerLimits
from fennel_core.engine.runner_factory import SingleThreadPool
from fennel_core.hangar.rocks import RocksHangar
from fennel_core.hangar.store import Hangar, HangarCorrupt
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.operators.build import as_watermark_step, build
from fennel_core.operators.spec import has_native_step, step_version
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
    """The input of the child process.

    `folder` holds the copy of the live state and receives the snapshot.
    """

    settings: Settings
    job: Job
    part: PartitionIndex
    epoch: Epoch
    pointer: Pointer
    folder: Path


class DrillRunner:
    """The slot's side of drills."""

    def __init__(
        self, settings: Settings, state_dir: Path, context: SnapshotContext, pool: WorkerPool
    ) -> None:
        """`state_dir`: the installation's folder of local states."""
        self._settings, self._state_dir, self._context, self._pool = (
            settings,
            state_dir,
            context,
            pool,
        )
        self._one_at_a_time = asyncio.Lock()

    async def run(self, runner: Runner, max_bytes: int) -> DrillFinding:
        """Drill the job partition of a running runner.

        A state of more than `max_bytes` is skipped. Raises SystemUnavailable, HangarClosed or
        OSError.
        """
        job, part = runner.job, PartitionIndex(runner.part)
        folder = self._state_dir / job.id / f"drill-{part}-{runner.epoch}"
        async with self._one_at_a_time:
            # Read before the copy is made, so that the copy is not behind the snapshot.
            pointers = await self._context.pointers.of(job.id, part)
            if not pointers:
                return DrillFinding(
                    DrillVerdict.SKIPPED,
                    "it has no snapshot yet (`fennel-core snapshot`, DAG snapshot)",
                )
            try:
                size_bytes = await self._pool.run(
                    partial(_copy_live_state, runner.hangar, folder, runner.epoch)
                )
                if size_bytes > max_bytes:
                    return DrillFinding(
                        DrillVerdict.SKIPPED,
                        f"its state is {size_bytes} bytes, more than a drill may "
                        f"read now ({max_bytes})",
                    )
                return await _run_in_child(
                    DrillTask(self._settings, job, part, runner.epoch, pointers[0], folder)
                )
            except HangarCorrupt as damaged:
                runner.discard_state(str(damaged))
                return DrillFinding(
                    DrillVerdict.CORRUPT, f"the live state cannot be read and is rebuilt: {damaged}"
                )
            finally:
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))


def _copy_live_state(hangar: Hangar, folder: Path, epoch: int) -> int:
    """Copy the live state and return the size of its files in bytes."""
    part = folder.name.split("-")[1]
    for left in folder.parent.glob(f"drill-{part}-*"):
        if int(left.name.rpartition("-")[2]) <= epoch:
            # Of a process that died, or of an earlier owner.
            shutil.rmtree(left, ignore_errors=True)
    hangar.checkpoint(folder / LIVE)
    return sum(path.stat().st_size for path in (folder / LIVE).iterdir())


async def _run_in_child(task: DrillTask) -> DrillFinding:
    command = [sys.executable, "-m", __name__]
    child = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await child.communicate(pickle.dumps(task))
    finally:
        if child.returncode is None:
            child.kill()
    if not output:
        return DrillFinding(
            DrillVerdict.UNKNOWN,
            f"the drill's process exited with {child.returncode} without a finding; see the "
            "engine's log",
        )
    finding = pickle.loads(output)  # noqa: S301  # from a child of our own, over its pipe
    assert isinstance(finding, DrillFinding)
    return finding


async def _run_drill(task: DrillTask) -> DrillFinding:
    settings = task.settings
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name="drill", size=1
    ) as pool:
        broker = KafkaBroker(settings)
        try:
            context = SnapshotContext(installation_objects(settings, pool), PostgresPointers(pool))

            async def sleep(ms: int) -> None:
                await asyncio.sleep(ms / 1000)

            backfill_client = QueuedBackfillClient(
                PostgresHistoryFiles(pool),
                BackfillQueue(pool),
                context.objects,
                settings.backfill_from_rows,
                sleep,
            )
            limits = RunnerLimits(
                settings.iteration_bytes, environment_hash(), settings.iteration_rows
            )
            threads, cache = SingleThreadPool(), Cache(CACHE_BYTES)

            def opener(path: Path) -> Hangar:
                return RocksHangar(path, cache)

            def runner_over(hangar: Hangar) -> Runner:
                return Runner(
                    task.job,
                    task.part,
                    task.epoch,
                    replay_logic(task.job),
                    hangar,
                    broker,
                    threads,
                    limits,
                    backfill_client,
                )

            live = opener(task.folder / LIVE)
            try:
                return await drill_partition(
                    context, task.pointer, live, task.folder / SCRATCH, opener, runner_over
                )
            finally:
                live.close()
        finally:
            await broker.close()


def replay_logic(job: Job) -> JobLogic:
    """Return the logic that a replay runs: what the engine awaits never runs and has no state."""

    async def refuse(_: pl.DataFrame) -> Outcome:
        raise ReplayMismatch("the job has no state, but its marker records mutations of state")

    step = build(job.step) if has_native_step(job.step) else None
    return JobLogic(
        step,
        None if step is None else as_watermark_step(step),
        step_version(job.step),
        refuse if step is None else None,
    )


def main() -> None:
    """Read a task from stdin and write the finding to stdout."""
    output = os.dup(1)
    # Whatever a library prints must not become part of the finding.
    os.dup2(2, 1)
    os.nice(NICE)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    task: DrillTask = pickle.load(sys.stdin.buffer)  # noqa: S301  # from our own parent, over its pipe
    logs.configure("drill", task.settings.log_level, hidden=logs.secrets_of(task.settings))
    finding = asyncio.run(_run_drill(task))
    with os.fdopen(output, "wb") as stream:
        stream.write(pickle.dumps(finding))


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


if __name__ == "__main__":
    # Not `main()`: pickled classes must have the module's name, not `__main__`.
    from fennel_core.engine.drill import subprocess_drill

    subprocess_drill.main()
