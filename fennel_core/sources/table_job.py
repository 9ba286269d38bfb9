"""Read a table once, from its position to all that there is now: a run of a source on a schedule.

A run is a Spark application: the driver plans pages (`table_reads`), and one worker reads each with
one connection and writes its batches in order. Postgres returns a page as Arrow; of other databases
Spark's JDBC source streams it to the worker. Each batch is a transaction
with its cursor, so a run that is killed anywhere is continued by the next one. Pages are bounded,
so no query holds back the vacuum of the database for hours. A long read gives way to other sources
after `source_run_s`: it ends between two pages, and is due again behind them.

While a page is written the run reports in Postgres every `REPORT_S`; a report that is refused
means that the run was taken for lost, or the source is gone: it stops.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fennel_core.connections import postgres, secrets
from fennel_core.connections.errors import ConnectionsError, SystemUnavailable
from fennel_core.connections.external_postgres import PAGE_S
from fennel_core.connections.spark import (
    DRIVER_OPTIONS,
    JVM_EXIT_ERRORS,
    SHORT_JVM,
    mysql_jars,
    session_builder,
)
from fennel_core.connectors.postgres import PostgresConnectorStore
from fennel_core.ingest.postgres import PostgresDirectory
from fennel_core.settings.model import MIB, Settings
from fennel_core.sources.errors import FeedRemoved, SourceError, StreamReplaced
from fennel_core.sources.feeds import Feed
from fennel_core.sources.kafka import read_positions
from fennel_core.sources.messages import TRANSACTION_BYTES, TRANSACTION_ROWS
from fennel_core.sources.overview import (
    SourceView,
    cursor_and_disorder,
    is_versioned,
    source_views,
    view_interval,
)
from fennel_core.sources.pace import rest_s, step_rows
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.postgres import PostgresSourceControls
from fennel_core.sources.read_rows import StreamPlace
from fennel_core.sources.service import resolved
from fennel_core.sources.spark import REASON_CHARS, reason_of
from fennel_core.sources.table_databases import (
    ArrowQuery,
    JdbcQuery,
    ScheduledTable,
    TableDatabase,
    opened,
)
from fennel_core.sources.table_reads import TableCursor, TableRead, cursor_of, shown
from fennel_core.sources.table_run_postgres import PostgresTableRuns
from fennel_core.sources.table_runs import (
    LEASE,
    TableProgress,
    TableRun,
    TableRuns,
    completed,
    failed,
    gave_way,
    reported,
    stopped,
)
from fennel_core.sources.table_task import WRITTEN_DDL, PageWork, page_task, settling_task
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.wire.connectors import SealedSecret

T = TypeVar("T")
REPORT_S: Final = LEASE.total_seconds() / 6
FETCHED_ROWS: Final = 100
"""Rows that JDBC receives at once; its heap is 512 MB."""
STATEMENT_MS: Final = 3_600_000
"""Of what is asked about a table: without an index, each looks at all rows."""
PAGE_LATE_S: Final = PAGE_S + 60.0
"""When a page is ended that its server has not ended at its limit."""
log = logger(__name__)


class RunStopped(SourceError):
    """The run is to end: its source was paused or removed, or another run has begun."""

    code = "source-run-stopped"


class RunEnd(StrEnum):
    """How a run ended."""

    COMPLETE = "complete"
    GAVE_WAY = "gave way"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class BegunRead:
    """A read before its next page. `position`: as the run found it."""

    database: TableDatabase
    read: TableRead
    position: SourcePosition | None
    place: StreamPlace
    cursor: TableCursor | None


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
        branches = await resolved(
            await PostgresDirectory(pool).read(workspace, {}), PostgresConnectorStore(pool)
        )
        views = [
            view
            for view in source_views(branches)
            if view.feed is not None and view.feed.raw_topic == topic
        ]
        if not views:
            log.info("no branch has the source any more", topic=topic)
            return RunEnd.STOPPED
        limit = (await controls.limits()).get(topic)
        job = TableJob(settings, views[0], runs, run, None if limit is None else limit.rows_per_s)
        return await job.run(lambda: _is_paused(controls, topic))


async def _is_paused(controls: PostgresSourceControls, topic: TopicName) -> bool:
    return topic in await controls.pauses()


class TableJob:
    """One run. Use once, from one event loop."""

    def __init__(
        self,
        settings: Settings,
        view: SourceView,
        runs: TableRuns,
        run: str,
        rows_per_s: float | None = None,
    ) -> None:
        assert view.feed is not None, "a table has positions"
        self._settings, self._view, self._runs, self._name = settings, view, runs, run
        self._feed: Feed = view.feed
        self._every = view_interval(view)
        self._spark: SparkSession | None = None
        self._progress = TableProgress(0, None)
        self._rows_per_s = rows_per_s
        self._page_rows = step_rows(rows_per_s, settings.source_page_rows)
        self._stopped: str | None = None
        self._over = threading.Event()
        """Set when the run is to end."""
        self._complaint: str | None = None

    async def run(self, is_paused: Callable[[], Any]) -> RunEnd:
        """Read until nothing is left, and store how that ended."""
        reports = asyncio.create_task(self._report(is_paused))
        try:
            await self._store(lambda row, now: reported(row, self._progress, now))
            if await is_paused():  # after the run was claimed
                raise RunStopped(f"{self._feed.title} was paused")
            end, reason = await asyncio.to_thread(self._read), self._complaint
        except (RunStopped, FeedRemoved) as order:
            end, reason = RunEnd.STOPPED, str(order)
        except (ConnectionsError, SourceError, PySparkException, *JVM_EXIT_ERRORS) as broken:
            end, reason = RunEnd.FAILED, _reason(broken)
            if self._stopped is not None:
                end, reason = RunEnd.STOPPED, self._stopped
        finally:
            reports.cancel()
            if self._spark is not None:
                with suppress(*JVM_EXIT_ERRORS):
                    self._spark.stop()
        await asyncio.wait([reports])  # a report that comes late would give the run its lease again
        return await self._ended(end, reason)

    async def _ended(self, end: RunEnd, reason: str | None) -> RunEnd:
        match end:
            case RunEnd.COMPLETE:
                await self._store(lambda row, now: completed(row, self._progress, now, reason))
                log.info("table is read", source=self._feed.title, reason=reason, **self._said())
            case RunEnd.GAVE_WAY:
                await self._store(lambda row, now: gave_way(row, self._progress, now))
                log.info("run gives way to others", source=self._feed.title, **self._said())
            case RunEnd.STOPPED:
                why = reason or ""
                with suppress(RunStopped):  # of a pause, the next run begins when it is lifted
                    await self._store(
                        lambda row, now: stopped(reported(row, self._progress, now), why, now)
                    )
                log.info("run stopped", source=self._feed.title, reason=reason, **self._said())
            case RunEnd.FAILED:
                why = reason or ""
                owed = timedelta(seconds=rest_s(self._rows_per_s, self._page_rows, 0.0))
                await self._store(
                    lambda row, now: failed(
                        reported(row, self._progress, now), why, self._every, now, owed
                    )
                )
                log.error(
                    "table cannot be read", source=self._feed.title, reason=reason, **self._said()
                )
        return end

    def _said(self) -> dict[str, Any]:
        progress = self._progress
        return {"rows": progress.rows_read, "cursor": progress.cursor, "held_by": progress.held_by}

    async def _store(self, change: Callable[[TableRun, Any], TableRun]) -> None:
        """Change the row of this run. Raises `RunStopped` if it is another's.

        A report and the end of the run may meet: who comes second changes what the first has put.
        """
        while True:
            now, rows = await self._runs.read()
            row = rows.get(self._feed.raw_topic)
            if row is None or row.run != self._name:
                raise RunStopped(
                    f"{self._feed.title}: another run has begun, or the source is gone"
                )
            if await self._runs.put(self._feed.raw_topic, row, change(row, now)):
                return

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
            if self._stopped is not None:
                self._over.set()
                if self._spark is not None:
                    with suppress(*JVM_EXIT_ERRORS):
                        self._spark.sparkContext.cancelAllJobs()

    def _read(self) -> RunEnd:
        """Read page by page; blocks."""
        at = self._begin()
        self._spark = session(self._settings)
        until_s = time.monotonic() + self._settings.source_run_s
        while self._stopped is None:
            begun_s = time.monotonic()
            page = self._page(at)
            cursor = cursor_of(page.after.cursor) if page.rows else at.cursor
            at = replace(at, place=page.after, cursor=cursor)
            value = None if at.cursor is None else shown(at.read.kind, at.cursor.levels[0].value)
            held_by = at.read.clock.end - at.read.clock.horizon
            self._progress = TableProgress(self._progress.rows_read + page.rows, value, held_by)
            log.info(
                "page is read",
                source=self._feed.title,
                accepted=page.accepted,
                late=page.late,
                dead=page.dead,
                **self._said(),
            )
            self._over.wait(rest_s(self._rows_per_s, page.rows, time.monotonic() - begun_s))
            if page.complete:
                self._settle(at)
                return RunEnd.COMPLETE
            if time.monotonic() > until_s:
                return RunEnd.GAVE_WAY
        raise RunStopped(self._stopped)

    def _begin(self) -> BegunRead:
        """Look at the table and the position. Raises what the user has to decide."""
        feed, table = self._feed, self._feed.table
        assert isinstance(table, ScheduledTable), "only tables are read on a schedule"
        database = database_of(feed, self._settings)
        partition = feed.partition(0)
        position = read_positions(self._settings, feed.positions, partition.position_partition).get(
            partition.key
        )
        with database.connect(STATEMENT_MS) as connection:
            [name, disorder_us] = cursor_and_disorder(self._view)
            read = database.begun(connection, table.table, name, disorder_us)
            if position is not None and position.origin != read.table.origin:
                raise StreamReplaced(feed.title, position.origin, read.table.origin)
            place = (
                StreamPlace() if position is None else StreamPlace(position.next, position.cursor)
            )
            before = cursor_of(place.cursor)
            read, cursor = database.continued(
                connection, read, before, partition.title, versioned=is_versioned(self._view)
            )
        if before is not None and cursor is None:
            log.warning("what was read is not known: the table is read again", source=feed.title)
        return BegunRead(database, read, position, place, cursor)

    def _work(self, at: BegunRead, read: TableRead) -> PageWork:
        return PageWork(
            self._settings,
            self._feed.partition(0),
            0 if at.position is None else at.position.rewinds,
            read,
            at.place,
            at.cursor,
            self._page_rows,
        )

    def _page(self, at: BegunRead) -> Page:
        assert self._spark is not None, "Spark is started before the first page"
        with at.database.connect() as connection:
            read = at.database.at_page(connection, at.read)
        query = at.database.page_query(read, at.cursor, self._page_rows + 1)
        work = self._work(at, read)
        match at.database.reading(query):
            case JdbcQuery(options):
                rows = self._spark.read.format("jdbc").options(**options)
                frame = rows.option("fetchsize", FETCHED_ROWS).load()
            case ArrowQuery() as asked:
                frame, work = self._spark.range(0, 1, 1, 1), replace(work, query=asked)
        with self._bounded():
            written = frame.mapInArrow(page_task(work), WRITTEN_DDL).toArrow()
        return page_of(written, at.place)

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """End a page that is late: its worker waits without limit for a server that is silent."""
        assert self._spark is not None, "Spark is started before the first page"
        cancel, late = self._spark.sparkContext.cancelAllJobs, threading.Event()

        def end() -> None:
            late.set()
            with suppress(*JVM_EXIT_ERRORS):
                cancel()

        timer = threading.Timer(PAGE_LATE_S, end)
        timer.start()
        try:
            yield
        except (PySparkException, *JVM_EXIT_ERRORS) as cancelled:
            if not late.is_set():
                raise
            raise SourceError(
                f"{self._feed.title}: a page was not read in {PAGE_LATE_S:.0f} s, and its server "
                "did not end it; see whether the server answers. What was read is kept"
            ) from cancelled
        finally:
            timer.cancel()

    def _settle(self, at: BegunRead) -> None:
        """Store what the read has left to the next one, and note what could not be read."""
        assert self._spark is not None, "Spark is started before the first page"
        title = self._feed.partition(0).title
        with at.database.connect(STATEMENT_MS) as connection:
            cursor = None
            if at.cursor is not None:
                cursor = at.database.settlement(connection, at.read, at.cursor, title)
            self._complaint = at.database.complaint(connection, at.read, self._feed.title)
        if cursor is not None:
            task = settling_task(self._work(at, at.read), cursor)
            self._spark.range(0, 1, 1, 1).mapInArrow(task, WRITTEN_DDL).toArrow()


def page_of(written: pa.Table, after: StreamPlace) -> Page:
    """Return what the transactions of a page did; `after`: where it began."""
    rows = written.to_pylist()
    if not rows:
        return Page(0, after, True, 0, 0, 0)
    last = max(rows, key=lambda row: int(row["next"]))
    sums = {name: sum(row[name] for row in rows) for name in ("rows", "accepted", "late", "dead")}
    end = StreamPlace(last["next"], last["cursor"])
    return Page(sums["rows"], end, last["complete"], sums["accepted"], sums["late"], sums["dead"])


def database_of(feed: Feed, settings: Settings) -> TableDatabase:
    """Return the database of a table with its credentials."""
    table = feed.table
    assert isinstance(table, ScheduledTable), "a table of a database"
    key_file = settings.secrets_key_file
    sealer = None if key_file is None else secrets.Sealer.from_file(key_file)

    def open_secret(secret: SealedSecret) -> str:
        if sealer is None:
            raise secrets.SecretUnreadable(
                "a connector has a password and this server has no key to decrypt it; set "
                "FENNEL_SECRETS_KEY_FILE"
            )
        return sealer.open(feed.workspace, secrets.CREDENTIAL, secret.token.encode("ascii"))

    return opened(table, open_secret)


def session(settings: Settings) -> SparkSession:
    """Return the Spark application of a run: one task at a time, in order."""
    return (
        session_builder(settings, app_name="fennel-table", local_master="local[1,2]")
        .config("spark.jars", ",".join(mysql_jars(settings)))
        .config(DRIVER_OPTIONS, SHORT_JVM)
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
