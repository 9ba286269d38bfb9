"""An owner's side of backfills: is a load worth it or required, wait for it, fetch its chunks.

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
from fennel_core.connections.object_store import ObjectStore
from fennel_core.engine.backfill.manifest import (
    BackfillCorrupt,
    BackfillManifest,
    Chunk,
    decode_chunk,
    decode_manifest,
)
from fennel_core.engine.backfill.queue import BackfillQueue, BackfillRequest
from fennel_core.engine.backfill.start_mode import (
    InputLost,
    InputRange,
    StartLive,
    StartWithBackfill,
    choose_start_mode,
)
from fennel_core.history.store import HistoryFiles
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName

POLL_MS: Final = 200
TAKEN_UP_MS: Final = 15_000
"""After this long without a driver the live lane goes on: an engine without a free Spark slot must
not wait for one.
"""
log = structlog.get_logger(__name__)


class BackfillImpossible(Exception):
    """Records that a new job partition needs are deleted, and history cannot take their place."""


class BackfillFailed(Exception):
    """The load that a new job partition needs was not computed; it is asked for again when the job
    partition is tried again.
    """


class BackfillClient(Protocol):
    async def obtain(
        self, job: Job, part: PartitionIndex, starts: Mapping[TopicName, Offset]
    ) -> BackfillManifest | None:
        """The load of a job partition that has no state yet, None where the live lane is to compute
        it. May take as long as the batch.

        `starts`: the first retained offset of each input. Raises BackfillImpossible or
        BackfillFailed where the live path cannot take over because the log is truncated.
        """
        ...

    async def manifest(self, key: str) -> BackfillManifest:
        """A load that was begun; BackfillCorrupt when it is not there any more."""
        ...

    async def chunk(self, load: BackfillManifest, number: int) -> Chunk:
        """BackfillCorrupt when it is not what was staged."""
        ...


class QueuedBackfillClient:
    """`BackfillClient` over the queue table, history and S3.

    Fewer rows of history than `from_rows` are left to the live path where it can read them all.
    """

    def __init__(
        self,
        files: HistoryFiles,
        queue: BackfillQueue,
        objects: ObjectStore,
        from_rows: int,
        sleep: Callable[[int], Awaitable[None]],
    ) -> None:
        self._files, self._queue, self._objects, self._from_rows, self._sleep = (
            files,
            queue,
            objects,
            from_rows,
            sleep,
        )

    async def obtain(
        self, job: Job, part: PartitionIndex, starts: Mapping[TopicName, Offset]
    ) -> BackfillManifest | None:
        inputs = await asyncio.gather(
            *(self._input(topic, part, starts[topic]) for topic in job.inputs)
        )
        match choose_start_mode(job, part, inputs, self._from_rows):
            case StartLive():
                return None
            case InputLost(reason):
                raise BackfillImpossible(reason)
            case StartWithBackfill(rows, required):
                await self._queue.request(job.id, part, rows, retry=required)
                asked = await self._computed(job, part)
                if asked.manifest is not None:
                    return await self.manifest(asked.manifest)
                if required:
                    raise BackfillFailed(
                        f"{job.title} ({job.id}[{part}]) begins with what is in "
                        f"history only, and that was not loaded: {_why(asked)}"
                    )
                log.warning(
                    "no backfill: the live lane computes it",
                    job=job.id,
                    part=part,
                    state=asked.state,
                    error=asked.error,
                )
                return None
            case unreachable:
                assert_never(unreachable)

    async def _input(self, topic: TopicName, part: PartitionIndex, start: Offset) -> InputRange:
        files = await self._files.files(topic, part)
        return InputRange(
            topic,
            start,
            files[-1].next_offset if files else Offset(0),
            sum(file.row_count for file in files),
        )

    async def _computed(self, job: Job, part: PartitionIndex) -> BackfillRequest:
        """How the load ended: with a manifest, `failed`, `expired`, or `gone` together with its
        job.
        """
        waited = 0
        while (asked := await self._queue.find(job.id, part)) is not None:
            if asked.manifest is not None or asked.state in {"failed", "expired"}:
                return asked
            if asked.state == "requested" and waited >= TAKEN_UP_MS:
                await self._queue.expire(job.id, part)
            await self._sleep(POLL_MS)
            waited += POLL_MS
        return BackfillRequest("gone", None, None)

    async def manifest(self, key: str) -> BackfillManifest:
        body = await self._objects.get(key)
        if body is None:
            raise BackfillCorrupt(
                f"the manifest {key} is gone: commit its dataset under a new version"
            )
        return decode_manifest(body)

    async def chunk(self, load: BackfillManifest, number: int) -> Chunk:
        piece = load.chunks[number]
        return decode_chunk(piece, await self._objects.get(piece.key))


def _why(asked: BackfillRequest) -> str:
    if asked.state == "expired":
        return (
            f"no engine took it up within {TAKEN_UP_MS // 1000} s. Does one run, with "
            "FENNEL_ENGINE_SPARE_SLOTS of 1 or more?"
        )
    return f"{asked.error or asked.state}. It is tried again"
