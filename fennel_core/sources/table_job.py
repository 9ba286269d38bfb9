"""Read a table once, from its position to all that there is now: a run of a source on a schedule.

A run is a Spark application: the driver plans pages (`table_reads`), Spark's JDBC source streams
each with one connection, and one worker writes its batches in order. Each batch is a transaction
with its cursor, so a run that is killed anywhere is continued by the next one. Pages are bounded,
so no query holds back the vacuum of the database for hours.

While a page is written the run reports in Postgres every `REPORT_S`; a report that is refused
means that the run was taken for lost, or the source is gone: it stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fennel_core.connections import postgres, secrets
from fennel_core.connections.errors import ConnectionsError, SystemUnavailable
from fennel_core.connections.external_postgres import (
    ExternalPostgres,
    cursor_kind,
    describe_table,
    opened,
    served_columns,
    transaction_clock,
)
from fennel_core.connections.spark import JVM_EXIT_ERRORS, postgres_jars, session_builder
from fennel_core.ingest.postgres import PostgresDirectory
from fennel_core.settings.model import MIB, Settings
from fennel_core.sources.errors import FeedRemoved, SourceError, StreamReplaced
from fennel_core.sources.feeds import Feed
from fennel_core.sources.kafka import read_positions
from fennel_core.sources.messages import TRANSACTION_BYTES, TRANSACTION_ROWS
from fennel_core.sources.overview import (
    SourceView,
    cursor_and_disorder,
    source_views,
    view_interval,
)
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.postgres import PostgresSourceControls
from fennel_core.sources.read_rows import StreamPlace
from fennel_core.sources.spark import REASON_CHARS, reason_of
from fennel_core.sources.table_reads import (
    TableCursor,
    TableRead,
    at_page,
    cursor_of,
    highest_query,
    look_back_of,
    page_query,
    require_readable,
    require_same_columns,
    shown,
    unordered_query,
)
from fennel_core.sources.table_run_postgres import PostgresTableRuns
from fennel_core.sources.table_runs import (
    LEASE,
    TableProgress,
    TableRun,
    TableRuns,
    completed,
    failed,
    reported,
    stopped,
)
from fennel_core.sources.table_task import WRITTEN_DDL, PageWork, page_task
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.wire.connectors import Postgres, PostgresTable, SealedSecret

T = TypeVar("T")
REPORT_S: Final = LEASE.total_seconds() / 6
FETCHED_ROWS: Final = 10_000
"""Rows that JDBC receives at once."""
UNORDERED_SHOWN: Final = 1_000
log = logger(__name__)


class RowsWithoutCursor(SourceError):
    """Rows have no value of the cursor, so they are never read."""

    code = "source-rows-without-cursor"


class RunStopped(SourceError):
    """The run is to end: its source was paused or removed, or another run has begun."""

    code = "source-run-stopped"


class RunEnd(StrEnum):
    """How a run ended."""

    COMPLETE = "complete"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Page:
    """What was written of a page."""

    rows: int
    after: StreamPlace
    complete: bool
    accepted: int
    late: int
    dead: int


async def run_table_source(settings: Settings, topic: TopicName, run: str) -> RunEnd:
    """Read the table whose rows are in `topic`. Raises `SystemUnavailable` before it begins."""
    dsn = settings.postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name="fennel-table", size=2) as pool:
        runs, controls = PostgresTableRuns(pool), PostgresSourceControls(pool)
        workspace = WorkspaceId(topic.partition(".")[0])
        branches = await PostgresDirectory(pool).read(workspace, {})
        views = [
            view
            for view in source_views(branches)
            if view.feed is not None and view.feed.raw_topic == topic
        ]
        if not views:
            log.info("no branch has the source any more", topic=topic)
            return RunEnd.STOPPED
        job = TableJob(settings, views[0], runs, run)
        return await job.run(lambda: _is_paused(controls, topic))


async def _is_paused(controls: PostgresSourceControls, topic: TopicName) -> bool:
    return topic in await controls.pauses()


class TableJob:
    """One run. Use once, from one event loop."""

    def __init__(self, settings: Settings, view: SourceView, runs: TableRuns, run: str) -> None:
        assert view.feed is not None, "a table has positions"
        self._settings, self._view, self._runs, self._name = settings, view, runs, run
        self._feed: Feed = view.feed
        self._every = view_interval(view)
        self._spark: SparkSession | None = None
        self._progress = TableProgress(0, None)
        self._stopped: str | None = None

    async def run(self, is_paused: Callable[[], Any]) -> RunEnd:
        """Read until nothing is left, and store how that ended."""
        reports = asyncio.create_task(self._report(is_paused))
        try:
            await self._store(lambda row, now: reported(row, self._progress, now))
            await asyncio.to_thread(self._read)
        except (RunStopped, FeedRemoved) as order:
            return await self._ended(RunEnd.STOPPED, str(order))
        except (ConnectionsError, SourceError, PySparkException, *JVM_EXIT_ERRORS) as broken:
            if self._stopped is not None:
                return await self._ended(RunEnd.STOPPED, self._stopped)
            return await self._ended(RunEnd.FAILED, _reason(broken))
        finally:
            reports.cancel()
            if self._spark is not None:
                with suppress(*JVM_EXIT_ERRORS):
                    self._spark.stop()
        return await self._ended(RunEnd.COMPLETE, "")

    async def _ended(self, end: RunEnd, reason: str) -> RunEnd:
        match end:
            case RunEnd.COMPLETE:
                await self._store(lambda row, now: completed(row, self._progress, now))
                log.info("table is read", source=self._feed.title, **self._said())
            case RunEnd.STOPPED:
                with suppress(RunStopped):  # of a pause, the next run begins when it is lifted
                    await self._store(lambda row, now: stopped(row, reason, now))
                log.info("run stopped", source=self._feed.title, reason=reason, **self._said())
            case RunEnd.FAILED:
                await self._store(lambda row, now: failed(row, reason, self._every, now))
                log.error(
                    "table cannot be read", source=self._feed.title, reason=reason, **self._said()
                )
        return end

    def _said(self) -> dict[str, Any]:
        progress = self._progress
        return {"rows": progress.rows_read, "cursor": progress.cursor, "held_by": progress.held_by}

    async def _store(self, change: Callable[[TableRun, Any], TableRun]) -> None:
        """Change the row of this run. Raises `RunStopped` if it is another's."""
        now, rows = await self._runs.read()
        row = rows.get(self._feed.raw_topic)
        if row is None or row.run != self._name:
            raise RunStopped(f"{self._feed.title}: another run has begun, or the source is gone")
        if not await self._runs.put(self._feed.raw_topic, row, change(row, now)):
            raise RunStopped(f"{self._feed.title}: another run has begun")

    async def _report(self, is_paused: Callable[[], Any]) -> None:
        """Renew the lease without end; stop the run when it is refused, or the source is paused."""
        while self._stopped is None:
            await asyncio.sleep(REPORT_S)
            try:
                if await is_paused():
                    self._stopped = f"{self._feed.title} was paused"
                else:
                    await self._store(lambda row, now: reported(row, self._progress, now))
            except SystemUnavailable as lost:
                log.warning("run not reported; retrying", reason=str(lost))
            except RunStopped as order:
                self._stopped = str(order)
            if self._stopped is not None and self._spark is not None:
                with suppress(*JVM_EXIT_ERRORS):
                    self._spark.sparkContext.cancelAllJobs()

    def _read(self) -> None:
        """Read page by page; blocks."""
        database, read, position = self._begin()
        before = StreamPlace() if position is None else StreamPlace(position.next, position.cursor)
        cursor = cursor_of(before.cursor)
        self._spark = session(self._settings)
        while self._stopped is None:
            with database.connect() as connection:
                paged = at_page(read, transaction_clock(connection))
            page = self._page(database, paged, cursor, before, position)
            before, cursor = page.after, cursor_of(page.after.cursor)
            at = None if cursor is None else shown(read.kind, cursor.levels[0].value)
            self._progress = TableProgress(
                self._progress.rows_read + page.rows, at, read.clock.end - read.clock.horizon
            )
            log.info(
                "page is read",
                source=self._feed.title,
                accepted=page.accepted,
                late=page.late,
                dead=page.dead,
                **self._said(),
            )
            if page.complete:
                self._require_order(database, read)
                return
        raise RunStopped(self._stopped)

    def _begin(self) -> tuple[ExternalPostgres, TableRead, SourcePosition | None]:
        """Look at the table and the position. Raises what the user has to be order."""
        feed, table = self._feed, self._feed.table
        assert isinstance(table, PostgresTable), "only tables of Postgres are read on a schedule"
        database = database_of(feed, self._settings)
        partition = feed.partition(0)
        position = read_positions(self._settings, feed.positions, partition.position_partition).get(
            partition.key
        )
        with database.connect() as connection:
            found = describe_table(database, connection, table.table)
            if position is not None and position.origin != found.origin:
                raise StreamReplaced(feed.title, position.origin, found.origin)
            before = None if position is None else cursor_of(position.cursor)
            [name, disorder_us] = cursor_and_disorder(self._view)
            column = found.column(name)
            kind = None if column is None else cursor_kind(column)
            if column is None or kind is None:
                raise SourceError(
                    f"{feed.title}: cursor `{name}` is no column of integers, dates or times; "
                    "commit the source with another cursor"
                )
            read = TableRead(
                found,
                column,
                kind,
                served_columns(found),
                transaction_clock(connection),
                look_back_of(kind, disorder_us),
            )
            require_same_columns(read, before, partition.title)
            row = connection.execute(highest_query(read)).fetchone()
            require_readable(read, before, None if row is None else row[0], partition.title)
        return database, read, position

    def _page(
        self,
        database: ExternalPostgres,
        read: TableRead,
        cursor: TableCursor | None,
        after: StreamPlace,
        position: SourcePosition | None,
    ) -> Page:
        spark, most = self._spark, self._settings.source_page_rows
        assert spark is not None, "Spark is started before the first page"
        query = page_query(read, cursor, most + 1).as_string(None)
        work = PageWork(
            self._settings,
            self._feed.partition(0),
            0 if position is None else position.rewinds,
            read,
            after,
            most,
        )
        written = (
            spark.read.format("jdbc")
            .options(**database.jdbc_options())
            .option("dbtable", f"({query}) AS page")
            .option("fetchsize", FETCHED_ROWS)
            .load()
            .mapInArrow(page_task(work), WRITTEN_DDL)
            .toArrow()
        )
        return page_of(written, after)

    def _require_order(self, database: ExternalPostgres, read: TableRead) -> None:
        if read.cursor.not_null and read.kind == "integer":
            return
        with database.connect() as connection:
            row = connection.execute(unordered_query(read, UNORDERED_SHOWN)).fetchone()
        count = 0 if row is None else int(row[0])
        if count:
            many = f"{count} rows" if count < UNORDERED_SHOWN else f"{count} rows or more"
            raise RowsWithoutCursor(
                f"{self._feed.title}: {many} have no `{read.cursor.name}` (null or infinite), so "
                "they are not read, and all others are; give them a value"
            )


