"""Run one request for training data: claim it, compute, write the result, and let it count.

The work is done on a thread; beside it the run reports its progress every `REPORT_S`. A report that
is refused means that the request was cancelled or another run has claimed it: then the Spark jobs
are stopped, and what this run has written is deleted. The result counts with one change of the row,
which only the run with the current epoch can make.

Failures. What is wrong with the request itself fails it at once. A job that failed is repeated by
another run, because S3 or Kafka may have been away, until the request was claimed `MAX_CLAIMS`
times (`request_row`).
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Final, TypeVar

import msgspec
import polars as pl
from botocore.exceptions import BotoCoreError, ClientError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fennel_core.blueprints.row_retention import reach_us
from fennel_core.connections import postgres
from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.connections.errors import (
    ConnectionsError,
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.connections.installation import InstallationObjects, installation_objects
from fennel_core.connections.postgres import Pool
from fennel_core.connections.secrets import Sealer, SecretUnreadable
from fennel_core.connections.spark import JVM_EXIT_ERRORS
from fennel_core.offline import request_row
from fennel_core.offline.buckets import Bucket
from fennel_core.offline.errors import OfflineError
from fennel_core.offline.failure_counts import FailureCount
from fennel_core.offline.planning import OfflineRead, plan_offline_read
from fennel_core.offline.request_files import request_folder, result_prefix, staged_prefix
from fennel_core.offline.request_input import InputPart, InputRows, row_groups
from fennel_core.offline.request_postgres import PostgresRequests
from fennel_core.offline.request_row import (
    FailedRow,
    OfflineRequest,
    RequestFailure,
    RequestResult,
    RunProgress,
    RunSuperseded,
    StoredFile,
)
from fennel_core.offline.request_states import TransitionRefused
from fennel_core.offline.request_store import RequestChange, RequestStore
from fennel_core.offline.results import (
    NUMBER,
    ResultFiles,
    ResultPlace,
    WriteWork,
    result_runs,
    write_result,
)
from fennel_core.offline.rows import REASON
from fennel_core.offline.s3_files import list_files
from fennel_core.offline.s3_keys import unseal
from fennel_core.offline.s3_output import Publication
from fennel_core.offline.s3_places import NO_KEYS, PlaceKeys
from fennel_core.offline.s3_staging import StagedInput, StageWork, stage
from fennel_core.offline.spark import SparkRun, session
from fennel_core.offline.task_tools import PlatformTools
from fennel_core.offline.version_pieces import HistoryPiece, estimate_of
from fennel_core.query.columns import QueryColumn
from fennel_core.query.encode import json_values
from fennel_core.query.errors import ViewOutdated
from fennel_core.settings.model import Settings
from fennel_core.telemetry.logs import logger, redact_text
from fennel_core.vocab.dtypes import Dtype, Timestamp, optional
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import Micros

REPORT_S: Final = 2.0
FINISH_S: Final = 300.0
"""How long a run whose features are computed tries to reach S3 and Postgres before its work is
lost."""
AWAY: Final = (SystemUnavailable, TransactionAborted, TransactionOutcomeUnknown)
SMALL_ROWS: Final = 1000
"""A result of at most so many rows is part of the response."""
SAMPLE_ROWS: Final = 20
REASON_CHARS: Final = 2000
ROWS_PER_PARTITION: Final = 1_000_000
ROWS_PER_RECORD: Final = 100
"""Of the tail of a topic, for the number of partitions only."""
T = TypeVar("T")
JOB_FAILED: Final = "offline-job-failed"
log = logger(__name__)


class RunOutcome(StrEnum):
    """How a run ended."""

    DONE = "done"
    NOTHING = "nothing to do"
    FAILED = "failed"
    REPEAT = "to be repeated"


class KeysMissing(OfflineError):
    """The stored keys of a request's buckets cannot be read."""

    code = "offline-keys-missing"


class JobFailed(OfflineError):
    """The Spark job failed; another run repeats it."""

    code = JOB_FAILED


