"""A slot's side of snapshots: copies of its runners' states, and state for partitions it starts.

Theory. The checkpoint is created on the slot's worker thread, where stores are also opened and
closed, so a store is never closed under it; lookups and write batches continue beside it. The
position is read before: the copy holds at least that. Uploads run on other threads, one job
partition at a time, so that a snapshot pass costs a slot little at any moment. The folder of a copy
carries its owner's epoch. Slots of one machine share the disk, and a slot that lost the job
partition while it copied must not delete its successor's copy, or half a copy could become a
snapshot.

Starting: a partition may find local state from its last run here, or from long ago when this slot
owned it, or a corrupt one, or one that an earlier owner still holds (`engine.state_folders`). It
starts from one state as a whole, local state or one snapshot, never a mixture; a replaced state is
quarantined, not deleted. A restored folder gets its real name when it is complete, so a process
that dies before leaves nothing that could be taken for state. Which states may be used is decided
by `engine.starting_state`; this module does it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from fennel_core.engine import starting_state, state_progress
from fennel_core.engine.errors import EngineError, StateFormatError
from fennel_core.engine.iteration import WorkerPool
from fennel_core.engine.runner import Runner
from fennel_core.engine.starting_state import (
    Discarded,
    Event,
    FoundLocal,
    Limited,
    Phase,
    PutBack,
    Quarantined,
    Restored,
    StartedFromLog,
    StartingState,
    StateOrigin,
    Unopenable,
)
from fennel_core.engine.state_folders import HeldFolder, StateFolders
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

T = TypeVar("T")
log = structlog.get_logger(__name__)


Opener = Callable[[HeldFolder], Hangar]
"""Opens the store in a folder. The store releases the folder when it is closed."""


class RebuildExhausted(EngineError):
    """Every snapshot and the whole log were tried, and none led to the state that was written.

    The text names the next action: retry with the version that wrote the state, or commit the
    dataset under a new version.
    """

    code = "rebuild-exhausted"


@dataclass(frozen=True, slots=True)
class _OpenStore:
    """An open store and the progress that it holds."""

    hangar: Hangar
    progress: StateProgress


class Snapshots:
    """Takes snapshots of a slot's states and opens the state that a partition starts from.

    `unique` returns a new name for each call.
    """

    def __init__(
        self,
        context: SnapshotContext,
        folders: StateFolders,
        pool: WorkerPool,
        unique: Callable[[], str],
    ) -> None:
        self._context, self._folders, self._pool, self._unique = context, folders, pool, unique
        self._one_at_a_time = asyncio.Lock()
        self._sums: dict[JobPartition, Checksums] = {}
        self._starts: dict[JobPartition, StartingState] = {}

    async def take(self, runner: Runner) -> SnapshotTaken | SnapshotUnchanged | OwnershipLost:
        """Copy a running runner's state.

        Raises ConnectionsError, OSError, or HangarClosed if the runner stops in between.
        """
        job, part = runner.job.id, PartitionIndex(runner.part)
        folder = self._folders.checkpoint((job, part), runner.epoch)

        def copied() -> Path:
            for left in self._folders.checkpoints((job, part), runner.epoch):
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
                result = await transfer.take_snapshot(
                    self._context,
                    source,
                    lambda: self._pool.run(copied),
                    self._unique(),
                    sums,
                    self._starting((job, part)).unusable,
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
        """Start from another state next time, because the local state proved unusable."""
        self._record((job, part), Discarded(why))

    def origin(self, job: JobId, part: PartitionIndex) -> str:
        """Return what the current state was made from, as text for operators."""
        return self._starting((job, part)).description

    async def open(self, job: JobId, part: PartitionIndex, epoch: Epoch, opener: Opener) -> Hangar:
        """Open the state to start from: local state or the newest snapshot, whichever is ahead.

        If that is corrupt, the next best one is opened. Raises SystemUnavailable, OSError and
        HangarInUse; RebuildExhausted if even replay from the start of the log went wrong before.
        """
        partition = (job, part)
        if self._starting(partition).phase is Phase.DISCARDED:
            await self._quarantine(partition, epoch, self._starting(partition).reason)
        if (before := self._starting(partition).exclude_from) is not None:
            pointers = await self._context.pointers.of(job, part)
            later = frozenset(each.number for each in pointers if each.number >= before)
            self._record(partition, Limited(later))
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
        unusable = self._starting(partition).unusable
        pointers = [
            each
            for each in await self._context.pointers.of(*partition)
            if each.number not in unusable
        ]
        local = await self._open_local(partition, epoch, opener)
        try:
            if local is not None:
                pointers = await transfer.with_newest_position(self._context, pointers)
            position = None if local is None else state_progress.position_of(local.progress)
            restored = await self._restore(
                partition, epoch, transfer_plan.restore_candidates(position, pointers)
            )
        except BaseException:
            if local is not None:
                await asyncio.shield(self._pool.run(local.hangar.close))
            raise
        if restored is not None:
            return await self._replace(partition, epoch, opener, local, restored)
        if local is not None:
            self._record(partition, FoundLocal())
            return local.hangar
        if StateOrigin.LOG_START in self._starting(partition).excluded:
            raise _exhausted(partition)
        return await self._start_empty(partition, epoch, opener)

    async def _open_local(
        self, partition: JobPartition, epoch: Epoch, opener: Opener
    ) -> _OpenStore | None:
        """Open the local state; quarantine it and return None if it cannot be used."""

        def opened() -> _OpenStore | None:
            held = self._local(partition, epoch)
            return None if held is None else _opened(held, opener)

        try:
            return await self._unless_cancelled(opened, _close)
        except (HangarCorrupt, StateFormatError) as wrong:
            await self._quarantine(partition, epoch, str(wrong))
            return None

    async def _replace(
        self,
        partition: JobPartition,
        epoch: Epoch,
        opener: Opener,
        local: _OpenStore | None,
        restored: RestoredSnapshot,
    ) -> Hangar | None:
        """Make the restored folder the local state, in place of the one that is open, if any.

        If it is corrupt, exclude the snapshot, put back the state that it replaced, and return
        None.
        """
        if local is not None:
            await asyncio.shield(self._pool.run(local.hangar.close))
            why = f"snapshot {restored.pointer.manifest} is ahead of it"
            await self._quarantine(partition, epoch, why)
        staging, number = self._folders.restoring(partition, epoch), restored.pointer.number

        def installed() -> _OpenStore:
            held = self._folders.adopt(staging, partition, epoch)
            return _opened(held, opener)

        try:
            store = await self._unless_cancelled(installed, _close)
        except (HangarCorrupt, StateFormatError) as wrong:
            log.error(
                "snapshot is excluded",
                job=partition[0],
                part=partition[1],
                snapshot=restored.pointer.manifest,
                reason=str(wrong),
            )
            self._record(partition, Unopenable(number))
            await self._put_back(partition, epoch, replaced=local is not None)
            return None
        self._record(partition, Restored(number))
        _log_restored(restored)
        return store.hangar

    async def _put_back(self, partition: JobPartition, epoch: Epoch, *, replaced: bool) -> None:
        """Delete the local state; use the quarantined one, which it has `replaced`, again."""
        staging = self._folders.restoring(partition, epoch)

        def renamed() -> None:
            if (held := self._folders.own(partition, epoch)) is not None:
                held.move(staging)
                held.release()
            if replaced:
                kept = self._folders.quarantined(partition)
                self._folders.adopt(kept, partition, epoch).release()

        await self._pool.run(renamed)
        if replaced:
            self._record(partition, PutBack())
        await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)

    async def _start_empty(self, partition: JobPartition, epoch: Epoch, opener: Opener) -> Hangar:
        def created() -> _OpenStore:
            return _opened(self._folders.create(partition, epoch), opener)

        store = await self._unless_cancelled(created, _close)
        self._record(partition, StartedFromLog())
        return store.hangar

    async def _restore(
        self, partition: JobPartition, epoch: Epoch, pointers: Sequence[Pointer]
    ) -> RestoredSnapshot | None:
        """Download the first of these snapshots that is complete into the staging folder."""
        if not pointers:
            return None
        staging = self._folders.restoring(partition, epoch)
        await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
        restored = await transfer.restore_snapshot(self._context, pointers, STATE_FORMAT, staging)
        if restored is None:
            await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
        return restored

    async def _quarantine(self, partition: JobPartition, epoch: Epoch, why: str) -> None:
        """Keep the local state for inspection, replacing one that was quarantined before."""
        kept = self._folders.quarantined(partition)
        held = await self._unless_cancelled(lambda: self._local(partition, epoch), _release)
        if held is not None:
            try:
                await asyncio.to_thread(shutil.rmtree, kept, ignore_errors=True)
                held.move(kept)
            finally:
                held.release()
            log.error(
                "local state was quarantined",
                job=partition[0],
                part=partition[1],
                kept_as=str(kept),
                reason=why,
            )
        # Not before: if this task is cancelled, the state must still be discarded.
        self._record(partition, Quarantined())

    def _local(self, partition: JobPartition, epoch: Epoch) -> HeldFolder | None:
        """Hold the local state that the phase allows; None if there is none."""
        if self._starting(partition).phase is Phase.QUARANTINED:
            return self._folders.own(partition, epoch)
        return self._folders.take_over(partition, epoch)

    async def _unless_cancelled(self, work: Callable[[], T], undo: Callable[[T], None]) -> T:
        """Run `work` on the slot's worker; if the caller is cancelled, `undo` its result."""
        running = asyncio.ensure_future(self._pool.run(work))

        def undone(ended: asyncio.Future[T]) -> None:
            if not ended.cancelled() and ended.exception() is None:
                undo(ended.result())

        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(undone)
            raise

    def _starting(self, partition: JobPartition) -> StartingState:
        return self._starts.get(partition, starting_state.UNOPENED)

    def _record(self, partition: JobPartition, event: Event) -> None:
        self._starts[partition] = starting_state.after(self._starting(partition), event)


def _opened(held: HeldFolder, opener: Opener) -> _OpenStore:
    """Open the store in a folder; release the folder if that fails."""
    try:
        hangar = opener(held)
    except BaseException:
        held.release()
        raise
    try:
        return _OpenStore(hangar, state_progress.load(hangar))
    except BaseException:
        hangar.close()
        raise


def _close(store: _OpenStore | None) -> None:
    if store is not None:
        store.hangar.close()


def _release(held: HeldFolder | None) -> None:
    if held is not None:
        held.release()


def _exhausted(partition: JobPartition) -> RebuildExhausted:
    job, part = partition
    return RebuildExhausted(
        f"{job}[{part}] cannot be rebuilt: replay from every snapshot and from the start "
        "of the log produced other results than were written (another version of the "
        "platform or of its libraries?). Run the version that wrote it and "
        f"`fennel-core recover --job {job}` (DAG recovery), which tries all of them again; "
        "to accept the state that this version computes, add --trust-outputs"
    )


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
