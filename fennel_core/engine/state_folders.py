"""The folders of local state on one machine, and which process holds them.

Theory. The slots of a machine share its disk, and a process that has lost a job partition may still
hold its store: it is frozen, or has not noticed yet. Its successor must neither wait for it nor
touch its files. So a folder's name has the epoch of its latest owner,
`<root>/<job>/state-<part>-<epoch>`, and a process that opens, renames or deletes it holds a lock on
it, which the kernel releases when the process ends, however it ends.

A new owner takes the newest folder of earlier owners that is free and gives it its own epoch: an
earlier owner does not find it any more. A folder that is held stays as it is. If there is no free
one, the new owner starts from a snapshot or from the log, as on another machine.

Example. Slot A owns partition 0 under epoch 3 and freezes with its store open. Its lease ends, and
slot B of the same machine claims epoch 4. `state-0-3` is held, so B fills `state-0-4` from a
snapshot. A resumes, learns that it has lost the partition and closes `state-0-3`, which B deletes
after a grace period. If A had been killed instead, B would have renamed `state-0-3` to `state-0-4`
and gone on from there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from fennel_core.hangar.store import HangarInUse
from fennel_core.vocab.ids import Epoch, JobId, JobPartition

STATE: Final = "state"
DELETED: Final = "deleted"
log = structlog.get_logger(__name__)


class HeldFolder:
    """A folder that no other opener can hold until `release`; `path` follows its renames."""

    def __init__(self, path: Path, release: Callable[[], None]) -> None:
        self.path, self._release = path, release

    def move(self, target: Path) -> None:
        """Give the folder another name."""
        self.path.rename(target)
        self.path = target

    def release(self) -> None:
        """Let others hold the folder; call it once, when nothing of it is open any more."""
        self._release()


Hold = Callable[[Path], HeldFolder | None]
"""Holds an existing folder. Returns None if it is held already, or does not exist."""


def hold(folder: Path) -> HeldFolder | None:
    """Hold a folder by a lock on the folder itself; see `Hold`."""
    try:
        locked = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It may have been renamed or deleted between the two calls.
        is_there = os.path.samestat(os.fstat(locked), os.stat(folder))
    except (BlockingIOError, FileNotFoundError):
        is_there = False
    if is_there:
        return HeldFolder(folder, lambda: os.close(locked))
    os.close(locked)
    return None


class StateFolders:
    """The folders below `<root>/<job>`, by job partition and epoch."""

    def __init__(self, root: Path, hold: Hold = hold) -> None:
        self._root, self._hold = root, hold

    def take_over(self, partition: JobPartition, epoch: Epoch) -> HeldFolder | None:
        """Hold the newest free state of this or an earlier epoch, renamed to this epoch.

        Returns None if there is none. Raises HangarInUse if this epoch's own state is held: a
        runner of this process is still closing it.
        """
        own = self.state(partition, epoch)
        for folder in reversed(self._by_epoch(partition, STATE, epoch)):
            held = self._hold(folder)
            if held is None and folder == own:
                raise HangarInUse(f"{own.name} of {partition[0]} is still being closed: try again")
            if held is None:
                log.warning("an earlier owner still holds local state", folder=str(folder))
                continue
            return held if folder == own else _moved(held, own)
        return None

    def own(self, partition: JobPartition, epoch: Epoch) -> HeldFolder | None:
        """Hold the state of this epoch; None if there is none."""
        own = self.state(partition, epoch)
        return self.take_over(partition, epoch) if own.exists() else None

    def create(self, partition: JobPartition, epoch: Epoch) -> HeldFolder:
        """Create and hold an empty folder for the state of this epoch."""
        own = self.state(partition, epoch)
        own.mkdir(parents=True)
        return self._held(own)

    def adopt(self, staging: Path, partition: JobPartition, epoch: Epoch) -> HeldFolder:
        """Make a complete folder the state of this epoch, and hold it."""
        return _moved(self._held(staging), self.state(partition, epoch))

    def superseded(self, running: Mapping[JobPartition, Epoch]) -> list[Path]:
        """Return the states that the owners of `running`, by epoch, have replaced or deleted."""
        return [
            folder
            for partition, epoch in running.items()
            for kind in (DELETED, STATE)
            for folder in self._by_epoch(partition, kind, epoch)
            if _epoch_of(folder) < epoch
        ]

    def delete_free(self, folder: Path) -> bool:
        """Delete a state; return False, and keep it, if an earlier owner still holds it."""
        held = self._hold(folder)
        if held is None:
            return False
        # Renamed first: what remains if this process dies now must not be taken for a state.
        held.move(folder.with_name(f"{DELETED}-{folder.name.partition('-')[2]}"))
        shutil.rmtree(held.path, ignore_errors=True)
        held.release()
        return True

    def state(self, partition: JobPartition, epoch: Epoch) -> Path:
        """The state of a partition under an epoch."""
        return self._root / partition[0] / f"{STATE}-{partition[1]}-{epoch}"

    def quarantined(self, partition: JobPartition) -> Path:
        """The last state that was set aside for inspection."""
        return self._root / partition[0] / f"quarantined-{partition[1]}"

    def restoring(self, partition: JobPartition, epoch: Epoch) -> Path:
        """A snapshot that is being downloaded."""
        return self._root / partition[0] / f"restoring-{partition[1]}-{epoch}"

    def checkpoint(self, partition: JobPartition, epoch: Epoch) -> Path:
        """A copy of a state that is being uploaded."""
        return self._root / partition[0] / f"checkpoint-{partition[1]}-{epoch}"

    def checkpoints(self, partition: JobPartition, up_to: Epoch) -> list[Path]:
        """Return the copies that this and earlier owners have left."""
        return self._by_epoch(partition, "checkpoint", up_to)

    def jobs(self) -> set[JobId]:
        """Return the jobs that have a folder."""
        return {JobId(path.name) for path in self._root.iterdir()} if self._root.exists() else set()

    def delete_job(self, job: JobId) -> None:
        """Delete every folder of a job."""
        shutil.rmtree(self._root / job, ignore_errors=True)

    def _by_epoch(self, partition: JobPartition, kind: str, up_to: Epoch) -> list[Path]:
        """Return the folders of a kind up to an epoch, oldest first."""
        found = (self._root / partition[0]).glob(f"{kind}-{partition[1]}-*")
        named = [each for each in found if each.name.rpartition("-")[2].isdecimal()]
        return sorted((each for each in named if _epoch_of(each) <= up_to), key=_epoch_of)

    def _held(self, folder: Path) -> HeldFolder:
        held = self._hold(folder)
        if held is None:
            raise HangarInUse(f"{folder.name} of {folder.parent.name} is in use: try again")
        return held


def _moved(held: HeldFolder, target: Path) -> HeldFolder:
    try:
        held.move(target)
    except OSError:
        held.release()
        raise
    return held


def _epoch_of(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])
