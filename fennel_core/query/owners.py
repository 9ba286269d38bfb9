"""Cache the owners of job partitions; the cache may be stale at any time.

Ownership changes rarely and is checked by the slot itself (a slot that is not the owner refuses
with `not-owner`), so a stale entry costs one more round trip and never a wrong result. The cache is
read again when the registry sends a NOTIFY, when a slot refuses with `not-owner`, and when a slot
cannot be reached. Callers that find the cache stale at the same time share one read. The last owner
counts as the owner also when its lease has ended: no other slot has the partition, and the slot
itself decides whether it may still serve reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Protocol

from fennel_core.vocab.ids import JobId, JobPartition


@dataclass(frozen=True, slots=True)
class Parked:
    """A partition that no slot runs because its code failed."""

    error: str


@dataclass(frozen=True, slots=True)
class Ownership:
    """One read of the registry: addresses of owners, the parked partitions, and all jobs."""

    addresses: Mapping[JobPartition, str]
    parked: Mapping[JobPartition, Parked]
    jobs: Container[JobId]


class OwnershipSource(Protocol):
    """Reads the registry."""

    async def read_owners(self) -> Ownership: ...


class Owners:
    """The cache. `epoch` counts reads: a caller that failed under one epoch requests a later
    one.
    """

    def __init__(self, source: OwnershipSource) -> None:
        self._source = source
        self._ownership = Ownership({}, {}, ())
        self._pending_read: asyncio.Task[None] | None = None
        self.epoch = 0

    def address(self, partition: JobPartition) -> str | None:
        """Return the cached address of the owner; None without one."""
        return self._ownership.addresses.get(partition)

    def parked(self, partition: JobPartition) -> Parked | None:
        return self._ownership.parked.get(partition)

    def knows(self, job: JobId) -> bool:
        """Return False only if the registry has been read and did not have the job."""
        return self.epoch == 0 or job in self._ownership.jobs

    async def refresh(self, seen: int) -> None:
        """Return once a read that began after epoch `seen` has finished."""
        while self.epoch <= seen:
            if self._pending_read is None:
                self._pending_read = asyncio.create_task(self._read())
                # Every waiting caller may have given up.
                self._pending_read.add_done_callback(_retrieve)
            await asyncio.shield(self._pending_read)

    async def _read(self) -> None:
        try:
            self._ownership = await self._source.read_owners()
            self.epoch += 1
        finally:
            self._pending_read = None


def _retrieve(task: asyncio.Task[None]) -> None:
    """Mark the exception of a read as retrieved."""
    if not task.cancelled():
        task.exception()
