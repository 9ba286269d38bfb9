"""Pointer rows: which finished snapshots a job partition has.

Theory. S3 keeps immutable objects; which snapshot is the newest is a row in Postgres, because only
the database can check "is the writer still the owner" and add the row atomically. A process that
lost its job partition may upload objects, but it cannot add a pointer to them. Pointers outlive the
row of their job: they record which objects are still to be deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from fennel_core.snapshots.manifest import StatePosition
from fennel_core.vocab.ids import Epoch, JobId, JobPartition, PartitionIndex


@dataclass(frozen=True, slots=True)
class Pointer:
    """One finished snapshot. `number` increases with every pointer that is added."""

    job: JobId
    part: PartitionIndex
    number: int
    epoch: Epoch
    manifest: str
    """The key of its manifest."""
    sha256: str
    """Of the manifest's bytes."""
    taken_at: datetime
    incomplete: bool = False
    """Whether an object of it was missing when all objects were listed last."""
    position: StatePosition | None = None
    """The position of its state; None if only its manifest has it."""


class Pointers(Protocol):
    """Pointer rows. Every method raises SystemUnavailable if the database cannot be used."""

    async def add(
        self, job: JobId, part: PartitionIndex, epoch: Epoch, manifest: str, sha256: str
    ) -> bool:
        """Add a pointer to a finished snapshot.

        Returns False, and changes nothing, if `epoch` does not own the job partition any more.
        """
        ...

    async def of(self, job: JobId, part: PartitionIndex) -> list[Pointer]:
        """Return the pointers of a job partition, newest first."""
        ...

    async def all(self) -> dict[JobPartition, list[Pointer]]:
        """Return the pointers of every job partition that has one, each list newest first."""
        ...

    async def partitions(self) -> list[JobPartition]:
        """Return every job partition that has a pointer, whether its job still exists or not."""
        ...

    async def jobs(self) -> set[JobId]:
        """Return every job that exists."""
        ...

    async def now(self) -> datetime:
        """Return the current time of the clock that sets `taken_at`."""
        ...

    async def mark_incomplete(self, numbers: Collection[int], incomplete: bool) -> None:
        """Record of which snapshots an object is missing, or that none is missing any more."""
        ...

    async def remove(self, pointers: Sequence[Pointer]) -> None:
        """Delete pointers; those that do not exist are ignored."""
        ...
