"""Who owns a job partition: a cache of the registry that is always allowed to be wrong.

Theory. Ownership changes rarely and is checked by the slot itself (a slot that is not the owner
refuses with `not-owner`), so a stale entry costs one more round trip and never a wrong answer. The
cache is read again when the registry sends a NOTIFY, when a slot refuses with `not-owner`, and when
a slot cannot be reached. Readers that find the cache stale at the same time share one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fennel_core.vocab.ids import JobPartition


@dataclass(frozen=True, slots=True)
class Parked:
    """A partition that no slot runs because its code failed."""

    error: str


@dataclass(frozen=True, slots=True)
class Ownership:
    """One reading of the registry: addresses of live owners, and the partitions that are parked."""

    addresses: Mapping[JobPartition, str]
    parked: Mapping[JobPartition, Parked]


class OwnershipSource(Protocol):
    async def read_owners(self) -> Ownership: ...


class Owners:
    """The cache. `epoch` counts readings: a caller that failed under one epoch asks for a later
    one.
    """

    def __init__(self, source: OwnershipSource) -> None:
        self._source = source
        self._now = Ownership({}, {})
        self._reading: asyncio.Task[None] | None = None
        self.epoch = 0

    def address(self, partition: JobPartition) -> str | None:
        """Where the owner listens, as far as we know."""
        return self._now.addresses.get(partition)

    def parked(self, partition: JobPartition) -> Parked | None:
        return self._now.parked.get(partition)

    async def refresh(self, seen: int) -> None:
        """Return once a reading that began after epoch `seen` is in place."""
        while self.epoch <= seen:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
            await asyncio.shield(self._reading)

    async def _read(self) -> None:
        try:
            self._now = await self._source.read_owners()
            self.epoch += 1
        finally:
            self._reading = None