async def run_offline_query(settings: Settings, id_: str) -> RunOutcome:
    """Run a request and return how that ended; raises SystemUnavailable before it is claimed."""
    dsn = settings.postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name="fennel-offline", size=3) as pool:
        store = PostgresRequests(pool)
        try:
            row = await store.change(id_, request_row.claimed)
        except TransitionRefused as ended:
            log.info("nothing to do", request=id_, reason=str(ended))
            return RunOutcome.NOTHING
        if row is None:
            log.info("there is no such request", request=id_)
            return RunOutcome.NOTHING
        if row.failure is not None:
            log.error("failed", request=id_, code=row.failure.code, reason=row.failure.text)
            return RunOutcome.FAILED
        objects = installation_objects(settings, pool)
        return await RequestRun(settings, pool, store, objects, row).run()


@dataclass(slots=True)
class RequestRun:
    """One run of a request that it has claimed."""

    settings: Settings
    pool: Pool
    store: RequestStore
    objects: InstallationObjects
    row: OfflineRequest
    completion: float = 0.0
    failed_rows: int = 0
    _spark: SparkSession | None = None
    _failures: FailureCount | None = None
    _stopped: bool = False
    _all_jobs: bool = False
    _computed: bool = False
    _keys: PlaceKeys = NO_KEYS

    async def run(self) -> RunOutcome:
        """See `run_offline_query`."""
        reporting = asyncio.create_task(self._report())
        try:
            return await self._outcome()
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            if self._spark is not None:
                with suppress(*JVM_EXIT_ERRORS):
                    await asyncio.to_thread(self._spark.stop)

    async def _outcome(self) -> RunOutcome:
        try:
            result = await self._result()
            self._computed = True
            await self._finish(result)
        except RunSuperseded as superseded:
            log.info("the run was stopped", request=self.row.id, reason=str(superseded))
            await self._delete_own()
            return RunOutcome.NOTHING
        except JobFailed as failed:
            if self.row.epoch < request_row.MAX_CLAIMS:
                log.error("the job failed; it is repeated", request=self.row.id, exc_info=failed)
                return RunOutcome.REPEAT
            return await self._fail(failed.code, str(failed))
        except (ApiError, OfflineError) as refused:
            return await self._fail(refused.code, str(refused))
        await self._delete_others(result)
        log.info("done", request=self.row.id, rows=result.row_count)
        return RunOutcome.DONE

    async def _result(self) -> RequestResult:
        """Compute the result. Raises what fails the request, JobFailed and RunSuperseded."""
        try:
            return await self._computed_result()
        except (ConnectionsError, DatabaseUnavailable) as away:
            raise JobFailed(f"a system could not be used: {away}") from away

    async def _computed_result(self) -> RequestResult:
        row, wanted = self.row, self.row.definition
        key = (row.workspace, row.branch)
        try:
            read = await plan_offline_read(
                self.settings, self.pool, key, (wanted.inputs, wanted.outputs)
            )
        except ViewOutdated as moved:
            raise JobFailed(str(moved)) from moved
        root = await self.objects.root()
        prefix = result_prefix(row.workspace, row.id, row.epoch)
        self._keys = await self._read_keys()
        try:
            publication = self._publication()
            if publication is not None:
                if row.epoch > 1:
                    await asyncio.to_thread(publication.clear)
                await asyncio.to_thread(publication.begin)
            files = await asyncio.to_thread(partial(self._compute, read, root, prefix))
            if publication is not None:
                await asyncio.to_thread(publication.publish, files, self._require_running)
        except (ClientError, BotoCoreError) as away:
            raise JobFailed(f"S3 could not be used: {away}") from away
        except (PySparkException, *JVM_EXIT_ERRORS) as failed:
            if self._stopped:
                raise RunSuperseded(
                    f"request `{row.id}` has ended; its jobs were stopped"
                ) from None
            raise JobFailed(f"the Spark job failed: {redact_text(_last_line(failed))}") from failed
        self._require_running()
        # Hours of work must not be repeated because S3 is away for a moment.
        sample = await self._patiently(partial(self._sample, files, root))
        columns_key = await self._patiently(partial(self._columns, read, files, root, prefix))
        warnings = tuple(_shortened(read, wanted.earliest_us))
        return RequestResult(prefix, _stored(files, root), sample, columns_key, warnings)

    def _compute(self, read: OfflineRead, root: str, prefix: str) -> ResultFiles:
        """Compute and write the files; blocks until Spark is done."""
        settings, row, wanted = self.settings, self.row, self.row.definition
        self._spark = spark = session(settings, f"offline query {row.id}")
        self._require_running()  # until now there were no jobs to cancel
        self._failures = spark.sparkContext.accumulator(0)
        given = self._input(spark, read, root)
        slices = read.pieces(given.latest)
        pieces = {
            job: tuple(HistoryPiece(settings, piece) for piece in of_job)
            for job, of_job in slices.items()
        }
        partitions = _partitions(read, given.row_count, spark.sparkContext.defaultParallelism)
        log.info(
            "computing",
            request=row.id,
            rows=given.row_count,
            datasets=len(pieces),
            pieces=sum(map(len, pieces.values())),
            **asdict(estimate_of(slices.values())),
            partitions=partitions,
        )
        tools = PlatformTools(settings, row.workspace, f"{row.branch}@{read.commit}")
        run = SparkRun(spark, read.query, pieces, tools, given.latest, partitions, self._failures)
        runs = result_runs(given.row_count)
        blocks = run.run(InputRows(settings, row_groups(given.parts)), runs)
        self._all_jobs = True
        place = ResultPlace(settings, root + prefix, wanted.timestamp_column)
        return write_result(blocks, WriteWork(place, run.result, runs))

    def _input(self, spark: SparkSession, read: OfflineRead, root: str) -> StagedInput:
        """Return the stored rows of the request, which are read from its files before."""
        row, wanted = self.row, self.row.definition
        if wanted.source is None:
            part = InputPart(root + wanted.input_key, 0, wanted.row_count)
            return StagedInput((part,), Micros(wanted.latest_us or 0))
        bucket = Bucket(self.settings, wanted.source.bucket, self._keys.source)
        files = list_files(bucket, wanted.source)
        log.info("reading files", request=row.id, files=len(files), bucket=bucket.name)
        types = {name: dtype for name, dtype, _ in read.query.planned.program().inputs}
        prefix = root + staged_prefix(row.workspace, row.id, row.epoch)
        work = StageWork(
            self.settings, bucket, wanted.source, files, types, wanted.timestamp_column, prefix
        )
        return stage(spark, work)

    def _publication(self) -> Publication | None:
        """Return the folder of the result in the user's bucket, None if it has none."""
        target = self.row.definition.target
        if target is None:
            return None
        bucket = Bucket(self.settings, target.bucket, self._keys.target)
        return Publication(self.settings, bucket, target.folder(self.row.id))

    async def _read_keys(self) -> PlaceKeys:
        """Return the keys of the request's buckets."""
        key, key_file = self.row.definition.keys_key, self.settings.secrets_key_file
        if not key:
            return NO_KEYS
        sealed = await self.objects.get(key)
        if sealed is None or key_file is None:
            raise KeysMissing(
                "the keys of the request's buckets are gone, or FENNEL_SECRETS_KEY_FILE is not "
                "set for the run; send the request again"
            )
        try:
            return unseal(Sealer.from_file(key_file), self.row.workspace, self.row.id, sealed)
        except SecretUnreadable as closed:
            raise KeysMissing(f"{closed}; send the request again") from closed

    def _require_running(self) -> None:
        if self._stopped:
            raise RunSuperseded(f"request `{self.row.id}` has ended; its result is dropped")

    async def _report(self) -> None:
        """Report the progress until the run ends; stop the jobs when a report is refused."""
        while True:
            await asyncio.sleep(REPORT_S)
            if self._computed:
                return  # what is left is one change, and it has a deadline of its own
            completion = await asyncio.to_thread(self._progress)
            failed = self._failed_rows()
            if completion > self.completion or failed > self.failed_rows:
                done = round(completion, 2)
                log.info("progress", request=self.row.id, completion=done, failed_rows=failed)
                self.completion, self.failed_rows = completion, failed
            report = partial(
                _reported, epoch=self.row.epoch, progress=RunProgress(completion, failed)
            )
            try:
                await self._change(report)
            except ConnectionsError as lost:
                # The job goes on; a run that claims the request in between fences this one.
                log.warning("progress not reported; retrying", reason=str(lost))
            except RunSuperseded as superseded:
                log.info("stopping", request=self.row.id, reason=str(superseded))
                self._stopped = True
                await asyncio.to_thread(self._cancel_jobs)
                # Later jobs of this run are cancelled as well, until its thread has ended.

    def _cancel_jobs(self) -> None:
        if self._spark is not None:
            with suppress(*JVM_EXIT_ERRORS):
                self._spark.sparkContext.cancelAllJobs()

    def _progress(self) -> float:
        """Return the part of the known tasks that have ended."""
        if self._spark is None or not self._all_jobs:
            return self.completion  # the jobs that compute are not known yet
        try:
            tracker = self._spark.sparkContext.statusTracker()
            jobs = [tracker.getJobInfo(id_) for id_ in tracker.getJobIdsForGroup()]
            stages = [tracker.getStageInfo(i) for job in jobs if job for i in job.stageIds]
            total = sum(stage.numTasks for stage in stages if stage)
            done = sum(stage.numCompletedTasks for stage in stages if stage)
        except JVM_EXIT_ERRORS:
            return self.completion
        return max(self.completion, done / total if total else 0.0)

    def _failed_rows(self) -> int:
        """Return the rows that are known to have failed in tasks that have ended."""
        rows, failures = self.row.definition.row_count, self._failures
        return 0 if failures is None else min(failures.value, rows or failures.value)

    async def _finish(self, result: RequestResult) -> None:
        """Let the result count. Raises RunSuperseded and SystemUnavailable."""
        epoch = self.row.epoch
        await self._persistently(
            lambda row, now: request_row.finished(row, epoch, result, now), result
        )

    async def _fail(self, code: str, text: str) -> RunOutcome:
        epoch, failure = self.row.epoch, RequestFailure(code, _storable(text))
        log.error("failed", request=self.row.id, code=code, reason=text)
        try:
            await self._persistently(
                lambda row, now: request_row.failed(row, epoch, failure, now), None
            )
        except RunSuperseded:
            return RunOutcome.NOTHING
        await self._delete_own()
        return RunOutcome.FAILED

    async def _persistently(self, change: RequestChange, result: RequestResult | None) -> None:
        """Apply a change that ends the request, while Postgres may be away for some time."""
        await self._patiently(partial(self._change_once, change, result))

    async def _change_once(self, change: RequestChange, result: RequestResult | None) -> None:
        try:
            await self._change(change)
        except RunSuperseded:
            # The response to the same change may have been lost.
            found = await self.store.read(self.row.id)
            if result is None or found is None or found.result != result:
                raise

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat work, which may be done twice, for `FINISH_S` while a system is away.

        Raises what it raises, and RunSuperseded if the request ends in that time.
        """
        deadline = asyncio.get_running_loop().time() + FINISH_S
        while True:
            try:
                return await work()
            except AWAY as away:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                log.warning("a system is away; retrying", request=self.row.id, reason=str(away))
            await asyncio.sleep(REPORT_S)
            if self._stopped:
                raise RunSuperseded(f"request `{self.row.id}` has ended; its result is dropped")

    async def _change(self, change: RequestChange) -> None:
        if await self.store.change(self.row.id, change) is None:
            raise RunSuperseded(f"request `{self.row.id}` was deleted with its workspace")

    async def _sample(self, files: ResultFiles, root: str) -> tuple[FailedRow, ...]:
        found: list[FailedRow] = []
        for file in files.files:
            if file.failed_key and len(found) < SAMPLE_ROWS:
                frame = (await self._frame(file.failed_key, root)).head(SAMPLE_ROWS - len(found))
                rows = zip(frame[NUMBER].to_list(), frame[REASON].to_list(), strict=True)
                found += [FailedRow(row, _storable(reason)) for row, reason in rows]
        return tuple(found)

    async def _columns(
        self, read: OfflineRead, files: ResultFiles, root: str, prefix: str
    ) -> str | None:
        """Store a small result as the columns that `query` returns, and return its key."""
        wanted = self.row.definition
        if files.row_count > SMALL_ROWS or len(files.files) != 1:
            return None
        [file] = files.files
        frame = await self._frame(file.object_key, root)
        outputs = read.query.planned.plan.outputs
        types: dict[str, Dtype] = {wanted.timestamp_column: Timestamp()}
        types |= {output.ref.fqn: output.dtype for output in outputs}
        columns = {name: _json_column(frame[name], dtype) for name, dtype in types.items()}
        key = f"{prefix}/columns.json"
        await self.objects.put(key, msgspec.json.encode(columns))
        return key

    async def _frame(self, key: str, root: str) -> pl.DataFrame:
        body = await self.objects.get(key.removeprefix(root))
        assert body is not None, "this run has just written it"
        return pl.read_parquet(io.BytesIO(body))

    async def _delete_others(self, result: RequestResult) -> None:
        """Delete the input, and what earlier runs and repeated tasks have left."""
        kept = {
            result.columns_key,
            *(k for f in result.files for k in (f.object_key, f.failed_key)),
        }
        folder = request_folder(self.row.workspace, self.row.id)
        await self._delete(folder, kept)

    async def _delete_own(self) -> None:
        row = self.row
        await self._delete(f"{result_prefix(row.workspace, row.id, row.epoch)}/", set())

    async def _delete(self, prefix: str, kept: set[str | None]) -> None:
        try:
            found = [each.key for each in await self.objects.list_objects(prefix)]
            await self.objects.delete([key for key in found if key not in kept])
        except SystemUnavailable as failed:
            log.warning("objects not deleted; they leave with the request", reason=str(failed))


def _reported(
    row: OfflineRequest, now: datetime, *, epoch: int, progress: RunProgress
) -> OfflineRequest:
    return request_row.reported(row, epoch, progress, now)


def _partitions(read: OfflineRead, rows: int, cores: int) -> int:
    """Return the partitions of each shuffle: enough that one is sorted in a task's memory."""
    stored = [
        sum(file.row_count for file in part.files) + ROWS_PER_RECORD * (part.end - part.tail_first)
        for parts in read.slices.values()
        for part in parts
    ]
    return max(cores, -(-(sum(stored) + rows) // ROWS_PER_PARTITION))


def _stored(files: ResultFiles, root: str) -> tuple[StoredFile, ...]:
    return tuple(
        StoredFile(
            file.object_key.removeprefix(root),
            file.failed_key.removeprefix(root),
            file.row_count,
            file.failed,
        )
        for file in files.files
    )


def _shortened(read: OfflineRead, earliest_us: int | None) -> Iterator[str]:
    """Yield what features may lack; `earliest_us`: the time of the first row, where it is known."""
    for topic in sorted(read.shortened):
        yield (
            f"the first records of topic `{topic}` were removed, because they are older than the "
            "`history` of its dataset: features of early times may lack them"
        )
    for job, parts in sorted(read.slices.items()):
        if rows := sum(part.expired_rows for part in parts):
            features = "features"
            if (reach := reach_us(read.query.specs[job])) is not None:
                complete_us = max(part.expired_to for part in parts) + reach
                if earliest_us is not None and earliest_us >= complete_us:
                    continue
                complete = datetime.fromtimestamp(complete_us / 1e6, UTC).isoformat()
                features = f"features of rows before {complete}"
            yield (
                f"{rows} rows of topic `{parts[0].partition[0]}` were removed, because they are "
                f"older than the `history` of its datasets: {features} may lack them"
            )


def _json_column(series: pl.Series, dtype: Dtype) -> list[object]:
    typed = optional(dtype) if series.null_count() else dtype
    return list(json_values(QueryColumn(typed, series=series)))


def _storable(text: str) -> str:
    """Return a text for a row of Postgres, which stores no zero character."""
    return text.replace("\0", "?")[:REASON_CHARS]


def _last_line(failed: BaseException) -> str:
    """Return the line of a Spark failure that names its cause."""
    lines = [line.strip() for line in str(failed).splitlines() if line.strip()]
    causes = [line for line in lines if "Error" in line or "Failed" in line or "[" in line]
    return (causes or lines or [type(failed).__name__])[-1][:REASON_CHARS]
