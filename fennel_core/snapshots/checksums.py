"""Checksums of a checkpoint's files, computed once per file.

Theory. A checkpoint hard-links the store's data files, which never change after they are written. A
file with the same inode, size and modification time is the same file, so only files that are new
since the last snapshot are read. Files that the store still writes to (its manifest, the current
write-ahead log) are copied into the checkpoint and have a new inode each time.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from fennel_core.snapshots.transfer_plan import LocalFile

CHUNK_BYTES: Final = 1024 * 1024
_Identity = tuple[int, int, int, int]


class Checksums:
    """Checksums of one store's checkpoints. Not thread-safe: its snapshots are sequential."""

    def __init__(self) -> None:
        self._known: dict[_Identity, str] = {}

    def of_folder(self, folder: Path) -> list[LocalFile]:
        """Return every file with its checksum; checksums of files that are gone are forgotten."""
        known: dict[_Identity, str] = {}
        files = []
        for path in sorted(folder.iterdir()):
            stat = path.stat()
            identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
            known[identity] = self._known.get(identity) or _sha256(path)
            files.append(LocalFile(path.name, stat.st_size, known[identity]))
        self._known = known
        return files


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
