"""The driver of backfills: claims requests, runs them as Spark tasks beside the slots, stages them.

Theory. There is one Spark task per share, on the slots that are kept spare for side jobs. A task
reads history, runs the step over a scratch store and uploads chunks under keys of this attempt. The
manifest is written last, and then the row refers to it. So a task that Spark runs twice, or a
driver that dies, leaves only orphaned objects, which are deleted with the job.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from py4j.protocol import Py4JError

from fennel_core.bank.postgres_registry import PostgresRegistry
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Job
from fennel_core.connections import postgres, s3
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.installation import installation_objects
from fennel_core.connections.postgres import Pool
from fennel_core.engine.backfill.batch import Share, compute
from fennel_core.engine.backfill.lane import BackfillLane
from fennel_core.engine.backfill.manifest import PREFIX as OBJECTS
from fennel_core.engine.backfill.manifest import (
    BackfillManifest,
    ChunkRef,
    attempt_prefix,
    digest,
    encode_chunk,
    encode_manifest,
)
from fennel_core.engine.backfill.planned_files import PlannedFiles
from fennel_core.engine.backfill.queue import CHANNEL, CLAIM_SECONDS, BackfillQueue
from fennel_core.engine.state_progress import STATE_FORMAT
from fennel_core.hangar.rocks import RocksHangar
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.store import HistoryFile
from fennel_core.operators.spec import step_version
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import JobId, JobPartition, PartitionIndex

if TYPE_CHECKING:
    from pyspark import SparkContext

SPARK_JOB_GROUP: Final = "backfill"
SCRATCH_CACHE_BYTES: Final = 32 << 20
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BackfillTask:
    """The work of one Spark task; pickled to its process."""

    spec: bytes
    part: int
    share: Share
    files: tuple[tuple[HistoryFile, ...], ...]
    """Per input: its files in order of offsets, as they were planned."""
    prefix: str
    root: str
    """Prefix of the installation's keys, which files and `prefix` do not contain."""


def backfill_lane(
    context: SparkContext, settings: Settings, environment: Mapping[str, str], pool: Pool
) -> BackfillLane:
    """Return the lane that serves backfills with this Spark application."""
    queue = BackfillQueue(pool)
    driver = BackfillDriver(context, settings, environment, pool, queue)
    dsn = settings.postgres_dsn.get_secret_value()
    return BackfillLane(
        queue, driver, lambda: postgres.listen(dsn, [CHANNEL], name="backfill-wake")
    )


