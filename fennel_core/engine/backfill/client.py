"""The owner's side of a backfill: decide whether to start with one, await it, read its chunks.

Theory. A backfill is an optimization wherever the log has all records: if no driver claims the
request, or it fails, the live path computes the same. Where the log is truncated there is no other
way; then the job partition parks with the reason and requests the backfill again when it is
retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, assert_never

import polars as pl
import structlog

from fennel_core.blueprints.spec import Job
from fennel_core.connections.object_store import ObjectStore
from fennel_core.engine.backfill.errors import (
    BackfillCorrupt,
    BackfillFailed,
    BackfillImpossible,
)
from fennel_core.engine.backfill.manifest import (
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
from fennel_core.history.parquet import decode_file
from fennel_core.history.store import HistoryFile, HistoryFiles, first_gap
from fennel_core.vocab.ids import JobPartition, Offset, PartitionIndex, TopicName

POLL_MS: Final = 200
CLAIM_TIMEOUT_MS: Final = 15_000
"""After this long without a driver the live path continues: an engine without a free Spark slot
must not wait for one.
"""
log = structlog.get_logger(__name__)


class BackfillClient(Protocol):
    """What a runner needs of backfills."""

    async def obtain(
        self, job: Job, part: PartitionIndex, starts: Mapping[TopicName, Offset]
    ) -> BackfillManifest | None:
        """Return the backfill of a job partition without state; None to start on the live path.

        It may take as long as the batch. `starts`: the first retained offset of each input. Raises
        BackfillImpossible or BackfillFailed where the live path cannot take over because the log is
        truncated.
        """
        ...

    async def manifest(self, key: str) -> BackfillManifest:
        """Return a backfill that was begun; BackfillCorrupt if its manifest is gone."""
        ...

    async def chunk(self, manifest: BackfillManifest, number: int) -> Chunk:
        """Return one chunk; BackfillCorrupt if it is not what was staged."""
        ...

    async def archived_files(
        self, topic: TopicName, part: PartitionIndex, first: Offset
    ) -> Sequence[HistoryFile]:
        """Return the files of history that hold records at offset `first` or later, in order."""
        ...

    async def archived_rows(self, file: HistoryFile) -> pl.DataFrame:
        """Return the rows of a file of history; BackfillCorrupt if the object is gone."""
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
        self._files, self._queue, self._objects = files, queue, objects
        self._from_rows, self._sleep = from_rows, sleep
        self._asked: set[JobPartition] = set()
        self._poll: asyncio.Task[Mapping[JobPartition, BackfillRequest]] | None = None

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
                if removed := sum(each.removed_rows for each in inputs):
                    log.warning(
                        "a job starts without rows of erased keys",
                        job=job.id,
                        part=part,
                        removed_rows=removed,
                    )
                if expired := sum(each.expired_rows for each in inputs):
                    log.warning(
                        "a job starts without rows that are older than `history`",
                        job=job.id,
                        part=part,
                        expired_rows=expired,
                    )
                await self._queue.request(job.id, part, rows, retry=required)
                request = await self._await_result(job, part)
                if request.manifest is not None:
                    return await self.manifest(request.manifest)
                if required:
                    raise BackfillFailed(
                        f"{job.title} ({job.id}[{part}]) needs records that only history has, "
                        f"and they were not backfilled: {_reason(request)}"
                    )
                log.warning(
                    "no backfill; starting on the live path",
                    job=job.id,
                    part=part,
                    state=request.state,
                    error=request.error,
                )
                return None
            case unreachable:
                assert_never(unreachable)

    async def archived_files(
        self, topic: TopicName, part: PartitionIndex, first: Offset
    ) -> Sequence[HistoryFile]:
        files = await self._files.files(topic, part)
        return [file for file in files if file.next_offset > first]

    async def archived_rows(self, file: HistoryFile) -> pl.DataFrame:
        body = await self._objects.get(file.object_key)
        if body is None:
            raise BackfillCorrupt(
                f"object {file.object_key} of history is missing. Retry: it may have been merged "
                "with others; if it is missing again, restore it from a backup of the bucket"
            )
        return await asyncio.to_thread(decode_file, body)

    async def _input(self, topic: TopicName, part: PartitionIndex, start: Offset) -> InputRange:
        files = await self._files.files(topic, part)
        begins = files[0].first_offset if files else Offset(0)
        return InputRange(
            topic,
            start,
            files[-1].next_offset if files else Offset(0),
            sum(file.row_count for file in files),
            sum(file.removed_rows for file in files),
            (Offset(0), begins) if begins else first_gap(files),
            sum(file.expired_rows for file in files),
        )

    async def _await_result(self, job: Job, part: PartitionIndex) -> BackfillRequest:
        """Return the finished request; its state is `deleted` if the row went with its job."""
        waited = 0
        while (request := await self._next_state((job.id, part))) is not None:
            waited += POLL_MS
            if request.manifest is not None or request.state in {"failed", "expired"}:
                return request
            if request.state == "requested" and waited >= CLAIM_TIMEOUT_MS:
                await self._queue.expire(job.id, part)
        return BackfillRequest("deleted", None, None)

    async def _next_state(self, partition: JobPartition) -> BackfillRequest | None:
        """Return the row after one poll interval; all that wait in this slot share one read."""
        self._asked.add(partition)
        if self._poll is None:
            self._poll = asyncio.create_task(self._read_asked())
            # A failure reaches those that wait; if all were cancelled, it is of no interest.
            self._poll.add_done_callback(lambda poll: poll.cancelled() or poll.exception())
        return (await asyncio.shield(self._poll)).get(partition)

    async def _read_asked(self) -> Mapping[JobPartition, BackfillRequest]:
        await self._sleep(POLL_MS)
        asked, self._asked, self._poll = self._asked, set(), None
        return await self._queue.find_all(asked)

    async def manifest(self, key: str) -> BackfillManifest:
        body = await self._objects.get(key)
        if body is None:
            raise BackfillCorrupt(
                f"backfill manifest {key} is missing; commit its dataset under a new version"
            )
        return decode_manifest(body)

    async def chunk(self, manifest: BackfillManifest, number: int) -> Chunk:
        ref = manifest.chunks[number]
        return decode_chunk(ref, await self._objects.get(ref.key))


def _reason(request: BackfillRequest) -> str:
    if request.state == "expired":
        return (
            f"no engine claimed the backfill within {CLAIM_TIMEOUT_MS // 1000} s. Check that one "
            "runs with FENNEL_ENGINE_SPARE_SLOTS of 1 or more"
        )
    return f"{request.error or request.state}. It is retried"
