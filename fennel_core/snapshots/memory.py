"""The twins in memory of bucket and pointer rows, with a clock that tests move."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from fennel_core.snapshots.store import Pointer, Stored, StoreError
from fennel_core.vocab.ids import Epoch, JobId, JobPartition, PartitionIndex


class MemoryObjects:
    """See `snapshots.store.Objects`."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.contents: dict[str, bytes] = {}
        self._written: dict[str, datetime] = {}

    async def put(self, key: str, body: bytes) -> None:
        if self.contents.get(key, body) != body:
            raise StoreError(f"{key} is taken by another content")
        if key not in self.contents:
            self.contents[key], self._written[key] = body, self._now()

    async def get(self, key: str) -> bytes | None:
        return self.contents.get(key)

    async def upload(self, key: str, path: Path) -> None:
        await self.put(key, await asyncio.to_thread(path.read_bytes))

    async def download(self, key: str, path: Path) -> str | None:
        body = self.contents.get(key)
        if body is None:
            return None
        await asyncio.to_thread(path.write_bytes, body)
        return hashlib.sha256(body).hexdigest()

    async def stored(self, prefix: str) -> list[Stored]:
        return [
            Stored(key, self._written[key])
            for key in sorted(self.contents)
            if key.startswith(prefix)
        ]

    async def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.contents.pop(key, None)


class MemoryPointers:
    """See `snapshots.store.Pointers`. `epochs` holds the owner of every job partition, as the
    registry would.
    """

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

    async def places(self) -> list[JobPartition]:
        return sorted({(row.job, row.part) for row in self._rows})

    async def jobs(self) -> set[JobId]:
        return {job for job, _ in self.epochs}

    async def now(self) -> datetime:
        return self._now()

    async def remove(self, pointers: Sequence[Pointer]) -> None:
        numbers = {pointer.number for pointer in pointers}
        self._rows = [row for row in self._rows if row.number not in numbers]
