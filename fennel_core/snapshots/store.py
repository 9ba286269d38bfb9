"""What snapshots need of the outside: a bucket of immutable objects and pointer rows that only the
current owner may add.

Theory. S3 keeps contents under names that are written once; which snapshot is the newest is a row
in the database, because only there can "if I am still the owner" and "add it" be one act. A process
that lost its job partition may upload as long as it likes: nothing points there. Pointers outlive
their job's row: they say which objects are left to delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from fennel_core.snapshots.manifest import StatePosition
from fennel_core.vocab.ids import Epoch, JobId, JobPartition, PartitionIndex


class StoreError(Exception):
    """The bucket or the database could not be asked, or refused: nothing is known to have happened,
    and trying again is right.
    """


@dataclass(frozen=True, slots=True)
class Stored:
    """An object in the bucket, and when it was written by the store's own clock."""

    key: str
    written_at: datetime


@dataclass(frozen=True, slots=True)
class Pointer:
    """One finished snapshot. `number` grows with every pointer added."""

    job: JobId
    part: PartitionIndex
    number: int
    epoch: Epoch
    manifest: str
    """The key of its manifest."""
    sha256: str
    """Of the manifest's bytes."""
    taken_at: datetime
    position: StatePosition | None = None
    """Where it stands; None where only its manifest knows."""


class Objects(Protocol):
    """Immutable objects by key. Every method raises StoreError when the bucket cannot be used."""

    async def put(self, key: str, body: bytes) -> None:
        """Write an object; StoreError when `key` is taken by another content, which is left as it
        is.
        """
        ...

    async def get(self, key: str) -> bytes | None:
        """The content of `key`, None where there is no such object."""
        ...

    async def upload(self, key: str, path: Path) -> None:
        """`put` with the content of a file, which is never held in memory."""
        ...

    async def download(self, key: str, path: Path) -> str | None:
        """Fill the file `path`; the SHA-256 of what was written to it (hex), None where there is no
        such object.
        """
        ...

    async def stored(self, prefix: str) -> list[Stored]:
        """Every object whose key begins with `prefix`, by key."""
        ...

    async def remove(self, keys: Sequence[str]) -> None:
        """Delete; keys that are not there are no error."""
        ...


class Pointers(Protocol):
    """Pointer rows. Every method raises StoreError when the database cannot be used."""

    async def add(
        self, job: JobId, part: PartitionIndex, epoch: Epoch, manifest: str, sha256: str
    ) -> bool:
        """Point at a finished snapshot; False, and nothing done, when `epoch` does not own the job
        partition any more.
        """
        ...

    async def of(self, job: JobId, part: PartitionIndex) -> list[Pointer]:
        """The job partition's snapshots, newest first."""
        ...

    async def places(self) -> list[JobPartition]:
        """Every job partition that has a pointer, whether its job exists or not."""
        ...

    async def jobs(self) -> set[JobId]:
        """Every job there is."""
        ...

    async def now(self) -> datetime:
        """The clock that `taken_at` is read from."""
        ...

    async def remove(self, pointers: Sequence[Pointer]) -> None: ...