class BackfillDriver:
    """Computes claimed backfills and deletes those of deleted jobs."""

    def __init__(
        self,
        context: SparkContext,
        settings: Settings,
        environment: Mapping[str, str],
        pool: Pool,
        queue: BackfillQueue,
    ) -> None:
        self._context, self._settings, self._queue = context, settings, queue
        self._environment = dict(environment)
        self._registry, self._files = PostgresRegistry(pool), PostgresHistoryFiles(pool)
        self._objects = installation_objects(settings, pool)

    async def serve(self, job: JobId, part: PartitionIndex) -> None:
        """Compute one backfill; a failure is recorded in its row or left to the next claim."""
        renewing = asyncio.create_task(self._renew_claim((job, part)))
        try:
            await self._compute(job, part)
        except SystemUnavailable as unavailable:
            log.warning(
                "backfill interrupted; left to the next claim",
                job=job,
                part=part,
                error=str(unavailable),
            )
        finally:
            renewing.cancel()

    async def delete_orphans(self) -> None:
        """Delete the objects and rows of backfills of deleted jobs."""
        for job in await self._queue.orphans():
            await self._objects.delete(
                [stored.key for stored in await self._objects.list_objects(f"{OBJECTS}/{job}/")]
            )
            await self._queue.delete(job)

    async def _renew_claim(self, partition: JobPartition) -> None:
        while True:
            await asyncio.sleep(CLAIM_SECONDS / 6)
            try:
                await self._queue.renew_claim(*partition)
            except SystemUnavailable as unavailable:
                log.warning("backfill claim was not renewed", error=str(unavailable))

    async def _compute(self, job_id: JobId, part: PartitionIndex) -> None:
        stored = await self._registry.spec(job_id)
        if stored is None:
            return  # the job was deleted
        job = stored_names.loads(stored, Job)
        found = [await self._files.files(topic, part) for topic in job.inputs]
        prefix = attempt_prefix(job.id, part, uuid.uuid4().hex)
        root = await self._objects.root()
        shares = max(1, self._settings.engine_spare_slots // job.partitions)
        files = tuple(tuple(file for file in files if file.row_count) for files in found)
        tasks = [
            BackfillTask(stored, part, Share(number, shares), files, f"{prefix}/{number}", root)
            for number in range(shares)
        ]
        rows = sum(file.row_count for files in found for file in files)
        log.info("backfill begins", job=job.id, part=part, rows=rows, tasks=shares)
        try:
            chunks = await asyncio.to_thread(self._run, tasks)
        except Py4JError as failed:
            reason = str(failed).strip().splitlines()
            log.error("backfill failed", job=job.id, part=part, error=str(failed))
            await self._queue.fail(
                job.id,
                part,
                next((line for line in reversed(reason) if "Error" in line), reason[0]),
            )
            return
        ends = {
            topic: files[-1].next_offset
            for topic, files in zip(job.inputs, found, strict=True)
            if files
        }
        key = f"{prefix}/manifest"
        manifest = BackfillManifest(
            key,
            job.id,
            part,
            step_version(job.step),
            STATE_FORMAT,
            rows,
            {str(t): int(o) for t, o in ends.items()},
            chunks,
        )
        await self._objects.put(key, encode_manifest(manifest))
        await self._queue.complete(job.id, part, key)
        log.info(
            "backfill staged", job=job.id, part=part, rows=rows, chunks=len(chunks), manifest=key
        )

    def _run(self, tasks: list[BackfillTask]) -> list[ChunkRef]:
        """Run the tasks and return their chunks in order. Blocks."""
        environment = self._environment

        def work(task: BackfillTask) -> list[tuple[str, str]]:
            import os

            # Before any import of a module that reads it.
            os.environ.update(environment)
            from fennel_core.engine.backfill.driver import stage
            from fennel_core.settings.model import Settings

            return list(stage(Settings(), task))

        self._context.setJobGroup(SPARK_JOB_GROUP, "backfills", interruptOnCancel=True)
        found = self._context.parallelize(tasks, len(tasks)).map(work).collect()
        return [ChunkRef(key, sha256) for chunks in found for key, sha256 in chunks]


def stage(settings: Settings, task: BackfillTask) -> Iterator[tuple[str, str]]:
    """Compute a share in a Spark task; yield key and SHA-256 of each uploaded chunk."""
    from rocksdict import Cache

    client = s3.client(settings)
    scratch = Path(tempfile.mkdtemp(prefix="backfill-", dir=settings.data_dir))

    planned = PlannedFiles(
        lambda key: s3.get(client, settings.s3_bucket, task.root + key),
        lambda file: asyncio.run(_files_now(settings, file)),
    )
    hangar = RocksHangar(scratch / "state", Cache(SCRATCH_CACHE_BYTES))
    try:
        job = stored_names.loads(task.spec, Job)
        for number, chunk in enumerate(
            compute(job, PartitionIndex(task.part), task.share, task.files, planned.rows, hangar)
        ):
            body, key = encode_chunk(chunk.outgoing, chunk.puts), f"{task.prefix}-{number}"
            s3.put_new(client, settings.s3_bucket, task.root + key, body)
            yield key, digest(body)
    finally:
        hangar.close()
        shutil.rmtree(scratch, ignore_errors=True)


async def _files_now(settings: Settings, planned: HistoryFile) -> tuple[HistoryFile, ...]:
    """Return the files of the partition of a planned one as of now."""
    dsn = settings.postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name="backfill-files", size=1) as pool:
        return await PostgresHistoryFiles(pool).files(planned.topic, planned.part)
