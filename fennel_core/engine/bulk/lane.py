"""An owner's side of the bulk lane: is a load worth it or needed, wait for it, fetch its chunks.

Theory. Asking costs nothing but time: where nobody takes the load up, or it fails, the live lane
computes the same. Only where a log has lost its beginning there is no other way: then the job
partition is parked with the reason, and asks again when it is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, assert_never

import structlog

from fennel_core.blueprints.spec import Job
from fennel_core.engine.bulk.decide import Batch, Input, Live, Lost, decide
from fennel_core.engine.bulk.staged import Chunk, Load, LoadDamaged, chunk_of, manifest_of
from fennel_core.engine.bulk.store import Asked, Loads
from fennel_core.history.store import HistoryFiles
from fennel_core.snapshots.store import Objects
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName

POLL_MS: Final = 200
TAKEN_UP_MS: Final = 15_000
"""After this long without a driver the live lane goes on: an engine without a free Spark slot must
not wait for one.
"""
log = structlog.get_logger(__name__)


class RowsGone(Exception):
    """Records that a new job partition needs are deleted, and history cannot take their place."""


class NotLoaded(Exception):
    """The load that a new job partition needs was not computed; it is asked for again when the job
    partition is tried again.
    """


class Lane(Protocol):
    async def wanted(
        self, job: Job, part: PartitionIndex, starts: Mapping[TopicName, Offset]
    ) -> Load | None:
        """The load of a job partition that has no state yet, None where the live lane is to compute
        it. May take as long as the batch.

        `starts`: where its inputs' logs begin. RowsGone and NotLoaded where the live lane cannot,
        for their beginning is gone.
        """
        ...

    async def load(self, name: str) -> Load:
        """A load that was begun; LoadDamaged when it is not there any more."""
        ...

    async def chunk(self, load: Load, number: int) -> Chunk:
        """LoadDamaged when it is not what was staged."""
        ...


class BulkLane:
    """See `Lane`. `from_rows`: history below this is left to the live lane where that can read it
    all.
    """

    def __init__(
        self,
        files: HistoryFiles,
        loads: Loads,
        objects: Objects,
        from_rows: int,
        sleep: Callable[[int], Awaitable[None]],
    ) -> None:
        self._files, self._loads, self._objects, self._from_rows, self._sleep = (
            files,
            loads,
            objects,
            from_rows,
            sleep,
        )

    async def wanted(
        self, job: Job, part: PartitionIndex, starts: Mapping[TopicName, Offset]
    ) -> Load | None:
        inputs = await asyncio.gather(
            *(self._input(topic, part, starts[topic]) for topic in job.inputs)
        )
        match decide(job, part, inputs, self._from_rows):
            case Live():
                return None
            case Lost(told):
                raise RowsGone(told)
            case Batch(rows, needed):
                await self._loads.ask(job.id, part, rows, again=needed)
                asked = await self._computed(job, part)
                if asked.manifest is not None:
                    return await self.load(asked.manifest)
                if needed:
                    raise NotLoaded(
                        f"{job.title} ({job.id}[{part}]) begins with what is in "
                        f"history only, and that was not loaded: {_why(asked)}"
                    )
                log.warning(
                    "no bulk load: the live lane computes it",
                    job=job.id,
                    part=part,
                    state=asked.state,
                    error=asked.error,
                )
                return None
            case unreachable:
                assert_never(unreachable)

    async def _input(self, topic: TopicName, part: PartitionIndex, start: Offset) -> Input:
        files = await self._files.files(topic, part)
        return Input(
            topic,
            start,
            files[-1].next_offset if files else Offset(0),
            sum(file.row_count for file in files),
        )

    async def _computed(self, job: Job, part: PartitionIndex) -> Asked:
        """How the load ended: with a manifest, `failed`, `refused`, or `gone` together with its
        job.
        """
        waited = 0
        while (asked := await self._loads.asked(job.id, part)) is not None:
            if asked.manifest is not None or asked.state in {"failed", "refused"}:
                return asked
            if asked.state == "wanted" and waited >= TAKEN_UP_MS:
                await self._loads.refuse(job.id, part)
            await self._sleep(POLL_MS)
            waited += POLL_MS
        return Asked("gone", None, None)

    async def load(self, name: str) -> Load:
        body = await self._objects.get(name)
        if body is None:
            raise LoadDamaged(
                f"the manifest {name} is gone: commit its dataset under a new version"
            )
        return manifest_of(body)

    async def chunk(self, load: Load, number: int) -> Chunk:
        piece = load.pieces[number]
        return chunk_of(piece, await self._objects.get(piece.key))


def _why(asked: Asked) -> str:
    if asked.state == "refused":
        return (
            f"no engine took it up within {TAKEN_UP_MS // 1000} s. Does one run, with "
            "FENNEL_ENGINE_SPARE_SLOTS of 1 or more?"
        )
    return f"{asked.error or asked.state}. It is tried again"
