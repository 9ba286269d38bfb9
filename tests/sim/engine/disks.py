"""The disks of the simulated world: folders of local state, their locks, and what is lost of them.

The slots of a machine share its disk. What a process has written survives it, unless the disk is
lost or goes back to an earlier time; a lock ends with its process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from fennel_core.engine.state_folders import HeldFolder, StateFolders
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.store import HangarClosed, HangarCorrupt, WriteBatch
from fennel_core.vocab.ids import JobId
from tests.sim.engine.faulty_components import Process

FILES = 3
"""Files of a checkpoint; a change touches some of them only."""


def _file_of(key: bytes) -> int:
    return crc32(key) % FILES


@dataclass(frozen=True)
class Content:
    """The content of a store's files; a damaged file cannot be read at all."""

    entries: dict[bytes, bytes]
    damaged: frozenset[int] = frozenset()


class DiskHangar(MemoryHangar):
    """An open store of a machine.

    Its content survives its process; one process at a time has it open.
    """

    def __init__(
        self, holder: Process, content: Content, closed: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(content.entries)
        self.damaged = content.damaged
        self.holder: Process | None = holder
        self.earlier = content
        """The state as of an earlier write, for a machine that loses its last writes."""
        self._tell_closed = closed

    def write(self, batch: WriteBatch) -> None:
        assert self.holder is not None, "written after it was closed"
        assert self.holder.alive, "written by a dead process"
        super().write(batch)
        if self.holder.dice.fails():
            self.earlier = self.content()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._refuse_damaged(keys)
        return super().get_many(keys)

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        found = super().scan(start, stop, reverse=reverse, limit=limit)
        self._refuse_damaged(key for key, _ in found)
        return found

    def _refuse_damaged(self, keys: Iterable[bytes]) -> None:
        if self.damaged and any(_file_of(key) in self.damaged for key in keys):
            raise HangarCorrupt("a block differs from what was written")

    def damage(self, file: int) -> None:
        """Make a file unreadable from now on; copies of it are unreadable too."""
        self.damaged |= {file}

    def copied(self) -> DiskHangar:
        """Return the store that a checkpoint of this one would open as."""
        if self.holder is None:
            raise HangarClosed("the store was closed before its copy")
        return DiskHangar(self.holder, self.content())

    def content(self) -> Content:
        return Content(dict(super().scan(b"", b"\xff" * 40)), self.damaged)

    def checkpoint(self, target: Path) -> None:
        if self.holder is None:
            raise HangarClosed(f"the store was closed before its checkpoint {target.name}")
        target.mkdir(parents=True)
        shares: list[list[tuple[bytes, bytes]]] = [[] for _ in range(FILES)]
        for key, value in self.content().entries.items():
            shares[_file_of(key)].append((key, value))
        for number, share in enumerate(shares):
            (target / f"{number}.sst").write_bytes(
                msgspec.msgpack.encode((number in self.damaged, share))
            )

    def close(self) -> None:
        if self.holder is not None:
            self.holder = None
            self._tell_closed()


def restored(folder: Path) -> Content:
    """Return the content of a checkpoint; an empty folder is an empty store."""
    files = sorted(folder.glob("*.sst"))
    assert len(files) in (0, FILES), f"a store opened from a part of a checkpoint: {files}"
    read = [
        msgspec.msgpack.decode(file.read_bytes(), type=tuple[bool, list[tuple[bytes, bytes]]])
        for file in files
    ]
    return Content(
        dict(pair for _, share in read for pair in share),
        frozenset(number for number, (damaged, _) in enumerate(read) if damaged),
    )


INODE: Final = "inode"
"""The file of a folder that has its number on the machine, whatever the folder's name."""


@dataclass
class Machine:
    """A machine on which slots run; they share its disk.

    `root`: folder of the local states, see `engine.state_folders`.
    """

    root: Path
    disk: dict[str, DiskHangar] = field(default_factory=dict)
    """The stores of the folders that were opened once, by inode."""
    forgotten: set[JobId] = field(default_factory=set)
    """Jobs whose local state a slot has deleted."""
    awaited: list[str] = field(default_factory=list)
    """Stores that an owner had to wait for because another process held them."""
    _held: dict[str, Process] = field(default_factory=dict)
    _inodes: Iterator[int] = field(default_factory=count)

    def folders(self, process: Process) -> StateFolders:
        """Return the folders as a process sees them; their locks end with the process."""
        return StateFolders(self.root, lambda folder: self._hold(folder, process))

    def _hold(self, folder: Path, process: Process) -> HeldFolder | None:
        if not folder.exists():
            return None
        inode = self._inode(folder)
        if inode in self._held and self._held[inode].alive:
            return None
        self._held[inode] = process
        return HeldFolder(folder, lambda: self._release(inode, process))

    def _release(self, inode: str, process: Process) -> None:
        if self._held.get(inode) is process:
            del self._held[inode]

    def refused(self, folder: Path, process: Process) -> None:
        """Record that a process could not start because another one holds its folder.

        It may wait for itself: for a runner that still closes it, or has closed it since.
        """
        if self._held.get(self._inode(folder), process) is not process:
            self.awaited.append(f"{folder.parent.name}/{folder.name} is held by another process")

    def _inode(self, folder: Path) -> str:
        named = folder / INODE
        if not named.exists():
            named.write_text(str(next(self._inodes)))
        return named.read_text()

    def open(self, held: HeldFolder, process: Process) -> DiskHangar:
        inode = self._inode(held.path)
        before = self.disk.get(inode)
        if self._held.get(inode) is not process or (
            before is not None and before.holder not in (None, process) and before.holder.alive
        ):
            self.awaited.append(f"{held.path} is opened by two processes")
        content = restored(held.path) if before is None else before.content()
        hangar = self.disk[inode] = DiskHangar(process, content, held.release)
        if before is not None:
            hangar.earlier = before.earlier
        return hangar

    def stored(self) -> set[JobId]:
        return {JobId(path.name) for path in self.root.iterdir()}

    def forget(self, job: JobId) -> None:
        self.forgotten.add(job)
        self._delete(
            folder
            for folder in self._opened()
            if folder.parent.name == job and self._is_free(folder)
        )
        if not any(folder.parent.name == job for folder in self._opened()):
            shutil.rmtree(self.root / job, ignore_errors=True)

    def lose(self, process: Process) -> None:
        """The disk is lost with the process."""
        self._delete(folder for folder in self._opened() if self._is_free(folder))

    def _is_free(self, folder: Path) -> bool:
        holder = self.disk[self._inode(folder)].holder
        return holder is None or not holder.alive

    def _delete(self, folders: Iterable[Path]) -> None:
        for folder in list(folders):
            del self.disk[self._inode(folder)]
            shutil.rmtree(folder, ignore_errors=True)

    def go_back(self, process: Process) -> None:
        """Lose the last writes of the process."""
        for inode, hangar in list(self.disk.items()):
            if hangar.holder is process:
                self.disk[inode] = DiskHangar(process, hangar.earlier)

    def live(self) -> list[DiskHangar]:
        """Return the stores that still have a folder, in a fixed order."""
        return [self.disk[self._inode(folder)] for folder in self._opened()]

    def _opened(self) -> list[Path]:
        """Return the folders of states that were opened once."""
        found = sorted(self.root.glob("*/state-*"))
        return [folder for folder in found if self._inode(folder) in self.disk]
