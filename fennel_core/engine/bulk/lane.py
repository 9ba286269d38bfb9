"""An owner's side of the bulk lane: is a load worth it, wait for it, fetch its chunks.

Theory. Asking costs nothing but time: where nobody takes the load up, or it fails, the live lane computes the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog

from fennel_core.blueprints.spec import Job
from fennel_core.engine.bulk.batch import can_load
from fennel_core.engine.bulk.staged import Chunk, Load, LoadDamaged, chunk_of, manifest_of
from fennel_core.engine.bulk.store import Loads
from fennel_core.history.store import HistoryFiles
from fennel_core.snapshots.store import Objects
from fennel_core.vocab.ids import PartitionIndex

POLL_MS: Final = 200
TAKEN_UP_MS: Final = 15_000
"""After this long without a driver the live lane goes on: an engine without a free Spark slot must not wait for one."""
log = structlog.get_logger(__name__)


class Lane(Protocol):
    async def wanted(self, job: Job, part: PartitionIndex) -> Load | None:
        """The load of a job partition that has no state yet, None where the live lane is to compute it. May take as long as the batch."""
        ...

    async def load(self, name: str) -> Load:
        """A load that was begun; LoadDamaged when it is not there any more."""
        ...

    async def chunk(self, load: Load, number: int) -> Chunk:
        """LoadDamaged when it is not what was staged."""
        ...


class BulkLane:
    """See `Lane`. `from_rows`: history below this is left to the live lane."""

    def __init__(
        self, files: HistoryFiles, loads: Loads, objects: Objects, from_rows: int, sleep: Callable[[int], Awaitable[None]]
    ) -> None:
        self._files, self._loads, self._objects, self._from_rows, self._sleep = files, loads, objects, from_rows, sleep

    async def wanted(self, job: Job, part: PartitionIndex) -> Load | None:
        if not can_load(job):
            return None
        found = await asyncio.gather(*(self._files.files(topic, part) for topic in job.inputs))
        rows = sum(file.row_count for files in found for file in files)
        if rows < self._from_rows:
            return None
        await self._loads.ask(job.id, part, rows)
        waited = 0
        while (asked := await self._loads.asked(job.id, part)) is not None:
            if asked.manifest is not None:
                return await self.load(asked.manifest)
            if asked.state in {"failed", "refused"}:
                log.warning("no bulk load: the live lane computes it", job=job.id, part=part, state=asked.state, error=asked.error)
                return None
            if asked.state == "wanted" and waited >= TAKEN_UP_MS:
                await self._loads.refuse(job.id, part)
            await self._sleep(POLL_MS)
            waited += POLL_MS
        return None

    async def load(self, name: str) -> Load:
        body = await self._objects.get(name)
        if body is None:
            raise LoadDamaged(f"the manifest {name} is gone: commit its dataset under a new version")
        return manifest_of(body)

    async def chunk(self, load: Load, number: int) -> Chunk:
        piece = load.pieces[number]
        return chunk_of(piece, await self._objects.get(piece.key))
