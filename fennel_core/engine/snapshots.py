"""A slot's side of snapshots: copies of its runners' states, and state for partitions it starts.

Theory. The checkpoint is created on the slot's worker thread, where stores are also opened and
closed, so a store is never closed under it; lookups and write batches continue beside it. The
position is read before: the copy holds at least that. Uploads run on other threads, one job
partition at a time, so that a snapshot pass costs a slot little at any moment. The folder of a copy
carries its owner's epoch. Slots of one machine share the disk, and a slot that lost the job
partition while it copied must not delete its successor's copy, or half a copy could become a
snapshot.

Starting: a partition may find local state from its last run here, or from long ago when this slot
owned it, or a corrupt one. It starts from one state as a whole, local state or one snapshot, never
a mixture; a replaced state is quarantined, not deleted. A restored folder gets its real name when
it is complete, so a process that dies before leaves nothing that could be taken for state.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from enum import Enum, auto
from pathlib import Path

import structlog

from fennel_core.engine import state_progress
from fennel_core.engine.errors import (
    EngineError,
    RebuildRequested,
    StateDiscarded,
    StateFormatError,
)
from fennel_core.engine.iteration import WorkerPool
from fennel_core.engine.runner import Runner
from fennel_core.engine.state_progress import STATE_FORMAT, StateProgress
from fennel_core.hangar.store import Hangar, HangarCorrupt
from fennel_core.snapshots import transfer, transfer_plan
from fennel_core.snapshots.checksums import Checksums
from fennel_core.snapshots.store import Pointer
from fennel_core.snapshots.transfer import (
    OwnershipLost,
    RestoredSnapshot,
    SnapshotContext,
    SnapshotSource,
    SnapshotTaken,
    SnapshotUnchanged,
)
from fennel_core.vocab.ids import Epoch, JobId, JobPartition, PartitionIndex

log = structlog.get_logger(__name__)


Opener = Callable[[JobId, PartitionIndex], Hangar]
"""Opens the local state of a job partition."""


class RebuildExhausted(EngineError):
    """Every snapshot and the whole log were tried, and none led to the state that was written.

    The text names the next action: retry with the version that wrote the state, or commit the
    dataset under a new version.
    """

    code = "rebuild-exhausted"


class StateOrigin(Enum):
    """The origin of a state that was not restored from a snapshot."""

    LOCAL = auto()
    """It was on the disk when this process started."""
    LOG_START = auto()
    """It is replayed from the start of the log."""


class Snapshots:
    """Takes snapshots of a slot's states and opens the state that a partition starts from.

    `root` is the folder of local state, `<root>/<job>/<part>`. `unique` returns a new name for
    each call.
    """

    def __init__(
        self, context: SnapshotContext, root: Path, pool: WorkerPool, unique: Callable[[], str]
    ) -> None:
        self._context, self._root, self._pool, self._unique = context, root, pool, unique
        self._one_at_a_time = asyncio.Lock()
        self._sums: dict[JobPartition, Checksums] = {}
        self._origins: dict[JobPartition, int | StateOrigin] = {}
        """What each local state was made from: a snapshot's number, or else its origin."""
        self._excluded: dict[JobPartition, set[int | StateOrigin]] = {}
        self._corrupt_once: dict[JobPartition, set[int]] = {}
        """Snapshots whose restored state was found corrupt once."""
        self._discard_reasons: dict[JobPartition, str] = {}
        """Local states to quarantine when they are opened next, with the reasons."""
        self._newer_limits: dict[JobPartition, int] = {}
        """Snapshots from this number on are excluded when the partition is opened next."""

    async def take(self, runner: Runner) -> SnapshotTaken | SnapshotUnchanged | OwnershipLost:
        """Copy a running runner's state.

        Raises ConnectionsError, OSError, or HangarClosed if the runner stops in between.
        """
        job, part = runner.job.id, PartitionIndex(runner.part)
        folder = self._root / job / f"checkpoint-{part}-{runner.epoch}"

        def copied() -> Path:
            for left in folder.parent.glob(f"checkpoint-{part}-*"):
                if int(left.name.rpartition("-")[2]) <= runner.epoch:
                    # Of a process that died, or that may not add a pointer to its copy any more.
                    shutil.rmtree(left, ignore_errors=True)
            runner.hangar.checkpoint(folder)
            return folder

        async with self._one_at_a_time:
            source = SnapshotSource(
                job,
                part,
                runner.epoch,
                STATE_FORMAT,
                state_progress.position_of(runner.persist_offsets()),
            )
            sums = self._sums.setdefault((job, part), Checksums())
            try:
                unusable = [
                    number
                    for number in self._excluded.get((job, part), ())
                    if not isinstance(number, StateOrigin)
                ]
                result = await transfer.take_snapshot(
                    self._context,
                    source,
                    lambda: self._pool.run(copied),
                    self._unique(),
                    sums,
                    unusable,
                )
            finally:
                await asyncio.shield(
                    self._pool.run(lambda: shutil.rmtree(folder, ignore_errors=True))
                )
        if isinstance(result, SnapshotTaken):
            log.info(
                "snapshot taken",
                job=job,
                part=part,
                snapshot=result.manifest,
                files=result.files,
                uploaded_bytes=result.uploaded_bytes,
            )
        return result

    def discard_state(self, job: JobId, part: PartitionIndex, why: Exception) -> None:
        """Start from another state next time, because the local state proved unusable.

        A snapshot whose replay failed is excluded as long as this process lives. Corruption and a
        requested rebuild say nothing about the snapshot that the state came from, whose checksums
        were right. Corruption that returns with the same snapshot does: its files were corrupt
        before they were copied.
        """
        partition = (job, part)
        self._discard_reasons[partition] = str(why)
        if isinstance(why, RebuildRequested):
            self._excluded.pop(partition, None)
            self._corrupt_once.pop(partition, None)
            self._newer_limits.pop(partition, None)
            if why.before is not None:
                self._newer_limits[partition] = why.before
        origin = self._origins.get(partition, StateOrigin.LOCAL)
        if not isinstance(why, HangarCorrupt | StateDiscarded):
            if origin is not StateOrigin.LOCAL:
                self._excluded.setdefault(partition, set()).add(origin)
        elif isinstance(origin, int) and not isinstance(why, RebuildRequested):
            corrupt = self._corrupt_once.setdefault(partition, set())
            self._excluded.setdefault(partition, set()).update({origin} & corrupt)
            corrupt.add(origin)

    def origin(self, job: JobId, part: PartitionIndex) -> str:
        """Return what the current state was made from, as text for operators."""
        match self._origins.get((job, part)):
            case None:
                return "nothing yet"
            case StateOrigin.LOCAL:
                return "its local state"
            case StateOrigin.LOG_START:
                return "the start of its log"
            case number:
                return f"snapshot #{number}"

    async def open(self, job: JobId, part: PartitionIndex, epoch: Epoch, opener: Opener) -> Hangar:
        """Open the state to start from: local state or the newest snapshot, whichever is ahead.

        If that is corrupt, the next best one is opened. Raises SystemUnavailable and OSError;
        RebuildExhausted if even replay from the start of the log went wrong before.
        """
        partition = (job, part)
        if (why := self._discard_reasons.get(partition)) is not None:
            await self._quarantine(partition, why)
            # Not before: if this task is cancelled in between, the state must still be discarded.
            self._discard_reasons.pop(partition, None)
            self._origins.pop(partition, None)
        if (before := self._newer_limits.get(partition)) is not None:
            later = {
                pointer.number
                for pointer in await self._context.pointers.of(job, part)
                if pointer.number >= before
            }
            self._excluded.setdefault(partition, set()).update(later)
            self._newer_limits.pop(partition, None)
        best = None
        while best is None:
            best = await self._open_best(partition, epoch, opener)
        return best

    async def _open_best(
        self, partition: JobPartition, epoch: Epoch, opener: Opener
    ) -> Hangar | None:
        """Try once to `open`.

        Returns None if the chosen snapshot cannot be opened; it is excluded from then on.
        """
        job, part = partition
        pointers = [
            p
            for p in await self._context.pointers.of(job, part)
            if p.number not in self._excluded.get(partition, ())
        ]
        local = await self._open_local(partition, opener)
        try:
            if local is not None:
                pointers = await transfer.with_newest_position(self._context, pointers)
            restored = await self._restore(
                partition,
                epoch,
                transfer_plan.restore_candidates(
                    None if local is None else state_progress.position_of(local[1]), pointers
                ),
            )
        except BaseException:
            if local is not None:
                await asyncio.shield(self._pool.run(local[0].close))
            raise
        if restored is None and local is not None:
            self._origins.setdefault(partition, StateOrigin.LOCAL)
            return local[0]
        if restored is not None:
            if local is not None:
                await asyncio.shield(self._pool.run(local[0].close))
                await self._quarantine(
                    partition, f"snapshot {restored.pointer.manifest} is ahead of it"
                )
            return await self._install(partition, epoch, opener, restored, local is not None)
        if StateOrigin.LOG_START in self._excluded.get(partition, ()):
            raise RebuildExhausted(
                f"{job}[{part}] cannot be rebuilt: replay from every snapshot and from the start "
                "of the log produced other results than were written (another version of the "
                "platform or of its libraries?). Run the version that wrote it and "
                f"`fennel-core recover --job {job}` (DAG recovery), which tries all of them again; "
                "to accept the state that this version computes, add --trust-outputs"
            )
        self._origins[partition] = StateOrigin.LOG_START
        return (await self._open_store(partition, opener))[0]

    async def _install(
        self,
        partition: JobPartition,
        epoch: Epoch,
        opener: Opener,
        restored: RestoredSnapshot,
        replaced: bool,
    ) -> Hangar | None:
        """Make the restored folder the local state and open it.

        If it is corrupt, exclude the snapshot, put back the state that it `replaced`, and return
        None.
        """
        folder = self._folder(partition)
        await asyncio.to_thread(self._staging_folder(partition, epoch).rename, folder)
        self._origins[partition] = restored.pointer.number
        try:
            opened = await self._open_store(partition, opener)
        except (HangarCorrupt, StateFormatError) as wrong:
            log.error(
                "snapshot is excluded",
                job=partition[0],
                part=partition[1],
                snapshot=restored.pointer.manifest,
                reason=str(wrong),
            )
            self._excluded.setdefault(partition, set()).add(restored.pointer.number)
            self._origins.pop(partition)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            if replaced:
                await asyncio.to_thread(self._quarantine_folder(partition).rename, folder)
            return None
        _log_restored(restored)
        return opened[0]

    async def _restore(
        self, partition: JobPartition, epoch: Epoch, pointers: Sequence[Pointer]
    ) -> RestoredSnapshot | None:
        """Download the first of these snapshots that is complete into the staging folder."""
        if not pointers:
            return None
        staging = self._staging_folder(partition, epoch)
        await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
        restored = await transfer.restore_snapshot(self._context, pointers, STATE_FORMAT, staging)
        if restored is None:
            await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
        return restored

    async def _open_local(
        self, partition: JobPartition, opener: Opener
    ) -> tuple[Hangar, StateProgress] | None:
        """Open the local state; quarantine it and return None if it cannot be used."""
        if not await asyncio.to_thread(self._folder(partition).exists):
            return None

        try:
            return await self._open_store(partition, opener)
        except (HangarCorrupt, StateFormatError) as wrong:
            await self._quarantine(partition, str(wrong))
            return None

    async def _open_store(
        self, partition: JobPartition, opener: Opener
    ) -> tuple[Hangar, StateProgress]:
        """Open the store in the local folder and read its progress.

        A cancelled caller leaves no store open, or the next owner could not open it.
        """

        def opened() -> tuple[Hangar, StateProgress]:
            hangar = opener(*partition)
            try:
                return hangar, state_progress.load(hangar)
            except (HangarCorrupt, StateFormatError):
                hangar.close()
                raise

        opening = asyncio.ensure_future(self._pool.run(opened))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise

    async def _quarantine(self, partition: JobPartition, why: str) -> None:
        """Keep the local state for inspection, replacing one that was quarantined before."""
        folder, kept = self._folder(partition), self._quarantine_folder(partition)
        if await asyncio.to_thread(folder.exists):
            await asyncio.to_thread(shutil.rmtree, kept, ignore_errors=True)
            await asyncio.to_thread(folder.rename, kept)
            log.error(
                "local state was quarantined",
                job=partition[0],
                part=partition[1],
                kept_as=str(kept),
                reason=why,
            )

    def _folder(self, partition: JobPartition) -> Path:
        return self._root / partition[0] / str(partition[1])

    def _quarantine_folder(self, partition: JobPartition) -> Path:
        return self._root / partition[0] / f"quarantined-{partition[1]}"

    def _staging_folder(self, partition: JobPartition, epoch: Epoch) -> Path:
        return self._root / partition[0] / f"restoring-{partition[1]}-{epoch}"


def _close_opened(opening: asyncio.Future[tuple[Hangar, StateProgress]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()


def _log_restored(restored: RestoredSnapshot) -> None:
    position = restored.manifest.position
    log.info(
        "state restored from snapshot",
        job=restored.pointer.job,
        part=restored.pointer.part,
        snapshot=restored.pointer.manifest,
        iteration=position.iteration,
        replayed=position.replayed,
        offsets=dict(position.offsets),
    )
