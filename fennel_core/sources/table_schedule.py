"""Start the runs of sources on a schedule, and say how the last ones ended.

The loop decides from rows (`table_runs`), so it may run in several servers and be restarted at any
moment: of two that claim a run one is refused. A run is the program
`apps/spark_jobs/scheduled_source.py` under `spark-submit`: a task of Airflow's DAG
`scheduled_sources`, which is mapped over the sources that are due together, or a process of this
server without Airflow. What became of a run is in its row; the loop never waits for one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

from fennel_core.blueprints.spec import Catalog
from fennel_core.blueprints.streams import StreamTable
from fennel_core.connections.postgres import Pool
from fennel_core.connections.spark import DRIVER_OPTIONS, SHORT_JVM, mysql_jars
from fennel_core.definition.airflow import AirflowOrchestrator
from fennel_core.definition.orchestrator import CommitOrchestrator
from fennel_core.settings.model import Settings
from fennel_core.sources.controls import FeedNews, SourceControls
from fennel_core.sources.errors import SourceError
from fennel_core.sources.feeds import Feed, feeds_of
from fennel_core.sources.overview import interval_of
from fennel_core.sources.postgres import PostgresSourceControls
from fennel_core.sources.table_databases import read_delay_us
from fennel_core.sources.table_run_postgres import PostgresTableRuns
from fennel_core.sources.table_runs import (
    RunState,
    TableRun,
    TableRuns,
    claimed,
    due,
    failed,
    is_exhausted,
    overdue,
    state_of,
    stopped,
)
from fennel_core.sources.target_catalogs import TargetCatalogs
from fennel_core.telemetry import metrics
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import TopicName

DAG: Final = "scheduled_sources"
LOOK_S: Final = 2.0
REPORT_EVERY_S: Final = 15.0
STOP_S: Final = 10.0
"""How long a process may take to stop before it is killed."""
AGE = metrics.gauge(
    "fennel_scheduled_source_age_seconds",
    "Time since a source on a schedule was last read to its end, or since its first run began.",
    ("workspace", "source"),
)
FAILURES = metrics.gauge(
    "fennel_scheduled_source_failures",
    "How often in a row a run of a source on a schedule has failed; 0 since one has not.",
    ("workspace", "source"),
)
log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ScheduledFeed:
    """A source on a schedule, and how often it is read."""

    feed: Feed
    every: timedelta


class TargetReader(Protocol):
    async def read(self) -> list[Catalog]:
        """See `TargetCatalogs`."""
        ...


class RunsNotStarted(SourceError):
    """The orchestrator did not accept runs, which certainly will not begin."""

    code = "source-runs-not-started"


class TableRunStarter(Protocol):
    """Starts runs of sources."""

    async def start(self, run: str, topics: Sequence[TopicName]) -> None:
        """Start a run of each source. Raises `RunsNotStarted` if none will begin."""
        ...


def scheduled_feeds(catalogs: Sequence[Catalog]) -> dict[TopicName, ScheduledFeed]:
    """Return the sources on a schedule of target versions, which are newest first."""
    bindings = [binding for catalog in catalogs for binding in catalog.sources]
    return {
        topic: ScheduledFeed(
            feed, interval_of(each.source for each in bindings if each.raw_topic == topic)
        )
        for topic, feed in feeds_of(catalogs).items()
        if feed.scheduled
    }


def news_of_runs(
    feeds: Mapping[TopicName, ScheduledFeed], runs: Mapping[TopicName, TableRun], now: datetime
) -> list[FeedNews]:
    """Return what is stored about each source for `source list` and `status`."""
    found = []
    for topic, each in sorted(feeds.items()):
        row = runs.get(topic)
        if row is None:
            continue
        late = overdue(row, each.every, now)
        reason = row.reason
        if reason is None and late is not None:
            reason = (
                f"it was not read to its end for {int(late.total_seconds())} s, and should be "
                f"every {int(each.every.total_seconds())} s"
            )
        retry_s = None
        if reason is not None and row.retry_at is not None:
            retry_s = max(0.0, (row.retry_at - now).total_seconds())
        unread = None if row.completed_at is None else now - row.completed_at
        unread_s = None if unread is None else max(0.0, unread.total_seconds())
        found.append(FeedNews(topic, row.failures, None, reason, retry_s, unread_s=unread_s))
    return found


async def claim(
    runs: TableRuns,
    feeds: Mapping[TopicName, ScheduledFeed],
    idle: Iterable[TopicName],
    run: str,
    at_once: int,
) -> list[TopicName]:
    """Claim runs of sources that are due, by the name `run`; return those that were.

    `idle`: sources of which no run begins.
    `at_once`: of all servers, unless two claim at the same moment.
    """
    now, rows = await runs.read()
    every = {topic: each.every for topic, each in feeds.items()}
    return [
        topic
        for topic in due(every, rows, set(idle), now, at_once)
        if await runs.put(topic, rows.get(topic), claimed(rows.get(topic), run, every[topic], now))
    ]


async def ended_sources(
    runs: TableRuns, feeds: Mapping[TopicName, ScheduledFeed], controls: SourceControls
) -> set[TopicName]:
    """Return the bounded sources that have ended; note those that have now.

    One that is not bounded any more is read on.
    """
    (now, rows), stored = await runs.read(), await controls.ends()
    ended = {t for t, each in stored.items() if t in feeds and each.ended_at is not None}
    for topic, each in feeds.items():
        idleness_us, row = each.feed.idleness_us, rows.get(topic)
        if idleness_us is None and topic in ended:
            await controls.reopen([topic])
            ended.discard(topic)
        elif idleness_us is not None and row is not None and topic not in ended:
            reopened_at = stored[topic].reopened_at if topic in stored else None
            idleness = timedelta(microseconds=idleness_us + read_delay_us(each.feed.table))
            over = is_exhausted(row, idleness, now, reopened_at)
            # Not if it was resumed, or another server has noted it, since the ends were read.
            if over and await controls.end(topic, reopened_at):
                log.info("source has ended", source=each.feed.title)
                ended.add(topic)
    return ended


class TableSchedule:
    """The loop. Use from one event loop."""

    def __init__(
        self,
        targets: TargetReader,
        runs: TableRuns,
        controls: SourceControls,
        starter: TableRunStarter,
        at_once: int,
    ) -> None:
        self._targets, self._runs = targets, runs
        self._controls, self._starter = controls, starter
        self._at_once = at_once
        self._reported: tuple[float, list[FeedNews]] = (0.0, [])
        self._measured: set[tuple[str, str]] = set()
        self._tables: Mapping[TopicName, StreamTable] = {}
        """What the sources read when it was looked last, with their connectors."""
        self._outdated: Mapping[TopicName, str] = {}
        """Runs that go on with a connector that has changed since they began."""

    async def run(self) -> None:
        """Run without end."""
        while True:
            try:
                await self.look()
            # The supervisor's last line: one failed look must not end the loop.
            except Exception as unexpected:
                log.error("scheduled sources not started; retrying", exc_info=unexpected)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Start what is due, and report how the last runs ended."""
        feeds = scheduled_feeds(await self._targets.read())
        if not (feeds or self._measured):
            return
        await self._try_changed(feeds)
        run = f"scheduled-{uuid.uuid4().hex[:12]}"
        ended = await ended_sources(self._runs, feeds, self._controls)
        idle = ended | set(await self._controls.pauses())
        topics = await claim(self._runs, feeds, idle, run, self._at_once)
        if topics:
            await self._start(run, topics, feeds)
        now, rows = await self._runs.read()
        await self._tell({t: each for t, each in feeds.items() if t not in ended}, rows, now)

    async def _try_changed(self, feeds: Mapping[TopicName, ScheduledFeed]) -> None:
        """Let broken sources run now whose connector has changed: it may have other credentials.

        A run that goes on has read the earlier ones: if it fails, the source is due again at once.
        """
        tables = {topic: each.feed.table for topic, each in feeds.items()}
        changed = {t for t, table in tables.items() if self._tables.get(t, table) != table}
        if not (changed or self._outdated):
            self._tables = tables
            return
        now, rows = await self._runs.read()
        outdated = {}
        for topic in changed | self._outdated.keys():
            row = rows.get(topic)
            if row is None or (topic not in changed and row.run != self._outdated[topic]):
                continue
            state = state_of(row, now)
            if state is RunState.RUNNING:
                outdated[topic] = row.run
            elif state is RunState.FAILED:
                await self._runs.put(topic, row, stopped(row, row.reason or "", now))
        self._tables, self._outdated = tables, outdated

    async def _start(
        self, run: str, topics: Sequence[TopicName], feeds: Mapping[TopicName, ScheduledFeed]
    ) -> None:
        try:
            await self._starter.start(run, topics)
        except RunsNotStarted as refused:
            log.warning("runs of sources not started; retrying", run=run, reason=str(refused))
            now, rows = await self._runs.read()
            for topic in topics:
                row = rows.get(topic)
                if row is not None and row.run == run:
                    reason = f"its run was not started: {refused}"
                    after = failed(row, reason, feeds[topic].every, now)
                    await self._runs.put(topic, row, after)
        else:
            names = [feeds[topic].feed.title for topic in topics]
            log.info("runs of sources started", run=run, sources=names)

    async def _tell(
        self,
        feeds: Mapping[TopicName, ScheduledFeed],
        rows: Mapping[TopicName, TableRun],
        now: datetime,
    ) -> None:
        measured = set()
        for topic, each in feeds.items():
            row = rows.get(topic)
            if row is not None:
                labels = (str(each.feed.workspace), each.feed.title)
                age = now - (row.completed_at or row.first_at)
                AGE.labels(*labels).set(age.total_seconds())
                FAILURES.labels(*labels).set(row.failures)
                measured.add(labels)
        for gone in self._measured - measured:
            AGE.remove(*gone)
            FAILURES.remove(*gone)
        self._measured = measured
        news, at_s = news_of_runs(feeds, rows, now), time.monotonic()
        same = [replace(each, retry_s=None, unread_s=None) for each in news]
        reported_s, before = self._reported
        if same != before or at_s - reported_s > REPORT_EVERY_S:
            await self._controls.report(news)
            self._reported = at_s, same


