"""The in-memory job registry, with a clock that tests and the simulation move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fennel_core.bank.registry import PartitionReport, RegisteredJob, RegistryState, Slot
from fennel_core.schedule.lease import Lease
from fennel_core.vocab.ids import Epoch, JobId, JobPartition, Millis, PartitionIndex, SlotId

NEVER_OWNED = Epoch(0)


@dataclass(slots=True)
class _Row:
    epoch: Epoch = NEVER_OWNED
    slot: SlotId | None = None
    until_ms: int = 0
    report: PartitionReport = field(default_factory=lambda: PartitionReport("idle", None, None))


class MemoryRegistry:
    """See `bank.registry.Registry`. `now_ms` is the registry's own clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._specs: dict[JobId, tuple[bytes, str]] = {}
        self._rows: dict[JobPartition, _Row] = {}
        self._slots: dict[SlotId, tuple[Slot, int]] = {}
        self.stopping: set[SlotId] = set()

    def add(self, job: JobId, spec: bytes, partitions: int) -> None:
        """Register a job, as the commit transaction T2 does."""
        self._specs[job] = (spec, "run")
        self._rows |= {(job, PartitionIndex(p)): _Row() for p in range(partitions)}

    def condemn(self, job: JobId) -> None:
        """Ask engines to stop a job and remove its local state."""
        self._specs[job] = (self._specs[job][0], "remove")

    def reports(self) -> dict[JobPartition, tuple[SlotId | None, PartitionReport]]:
        return {key: (row.slot, row.report) for key, row in self._rows.items()}

    async def heartbeat(self, slot: Slot, lease_ms: Millis) -> None:
        now = self._now_ms()
        self._slots[slot.id] = (slot, now + lease_ms)
        for row in self._rows.values():
            if row.slot == slot.id and row.until_ms > now:
                row.until_ms = now + lease_ms

    async def read(self, me: SlotId) -> RegistryState:
        now = self._now_ms()
        # In order of registration, so that the last process of a name is the one that counts.
        live = {
            slot.name: slot.id
            for slot, until in self._slots.values()
            if until > now and slot.id not in self.stopping
        }
        jobs = tuple(
            RegisteredJob(job, desired, self._leases(job, now))
            for job, (_, desired) in sorted(self._specs.items())
        )
        return RegistryState(live, jobs, me in self.stopping)

    def _leases(self, job: JobId, now: int) -> dict[PartitionIndex, Lease]:
        rows = sorted((part, row) for (owner, part), row in self._rows.items() if owner == job)
        return {part: Lease(row.epoch, row.slot, Millis(row.until_ms - now)) for part, row in rows}

    async def spec(self, job: JobId) -> bytes | None:
        return self._specs[job][0] if job in self._specs else None

    async def claim(
        self, wanted: Sequence[tuple[JobPartition, Epoch]], slot: SlotId, lease_ms: Millis
    ) -> dict[JobPartition, Epoch]:
        now, won = self._now_ms(), {}
        for key, seen in wanted:
            row = self._rows.get(key)
            if (
                row is None
                or row.epoch != seen
                or (row.slot not in (None, slot) and row.until_ms > now)
            ):
                continue
            row.epoch, row.slot, row.until_ms = Epoch(seen + 1), slot, now + lease_ms
            row.report = PartitionReport("replaying", None, None)
            won[key] = row.epoch
        return won

    async def resume(
        self, held: Sequence[tuple[JobPartition, Epoch]], slot: SlotId, lease_ms: Millis
    ) -> frozenset[JobPartition]:
        kept = set()
        for key, epoch in held:
            row = self._rows.get(key)
            if row is not None and row.epoch == epoch and row.slot == slot:
                row.until_ms = self._now_ms() + lease_ms
                kept.add(key)
        return frozenset(kept)

    async def release(self, held: Sequence[tuple[JobPartition, Epoch]], slot: SlotId) -> None:
        for key, epoch in held:
            row = self._rows.get(key)
            if row is not None and row.epoch == epoch and row.slot == slot:
                row.slot, row.until_ms, row.report = None, 0, PartitionReport("idle", None, None)

    async def report(
        self, reports: Mapping[JobPartition, tuple[Epoch, PartitionReport]], slot: SlotId
    ) -> None:
        for key, (epoch, report) in reports.items():
            row = self._rows.get(key)
            if row is not None and row.epoch == epoch and row.slot == slot:
                row.report = report

    async def expire_predecessors(self, id_prefix: str, survivor: SlotId) -> None:
        for slot in [
            slot for slot in self._slots if slot.startswith(id_prefix) and slot != survivor
        ]:
            await self.deregister(slot)

    async def deregister(self, slot: SlotId) -> None:
        self._slots.pop(slot, None)
        held = [(key, row.epoch) for key, row in self._rows.items() if row.slot == slot]
        await self.release(held, slot)