def page_of(written: pa.Table, after: StreamPlace) -> Page:
    """Return what the transactions of a page did; `after`: where it began."""
    rows = written.to_pylist()
    if not rows:
        return Page(0, after, True, 0, 0, 0)
    last = max(rows, key=lambda row: int(row["next"]))
    sums = {name: sum(row[name] for row in rows) for name in ("rows", "accepted", "late", "dead")}
    end = StreamPlace(last["next"], last["cursor"])
    return Page(sums["rows"], end, last["complete"], sums["accepted"], sums["late"], sums["dead"])


def database_of(feed: Feed, settings: Settings) -> ExternalPostgres:
    """Return the database of a table with its credentials."""
    table = feed.table
    assert isinstance(table, PostgresTable), "a table of Postgres"
    assert isinstance(table.db, Postgres), "validation refuses connectors by name"
    key_file = settings.secrets_key_file
    sealer = None if key_file is None else secrets.Sealer.from_file(key_file)

    def open_secret(secret: SealedSecret) -> str:
        if sealer is None:
            raise secrets.SecretUnreadable(
                "a connector has a password and this server has no key to decrypt it; set "
                "FENNEL_SECRETS_KEY_FILE"
            )
        return sealer.open(feed.workspace, secrets.CREDENTIAL, secret.token.encode("ascii"))

    return opened(table.db, open_secret)


def session(settings: Settings) -> SparkSession:
    """Return the Spark application of a run: one task at a time, in order."""
    return (
        session_builder(settings, app_name="fennel-table", local_master="local[1,2]")
        .config("spark.jars", ",".join(postgres_jars(settings)))
        .config("spark.speculation", False)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.executorEnv.POLARS_MAX_THREADS", 1)  # a task has one core
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", TRANSACTION_ROWS)
        .config("spark.sql.execution.arrow.maxBytesPerBatch", min(TRANSACTION_BYTES, 8 * MIB))
        .getOrCreate()
    )


def _reason(broken: BaseException) -> str:
    if isinstance(broken, SourceError | ConnectionsError):
        return str(broken)[:REASON_CHARS]
    return reason_of(str(broken)) or type(broken).__name__
