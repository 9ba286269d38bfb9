"""Checksums of a checkpoint's files, worked out once per file.

Theory. A checkpoint hard-links the store's data files, which never change once they are written: a
file of the same inode, size and time of change is the same file, so only what is new since the last
snapshot is read. Files that are still written to (the manifest, the current write-ahead log) are
copied into the checkpoint and have a new inode each time.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from fennel_core.snapshots.transfer_plan import LocalFile

CHUNK_BYTES: Final = 1024 * 1024
_Identity = tuple[int, int, int, int]


class Checksums:
    """For checkpoints of one store. Not thread-safe: snapshots of one store follow each other."""

    def __init__(self) -> None:
        self._known: dict[_Identity, str] = {}

    def of_folder(self, folder: Path) -> list[LocalFile]:
        """Every file with its checksum; what was remembered of other files is forgotten."""
        known: dict[_Identity, str] = {}
        files = []
        for path in sorted(folder.iterdir()):
            there = path.stat()
            identity = (there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns)
            known[identity] = self._known.get(identity) or _sha256(path)
            files.append(LocalFile(path.name, there.st_size, known[identity]))
        self._known = known
        return files


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
