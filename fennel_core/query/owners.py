"""Cache the owners of job partitions; the cache may be stale at any time.

Ownership changes rarely and is checked by the slot itself (a slot that is not the owner refuses
with `not-owner`), so a stale entry costs one more round trip and never a wrong result. Jobs are
read again when the registry names them in a NOTIFY, when a slot refuses with `not-owner`, and when
a slot cannot be reached. The whole registry is read at the start, after the listener (re)connects,
and after a NOTIFY without names. Callers that find the cache stale at the same time share one read.
The last owner counts as the owner also when its lease has ended: no other slot has the partition,
and the slot itself decides whether it may still serve reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from fennel_core.vocab.ids import JobId, JobPartition

MOST_NEWER: Final = 1000
"""Jobs that are kept beside the last read of everything. Beyond that the next read is of
everything, which also forgets jobs that were deleted.
"""


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

    async def read_owners(self, jobs: Collection[JobId] | None = None) -> Ownership:
        """Return the owners of `jobs`, or of all; deleted jobs are absent."""
        ...


class Owners:
    """The cache. `epoch` counts reads: a caller that failed under one epoch requests a later
    one.
    """

    def __init__(self, source: OwnershipSource) -> None:
        self._source = source
        self._all = Ownership({}, {}, ())
        self._all_epoch = 0
        self._newer: dict[JobId, tuple[int, Ownership]] = {}
        """Jobs that were read since everything was, with the epoch of that read."""
        self._wanted: set[JobId] | None = set()
        """What the next read covers; None: everything."""
        self._pending_read: asyncio.Task[None] | None = None
        self._begun = 0
        self._finished = 0
        """Numbers of the last read that began, and of the last that succeeded."""
        self.epoch = 0

    def address(self, partition: JobPartition) -> str | None:
        """Return the cached address of the owner; None without one."""
        return self._of(partition[0]).addresses.get(partition)

    def parked(self, partition: JobPartition) -> Parked | None:
        return self._of(partition[0]).parked.get(partition)

    def knows(self, job: JobId) -> bool:
        """Return False only if the registry has been read and did not have the job."""
        return self._epoch_of(job) == 0 or job in self._of(job).jobs

    async def refresh(self, seen: int, jobs: Collection[JobId]) -> None:
        """Return once a read of `jobs` that began after epoch `seen` has finished."""
        while any(self._epoch_of(job) <= seen for job in jobs):
            self._want(jobs)
            await self._next_read()

    async def reread(self, jobs: Collection[JobId] | None) -> None:
        """Return once a read of `jobs`, or of everything, that began after the call has finished.

        If it fails, what it should have covered is part of the next one.
        """
        self._want(jobs)
        # What is wanted now may be part of a read that another caller begins, so that this one
        # finds nothing wanted: only the number of the read shows that it has finished.
        next_begun = self._begun + 1
        while self._finished < next_begun:
            await self._next_read()

    def _of(self, job: JobId) -> Ownership:
        return self._newer[job][1] if job in self._newer else self._all

    def _epoch_of(self, job: JobId) -> int:
        return self._newer[job][0] if job in self._newer else self._all_epoch

    def _want(self, jobs: Collection[JobId] | None) -> None:
        if jobs is None:
            self._wanted = None
        elif self._wanted is not None:
            self._wanted |= set(jobs)

    async def _next_read(self) -> None:
        """Return once the read under way has finished, or one that begins now."""
        if self._pending_read is None:
            self._pending_read = asyncio.create_task(self._read())
            # Every waiting caller may have given up.
            self._pending_read.add_done_callback(_retrieve)
        await asyncio.shield(self._pending_read)

    async def _read(self) -> None:
        self._begun += 1
        wanted, self._wanted = self._wanted, set()
        found: Ownership | None = None
        try:
            found = await self._source.read_owners(wanted)
        finally:
            self._pending_read = None
            if found is None:
                self._want(wanted)
        self._finished = self._begun
        self.epoch += 1
        if wanted is None:
            self._all, self._all_epoch, self._newer = found, self.epoch, {}
        else:
            self._newer |= dict.fromkeys(wanted, (self.epoch, found))
            if len(self._newer) > MOST_NEWER:
                self._want(None)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Mark the exception of a read as retrieved."""
    if not task.cancelled():
        task.exception()