class AirflowTableRuns:
    """Implement `TableRunStarter` with a run of the DAG `scheduled_sources`."""

    def __init__(self, airflow: AirflowOrchestrator) -> None:
        self._airflow = airflow

    async def start(self, run: str, topics: Sequence[TopicName]) -> None:
        """See `TableRunStarter.start`."""
        conf = {"sources": [[topic, run] for topic in topics]}
        reason = await self._airflow.trigger(DAG, run, conf)
        if reason is not None:
            raise RunsNotStarted(reason)


def job_file() -> Path:
    """Return the program that `spark-submit` runs."""
    found = importlib.util.find_spec("fennel_core")
    assert found is not None, "this module is part of the package"
    assert found.origin is not None, "the package has a file"
    return Path(found.origin).parent / "apps" / "spark_jobs" / "scheduled_source.py"


class InlineTableRuns:
    """Implement `TableRunStarter` with processes of this server, which end with it.

    Each has a Spark driver, so `source_runs_at_once` run at once: no more are claimed.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._free = asyncio.Semaphore(settings.source_runs_at_once)
        self._running: set[asyncio.subprocess.Process] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, run: str, topics: Sequence[TopicName]) -> None:
        """See `TableRunStarter.start`."""
        for topic in topics:
            task = asyncio.create_task(self._run(topic, run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, topic: TopicName, run: str) -> None:
        async with self._free:
            words = ["--master", "local[1,2]", "--conf", "spark.log.level=WARN"]
            words += ["--conf", f"{DRIVER_OPTIONS}={SHORT_JVM}"]
            if jars := mysql_jars(self._settings):
                words += ["--jars", ",".join(jars)]
            submit = Path(sys.executable).parent / "spark-submit"
            paths = (str(job_file().parents[3]), os.environ.get("PYTHONPATH", ""))
            env = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                # `spark-submit` looks for Spark with it; the PATH may lead to another Python.
                "PYSPARK_PYTHON": sys.executable,
            }
            process = await asyncio.create_subprocess_exec(
                str(submit), *words, str(job_file()), topic, run, env=env, start_new_session=True
            )
            self._running.add(process)
            try:
                status = await process.wait()
            finally:
                self._running.discard(process)
            if status != 0:  # the row of the run has the reason, if it could write one
                log.warning("run of a source failed", topic=topic, run=run, status=status)

    async def close(self) -> None:
        """Stop running processes; what they have read is kept, and the next run goes on."""
        for task in self._tasks:
            task.cancel()
        running = list(self._running)
        for process in running:
            _signal(process, signal.SIGTERM)
        for process in running:
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                _signal(process, signal.SIGKILL)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal the process and those that it has started: the JVM, and workers of Python."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


@dataclass(frozen=True, slots=True)
class ScheduledTables:
    """The loop of a definition server, and what ends the runs that are processes of it."""

    loop: TableSchedule
    close: Callable[[], Coroutine[Any, Any, None]]

    @classmethod
    def of(
        cls, settings: Settings, pool: Pool, orchestrator: CommitOrchestrator
    ) -> ScheduledTables:
        """Return the parts; runs are started by Airflow if commits are."""
        inline = InlineTableRuns(settings)
        starter: TableRunStarter = inline
        if isinstance(orchestrator, AirflowOrchestrator):
            starter = AirflowTableRuns(orchestrator)
        loop = TableSchedule(
            TargetCatalogs(pool),
            PostgresTableRuns(pool),
            PostgresSourceControls(pool),
            starter,
            settings.source_runs_at_once,
        )
        return cls(loop, inline.close)
