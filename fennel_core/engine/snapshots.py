"""A slot's side of snapshots: copies of what its runners hold, and state for partitions that come
here without any.

Theory. The checkpoint is made on the slot's worker thread, where stores are also opened and closed,
so a store never goes away under it; lookups and write batches go on beside it. The position is read
before: what the copy holds is that or more. Uploads run on other threads, one job partition at a
time, so that a round of snapshots costs a slot little at any moment. A copy's folder carries its
owner's epoch: slots of one machine share the disk, and one that lost the job partition while it
copied must not remove its successor's copy under it (half a copy could be pointed at as a whole
one).

Coming: a partition may find local state here from its last life, or from a time long ago when this
slot owned it, or a damaged one. What it starts from is one thing as a whole, local state or one
snapshot, never a mixture; what is replaced is put aside, not deleted. A restored folder gets its
real name when it is complete: a process that dies before leaves nothing that could be taken for
state.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from enum import Enum, auto
from pathlib import Path

import structlog

from fennel_core.engine import state_progress
from fennel_core.engine.errors import RebuildRequested, StateDiscarded, StateFormatError
from fennel_core.engine.iteration import WorkerPool
from fennel_core.engine.runner import Runner
from fennel_core.engine.state_progress import STATE_FORMAT, StateProgress
from fennel_core.hangar.store import Hangar, HangarCorrupt
from fennel_core.snapshots import transfer, transfer_plan
from fennel_core.snapshots.checksums import Checksums
from fennel_core.snapshots.manifest import StatePosition
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


class RebuildExhausted(Exception):
    """Everything that the state could be rebuilt from has been tried."""


class StateOrigin(Enum):
    """Where a state came from that no snapshot gave."""

    DISK = auto()
    """It was here when this process came."""
    NOTHING = auto()
    """Replay from the log's beginning."""


