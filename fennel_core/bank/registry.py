"""The job registry: jobs, slots and who owns which job partition.

Theory. Postgres is the one clock and the one referee. Every lease is measured by the registry's own
`now()`; ownership changes only by compare-and-set on the epoch; a slot whose own lease lapsed owns
nothing. An engine asks for everything it needs in one read per poll.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fennel_core.schedule.lease import Lease
from fennel_core.vocab.ids import (
    EngineId,
    Epoch,
    JobId,
    JobPartition,
    Millis,
    PartitionIndex,
    SlotId,
)


@dataclass(frozen=True, slots=True)
class Slot:
    id: SlotId
    engine: EngineId
    address: str
    """Unix socket path or host:port of its lookup service."""


@dataclass(frozen=True, slots=True)
class RegisteredJob:
    """One job as the registry knows it."""

    id: JobId
    desired: str
    leases: Mapping[PartitionIndex, Lease]


@dataclass(frozen=True, slots=True)
class RegistryState:
    """One consistent read of the registry."""

    slots: tuple[SlotId, ...]
    jobs: tuple[RegisteredJob, ...]
    stopping: bool
    """This slot was asked to stop."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What a runner says about its job partition."""

    status: str
    lag: int | None
    error: str | None


class Registry(Protocol):
    async def heartbeat(self, slot: Slot, lease_ms: Millis) -> None:
        """Register or renew the slot and every lease it holds."""
        ...

    async def read(self, me: SlotId) -> RegistryState: ...

    async def spec(self, job: JobId) -> bytes | None:
        """Canonical bytes of the job's spec; None when it is gone. Raises SystemUnavailable."""
        ...

    async def claim(
        self, wanted: Sequence[tuple[JobPartition, Epoch]], slot: SlotId, lease_ms: Millis
    ) -> dict[JobPartition, Epoch]:
        """Compare-and-set each from the epoch seen to the next one; the epochs won."""
        ...

    async def release(self, held: Sequence[tuple[JobPartition, Epoch]], slot: SlotId) -> None:
        """Give up leases we still hold under these epochs."""
        ...

    async def report(
        self, reports: Mapping[JobPartition, tuple[Epoch, PartitionReport]], slot: SlotId
    ) -> None:
        """Store what runners say, for those still owned under that epoch."""
        ...

    async def expire_predecessors(self, id_prefix: str, survivor: SlotId) -> None:
        """Remove the slots whose ids begin with `id_prefix`, but `survivor`, and their leases: the
        caller knows that they are dead.
        """
        ...

    async def deregister(self, slot: SlotId) -> None:
        """Remove the slot and its leases: the clean end of a slot."""
        ...
