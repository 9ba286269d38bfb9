"""Pointer rows in memory, with a clock that tests control."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime

from fennel_core.snapshots.store import Pointer
from fennel_core.vocab.ids import Epoch, JobId, JobPartition, PartitionIndex


class MemoryPointers:
    """`Pointers` in memory. `epochs` holds the owner of every job partition, like the registry."""

    def __init__(self, now: Callable[[], datetime], epochs: dict[JobPartition, Epoch]) -> None:
        self._now = now
        self.epochs = epochs
        self._rows: list[Pointer] = []
        self._number = 0

    async def add(
        self, job: JobId, part: PartitionIndex, epoch: Epoch, manifest: str, sha256: str
    ) -> bool:
        if self.epochs.get((job, part)) != epoch:
            return False
        self._number += 1
        self._rows.append(Pointer(job, part, self._number, epoch, manifest, sha256, self._now()))
        return True

    async def of(self, job: JobId, part: PartitionIndex) -> list[Pointer]:
        return [row for row in reversed(self._rows) if (row.job, row.part) == (job, part)]

    async def all(self) -> dict[JobPartition, list[Pointer]]:
        return {partition: await self.of(*partition) for partition in await self.partitions()}

    async def partitions(self) -> list[JobPartition]:
        return sorted({(row.job, row.part) for row in self._rows})

    async def jobs(self) -> set[JobId]:
        return {job for job, _ in self.epochs}

    async def now(self) -> datetime:
        return self._now()

    async def mark_incomplete(self, numbers: Collection[int], incomplete: bool) -> None:
        self._rows = [
            replace(row, incomplete=incomplete) if row.number in numbers else row
            for row in self._rows
        ]

    async def remove(self, pointers: Sequence[Pointer]) -> None:
        numbers = {pointer.number for pointer in pointers}
        self._rows = [row for row in self._rows if row.number not in numbers]