class Snapshots:
    """`root` is the folder of local state, `<root>/<job>/<part>`; `unique` gives a name that nobody
    had before.
    """

    def __init__(
        self, tools: SnapshotContext, root: Path, pool: WorkerPool, unique: Callable[[], str]
    ) -> None:
        self._tools, self._root, self._pool, self._unique = tools, root, pool, unique
        self._one_at_a_time = asyncio.Lock()
        self._sums: dict[JobPartition, Checksums] = {}
        self._origins: dict[JobPartition, int | StateOrigin] = {}
        """What each local state was made from: the number of a snapshot, or where there was
        none.
        """
        self._passed_over: dict[JobPartition, set[int | StateOrigin]] = {}
        self._blamed: dict[JobPartition, set[int]] = {}
        """Snapshots whose state was damaged once."""
        self._doomed: dict[JobPartition, str] = {}
        """Local states that the next opening puts aside, and why."""
        self._before: dict[JobPartition, int] = {}
        """Numbers of snapshots from which on a person does not want any that exist when the
        partition is next opened.
        """

    async def take(self, runner: Runner) -> SnapshotTaken | SnapshotUnchanged | OwnershipLost:
        """Copy a running runner's state. SystemUnavailable, HangarClosed (it stopped meanwhile) and
        OSError pass through.
        """
        job, part = runner.job.id, PartitionIndex(runner.part)
        folder = self._root / job / f"checkpoint-{part}-{runner.epoch}"

        def copied() -> Path:
            for left in folder.parent.glob(f"checkpoint-{part}-*"):
                if int(left.name.rpartition("-")[2]) <= runner.epoch:
                    shutil.rmtree(
                        left, ignore_errors=True
                    )  # of a process that died, or that may no longer point at what it copies
            runner.hangar.checkpoint(folder)
            return folder

        async with self._one_at_a_time:
            subject = SnapshotSource(
                job, part, runner.epoch, STATE_FORMAT, _position(runner.persist_offsets())
            )
            sums = self._sums.setdefault((job, part), Checksums())
            try:
                passed = [
                    number
                    for number in self._passed_over.get((job, part), ())
                    if not isinstance(number, StateOrigin)
                ]
                made = await transfer.take_snapshot(
                    self._tools,
                    subject,
                    lambda: self._pool.run(copied),
                    self._unique(),
                    sums,
                    passed,
                )
            finally:
                await asyncio.shield(
                    self._pool.run(lambda: shutil.rmtree(folder, ignore_errors=True))
                )
        if isinstance(made, SnapshotTaken):
            log.info(
                "snapshot taken",
                job=job,
                part=part,
                snapshot=made.manifest,
                files=made.files,
                uploaded_bytes=made.uploaded_bytes,
            )
        return made

    def discard_state(self, job: JobId, part: PartitionIndex, why: Exception) -> None:
        """Start from something else next time: the local state proved unusable.

        A snapshot whose replay led there is passed over as long as this process lives. Damage and
        an order to rebuild say nothing about the snapshot that the state came from: its files were
        as they were written. Damage that comes back with the same snapshot does: the files were
        damaged before they were copied.
        """
        place = (job, part)
        self._doomed[place] = str(why)
        if isinstance(why, RebuildRequested):
            self._passed_over.pop(place, None)
            self._blamed.pop(place, None)
            self._before.pop(place, None)
            if why.before is not None:
                self._before[place] = why.before
        origin = self._origins.get(place, StateOrigin.DISK)
        if not isinstance(why, HangarCorrupt | StateDiscarded):
            if origin is not StateOrigin.DISK:
                self._passed_over.setdefault(place, set()).add(origin)
        elif isinstance(origin, int) and not isinstance(why, RebuildRequested):
            blamed = self._blamed.setdefault(place, set())
            self._passed_over.setdefault(place, set()).update({origin} & blamed)
            blamed.add(origin)

    def origin(self, job: JobId, part: PartitionIndex) -> str:
        """What the state that is there now was made from, for people."""
        match self._origins.get((job, part)):
            case None:
                return "nothing yet"
            case StateOrigin.DISK:
                return "its local state"
            case StateOrigin.NOTHING:
                return "the beginning of its log"
            case number:
                return f"snapshot #{number}"

    async def open(self, job: JobId, part: PartitionIndex, epoch: Epoch, opener: Opener) -> Hangar:
        """The state to start from: what is here or the newest snapshot, whichever has seen more; if
        it is damaged, the next best.

        Raises SystemUnavailable and OSError; RebuildExhausted if even replay from the start of the
        log went wrong before.
        """
        place = (job, part)
        if (why := self._doomed.get(place)) is not None:
            await self._put_aside(place, why)
            self._doomed.pop(
                place, None
            )  # not before: who is cancelled meanwhile must find it doomed still
            self._origins.pop(place, None)
        if (before := self._before.get(place)) is not None:
            later = {
                pointer.number
                for pointer in await self._tools.pointers.of(job, part)
                if pointer.number >= before
            }
            self._passed_over.setdefault(place, set()).update(later)
            self._before.pop(place, None)
        best = None
        while best is None:
            best = await self._best(place, epoch, opener)
        return best

    async def _best(self, place: JobPartition, epoch: Epoch, opener: Opener) -> Hangar | None:
        """One try at `open`; None when it chose a snapshot of what cannot be opened, which is
        passed over from then on.
        """
        job, part = place
        pointers = [
            p
            for p in await self._tools.pointers.of(job, part)
            if p.number not in self._passed_over.get(place, ())
        ]
        local = await self._local(place, opener)
        try:
            if local is not None:
                pointers = await transfer.with_newest_position(self._tools, pointers)
            restored = await self._restored(
                place,
                epoch,
                transfer_plan.restore_candidates(
                    None if local is None else _position(local[1]), pointers
                ),
            )
        except BaseException:
            if local is not None:
                await asyncio.shield(self._pool.run(local[0].close))
            raise
        if restored is None and local is not None:
            self._origins.setdefault(place, StateOrigin.DISK)
            return local[0]
        if restored is not None:
            if local is not None:
                await asyncio.shield(self._pool.run(local[0].close))
                await self._put_aside(
                    place, f"the snapshot {restored.pointer.manifest} has seen more"
                )
            return await self._in_place(place, epoch, opener, restored, local is not None)
        if StateOrigin.NOTHING in self._passed_over.get(place, ()):
            raise RebuildExhausted(
                f"{job}[{part}] cannot be rebuilt: replay from every snapshot and "
                "from the log's beginning came to other results than were "
                "written (another version of the platform or of its libraries?). "
                "Under the version that wrote it, "
                f"`fennel-core recover --job {job}` (DAG recovery) tries all of them "
                "again; else commit its dataset under a new version"
            )
        self._origins[place] = StateOrigin.NOTHING
        return (await self._opened(place, opener))[0]

    async def _in_place(
        self,
        place: JobPartition,
        epoch: Epoch,
        opener: Opener,
        restored: RestoredSnapshot,
        replaced: bool,
    ) -> Hangar | None:
        """The restored folder as local state. A snapshot of damaged files gives its place back to
        what it `replaced`.
        """
        folder = self._folder(place)
        await asyncio.to_thread(self._coming(place, epoch).rename, folder)
        self._origins[place] = restored.pointer.number
        try:
            opened = await self._opened(place, opener)
        except (HangarCorrupt, StateFormatError) as wrong:
            log.error(
                "snapshot is passed over",
                job=place[0],
                part=place[1],
                snapshot=restored.pointer.manifest,
                reason=str(wrong),
            )
            self._passed_over.setdefault(place, set()).add(restored.pointer.number)
            self._origins.pop(place)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            if replaced:
                await asyncio.to_thread(self._aside(place).rename, folder)
            return None
        _tell_restored(restored)
        return opened[0]

    async def _restored(
        self, place: JobPartition, epoch: Epoch, pointers: Sequence[Pointer]
    ) -> RestoredSnapshot | None:
        """The first of these snapshots that is whole, in the folder `_coming`."""
        if not pointers:
            return None
        coming = self._coming(place, epoch)
        await asyncio.to_thread(shutil.rmtree, coming, ignore_errors=True)
        restored = await transfer.restore_snapshot(self._tools, pointers, STATE_FORMAT, coming)
        if restored is None:
            await asyncio.to_thread(shutil.rmtree, coming, ignore_errors=True)
        return restored

    async def _local(
        self, place: JobPartition, opener: Opener
    ) -> tuple[Hangar, StateProgress] | None:
        """What is on this machine, opened; None, and put aside, where it cannot be used."""
        if not await asyncio.to_thread(self._folder(place).exists):
            return None

        try:
            return await self._opened(place, opener)
        except (HangarCorrupt, StateFormatError) as wrong:
            await self._put_aside(place, str(wrong))
            return None

    async def _opened(self, place: JobPartition, opener: Opener) -> tuple[Hangar, StateProgress]:
        """The store in the folder, and how far it has come. A cancelled caller leaves none open:
        the next owner could not open it.
        """

        def opened() -> tuple[Hangar, StateProgress]:
            hangar = opener(*place)
            try:
                return hangar, state_progress.load(hangar)
            except (HangarCorrupt, StateFormatError):
                hangar.close()
                raise

        opening = asyncio.ensure_future(self._pool.run(opened))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_again)
            raise

    async def _put_aside(self, place: JobPartition, why: str) -> None:
        """Keep it for whoever wants to know what happened, in the place of what was put aside
        before.
        """
        folder, aside = self._folder(place), self._aside(place)
        if await asyncio.to_thread(folder.exists):
            await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)
            await asyncio.to_thread(folder.rename, aside)
            log.error(
                "local state is not used",
                job=place[0],
                part=place[1],
                kept_as=str(aside),
                reason=why,
            )

    def _folder(self, place: JobPartition) -> Path:
        return self._root / place[0] / str(place[1])

    def _aside(self, place: JobPartition) -> Path:
        return self._root / place[0] / f"aside-{place[1]}"

    def _coming(self, place: JobPartition, epoch: Epoch) -> Path:
        return self._root / place[0] / f"restoring-{place[1]}-{epoch}"


def _close_again(opening: asyncio.Future[tuple[Hangar, StateProgress]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()


def _position(known: StateProgress) -> StatePosition:
    return StatePosition(known.iteration, known.replayed, known.offsets)


def _tell_restored(restored: RestoredSnapshot) -> None:
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
