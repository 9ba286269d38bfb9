"""The job registry: jobs, slots, and which slot owns each job partition.

Postgres is the only clock and the only arbiter. Every lease is measured by the registry's own
`now()`. Ownership changes only by compare-and-set on the epoch. A slot whose own lease expired owns
nothing. An engine reads everything it needs in one request per poll.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fennel_core.schedule.lease import Lease
from fennel_core.vocab.ids import (
    EngineId,
    Epoch,
    JobId,
    JobPartition,
    Millis,
    Offset,
    PartitionIndex,
    SlotId,
    SlotName,
    TopicName,
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of an engine: one process that runs job partitions."""

    id: SlotId
    """This process; never used twice."""
    name: SlotName
    """The slot: the same for each process that it restarts as."""
    engine: EngineId
    address: str
    """Unix socket path or `host:port` of its lookup service."""


@dataclass(frozen=True, slots=True)
class RegisteredJob:
    """One job and the leases of its partitions."""

    id: JobId
    desired: str
    """`run`, `pause`: stop it and keep its state, or `remove`: stop it and delete its state."""
    leases: Mapping[PartitionIndex, Lease]


@dataclass(frozen=True, slots=True)
class RegistryState:
    """One consistent read of the registry: running slots and all jobs."""

    slots: Mapping[SlotName, SlotId]
    """The process of each slot; of several with one name, the one that registered last."""
    jobs: tuple[RegisteredJob, ...]
    stopping: bool
    """True if the reading slot was asked to stop."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The status of a job partition, as its runner reports it.

    `lag` counts records that are not applied yet; None while it is unknown. `applied`: the next
    offset per input topic of a running partition; everything below it is visible to lookups.
    """

    status: str
    lag: int | None
    error: str | None
    applied: Mapping[TopicName, Offset] = field(default_factory=dict)


class Registry(Protocol):
    """The registry of one platform. Every method raises `connections.errors.SystemUnavailable`."""

    async def heartbeat(self, slot: Slot, lease_ms: Millis) -> None:
        """Register or renew the slot and every unexpired lease that it holds."""
        ...

    async def read(self, me: SlotId) -> RegistryState:
        """Return the state of the registry for the slot `me`."""
        ...

    async def spec(self, job: JobId) -> bytes | None:
        """Return the canonical bytes of a job's specification; None if it was removed."""
        ...

    async def claim(
        self, wanted: Sequence[tuple[JobPartition, Epoch]], slot: SlotId, lease_ms: Millis
    ) -> dict[JobPartition, Epoch]:
        """Claim partitions by compare-and-set from the given epochs to the next ones.

        Returns the new epochs of the partitions that were won.
        """
        ...

    async def resume(
        self, held: Sequence[tuple[JobPartition, Epoch]], slot: SlotId, lease_ms: Millis
    ) -> frozenset[JobPartition]:
        """Renew leases also after they have ended, if the slot still holds them under the epochs.

        Returns the partitions that it holds.
        """
        ...

    async def release(self, held: Sequence[tuple[JobPartition, Epoch]], slot: SlotId) -> None:
        """Release those leases that the slot still holds under the given epochs."""
        ...

    async def report(
        self, reports: Mapping[JobPartition, tuple[Epoch, PartitionReport]], slot: SlotId
    ) -> None:
        """Store the reports of partitions that the slot still owns under the given epochs."""
        ...

    async def expire_predecessors(self, id_prefix: str, survivor: SlotId) -> None:
        """Remove the slots whose ids start with `id_prefix`, except `survivor`, and their leases.

        The caller knows that these slots are dead.
        """
        ...

    async def deregister(self, slot: SlotId) -> None:
        """Remove the slot and its leases, at its clean end."""
        ...
