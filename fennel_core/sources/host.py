"""The process of the streaming sources: one Spark application over every feed of the installation.

Theory. The catalogs of the branches' target versions are the only list of feeds; this process
follows them, as ingest servers do. Each feed is started, stopped and tried again on its own, and a
feed that fails, for whatever reason, only holds up itself: an unexpected error parks it as any
other does. The process ends only with Spark's JVM. Spark starts with the first feed, so an
installation without streams runs no JVM. Correctness needs no leader: two applications that read
one feed fence each other, and no row is written twice.

Everything that blocks runs in threads: a cluster that does not respond delays its own feed, and the
end of the process waits for none of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, TypeVar

import pyarrow as pa
import structlog
from confluent_kafka import KafkaException
from prometheus_client import Gauge
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fennel_core.connections import postgres, secrets
from fennel_core.connections.errors import ConnectionsError, JvmExited, SystemUnavailable
from fennel_core.connections.installation import require_ownership
from fennel_core.connections.postgres import ListenStarted, Pool
from fennel_core.connections.spark import JVM_EXIT_ERRORS, has_exited
from fennel_core.connectors import postgres as connectors
from fennel_core.settings.hosts import host_rules
from fennel_core.settings.model import Settings
from fennel_core.sources import (
    binlog_changes,
    changes,
    delta_tables,
    kafka_topics,
    kinesis,
    s3_files,
)
from fennel_core.sources import spark as sources_spark
from fennel_core.sources.change_slots import (
    AbandonedSlot,
    ChangeSlots,
    PostgresChangeSlots,
    drop_abandoned,
)
from fennel_core.sources.controls import FeedNews, SourceControls, SourceEnd
from fennel_core.sources.errors import FeedRemoved, SourceError
from fennel_core.sources.feeds import (
    Broken,
    Feed,
    FeedReport,
    FeedState,
    Reading,
    broken,
    feeds_of,
    fresh_before,
    is_exhausted,
    news_of,
    report_of,
    scheduled_report,
    seen,
    started,
    to_start,
    to_stop,
)
from fennel_core.sources.kinds import RunningFeed, StartedBy
from fennel_core.sources.postgres import PostgresSourceControls
from fennel_core.sources.row_counts import FeedRowCounts
from fennel_core.sources.target_catalogs import TargetCatalogs
from fennel_core.telemetry import logs, metrics
from fennel_core.telemetry.endless_tasks import (
    in_daemon_thread,
    run_until_stopped,
    stop_signals,
)
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.wire.connectors import (
    KafkaTopic,
    KinesisStream,
    MySQLChanges,
    MySQLTable,
    PostgresChanges,
    PostgresTable,
    S3Table,
    SealedSecret,
)

T = TypeVar("T")
PROCESS: Final = "sources"
REPORT: Final = "/sources"
"""The path of the report that `fennel-core status` reads."""
LOOK_S: Final = 1.0
"""How often queries are checked; a change of the catalogs is noticed at once."""
STATUS_EVERY_S: Final = 15.0
"""How often the status of each feed is stored if nothing changes."""
SLOTS_S: Final = 30.0
"""How often slots of destroyed sources are looked for."""
COUNT_EVERY_S: Final = 15.0
"""How often the rows of each feed are counted that has grown."""
STARTS: Final = 8
"""Feeds that are started at once."""
PROBE_S: Final = 10.0
"""How long the JVM may take to say whether Spark runs."""
REASON_LINES: Final = 3
"""Lines of the text of an unexpected error: in Spark's, the second has the cause."""
MICROS: Final = 1e6
FEEDS = metrics.gauge(
    "fennel_stream_sources",
    "Streaming sources by state: `running`, `broken`, `paused` or `ended`.",
    ("state",),
)
BEHIND = metrics.gauge(
    "fennel_stream_behind_messages",
    "Messages of a stream that were not read at the end of its last batch.",
    ("workspace", "source"),
)
BEHIND_S = metrics.gauge(
    "fennel_stream_behind_seconds",
    "How long before the newest record of a Kinesis stream the last one that was read arrived.",
    ("workspace", "source"),
)
RETAINED = metrics.gauge(
    "fennel_change_source_retained_bytes",
    "Write-ahead log that a user's database keeps for a source of its changes.",
    ("workspace", "source"),
)
AGE_S = metrics.gauge(
    "fennel_stream_source_age_seconds",
    "Time since nothing of a stream was left unread, or since the service began to read it.",
    ("workspace", "source"),
)
FAILURES = metrics.gauge(
    "fennel_stream_failures",
    "How often in a row a stream could not be read; 0 while it is.",
    ("workspace", "source"),
)
log = structlog.get_logger(__name__)


class SourceHost:
    """Starts and stops the queries. Use from one event loop."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._settings, self._pool = settings, pool
        key_file = settings.secrets_key_file
        self._sealer = None if key_file is None else secrets.Sealer.from_file(key_file)
        self._states: dict[TopicName, FeedState] = {}
        self._queries: dict[TopicName, RunningFeed] = {}
        self._catalogs = TargetCatalogs(pool)
        self._tables: list[FeedReport] = []
        self._kept_slots: list[FeedReport] = []
        """Slots of destroyed sources that could not be dropped."""
        self._work: dict[TopicName, asyncio.Task[None]] = {}
        self._spark: SparkSession | None = None
        self._wanted: dict[TopicName, Feed] = {}
        self._paused: list[Feed] = []
        self._over: list[Feed] = []
        self._fresh_s: dict[TopicName, float] | None = None
        """When the process before this knew each feed to be read to its end; None: not read yet."""
        self._found: dict[TopicName, float] = {}
        """When rows of a feed were last found, by this process or another."""
        self._places: dict[TopicName, int] = {}
        """How far each feed was read, when it was last noted."""
        self._controls: SourceControls = PostgresSourceControls(pool)
        self._slots: ChangeSlots = PostgresChangeSlots(pool)
        self._told: tuple[float, list[FeedNews]] = (-math.inf, [])
        self._measured: dict[Gauge, set[tuple[str, str]]] = {}
        self._known: list[Feed] = []
        """All feeds, whether they are read here or by runs, paused or ended."""
        self._counts = FeedRowCounts(settings)
        self._rows: Mapping[TopicName, int] = {}
        self._free = asyncio.Semaphore(STARTS)
        self.problem: str | None = "the catalogs were not read yet"

    def report(self) -> list[FeedReport]:
        """Return what is known of each feed."""
        return [
            *self._tables,
            *self._kept_slots,
            *report_of(
                self._states,
                self._paused,
                self._over,
                self._catalogs.remedy,
                rows=self._rows,
                now_s=time.monotonic(),
                stale_after_s=self._settings.source_stale_s,
            ),
        ]

    async def run(self, changed: asyncio.Event) -> None:
        """Follow the catalogs; raises only when Spark cannot be started or its JVM has exited."""
        slots = asyncio.create_task(self._drop_slots())
        try:
            while True:
                changed.clear()
                await self._look()
                await self._follow()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), LOOK_S)
        finally:
            for task in (slots, *self._work.values()):
                task.cancel()

    async def _drop_slots(self) -> None:
        """Drop the slots of destroyed sources, as long as the process runs."""
        while True:
            try:
                left = await drop_abandoned(self._slots, self._drop_slot)
                self._kept_slots = [
                    FeedReport(each.workspace, each.title, 1, 1, None, each.error) for each in left
                ]
            except SystemUnavailable as lost:
                log.warning("slots of destroyed sources could not be read", reason=str(lost))
            except Exception:  # last line of defence: what is read goes on, and this is tried again
                log.exception("slots of destroyed sources could not be dropped")
            await asyncio.sleep(SLOTS_S)

    def _drop_slot(self, slot: AbandonedSlot) -> None:
        _, changed_log = changes.opened_log(
            slot.table, slot.slot, lambda secret: self._open(slot.workspace, secret)
        )
        changed_log.drop()

    async def count(self) -> None:
        """Count the rows of the feeds without end."""
        while True:
            try:
                feeds = self._known
                # Not one of the threads that start feeds: Kafka may keep it waiting.
                self._rows = await in_daemon_thread(partial(self._counts.read, feeds), "counts")
                for topic, place in self._counts.places.items():
                    self._note_place(topic, place)
                await self._controls.count(self._rows)
            except SystemUnavailable as lost:
                log.warning("rows of sources could not be counted; retrying", reason=str(lost))
            except Exception:  # last line of defence: the feeds are read on
                log.exception("rows of sources could not be counted; retrying")
            await asyncio.sleep(COUNT_EVERY_S)

    async def _look(self) -> None:
        """Read which feeds are wanted; if that fails, those that were wanted before still are."""
        try:
            pauses, generations = await self._controls.pauses(), await self._controls.generations()
            limits, stored = await self._controls.limits(), await self._controls.ends()
            found = {
                topic: replace(
                    feed,
                    generation=generations.get(topic, 0),
                    rows_per_s=limits[topic].rows_per_s if topic in limits else None,
                    reopened_at=stored[topic].reopened_at
                    if topic in stored and feed.idleness_us is not None
                    else None,
                )
                for topic, feed in feeds_of(await self._catalogs.read()).items()
            }
            self._known = list(found.values())
            scheduled = {topic: feed for topic, feed in found.items() if feed.scheduled}
            statuses = await self._controls.statuses() if scheduled or self._fresh_s is None else {}
            ends, remedy = await self._ends(found, stored), self._catalogs.remedy
            self._tables = scheduled_report(scheduled, statuses, pauses, ends, remedy)
            found = {topic: feed for topic, feed in found.items() if not feed.scheduled}
            self._paused = [feed for topic, feed in found.items() if topic in pauses]
            self._over = [f for t, f in found.items() if t in ends and t not in pauses]
            self._wanted = {t: f for t, f in found.items() if t not in pauses and t not in ends}
            if self._fresh_s is None:
                self._fresh_s = fresh_before(statuses, self._wanted, time.monotonic())
            await self._tell()
            self.problem = None
        except SystemUnavailable as lost:
            self.problem = str(lost)
            log.warning("the catalogs could not be read; retrying", reason=str(lost))
        except Exception as unexpected:  # last line of defence: the feeds that are read go on
            reason = _reason(unexpected)
            if self.problem != reason:
                log.exception("the catalogs could not be read; retrying", reason=reason)
            self.problem = reason

    async def _ends(
        self, feeds: Mapping[TopicName, Feed], stored: Mapping[TopicName, SourceEnd]
    ) -> set[TopicName]:
        """Return the bounded feeds that have ended; one without an end any more is read on."""
        ends = {t for t, each in stored.items() if t in feeds and each.ended_at is not None}
        endless = {topic for topic in ends if feeds[topic].idleness_us is None}
        if endless:
            await self._controls.reopen(endless)
        return ends - endless

    async def _tell(self) -> None:
        """Store the status of each feed if it has changed, and else now and then."""
        now_s = time.monotonic()
        told_s, before = self._told
        news = news_of(self._states, now_s)
        same = [replace(each, retry_s=None, unread_s=None) for each in news]
        if same != before or now_s - told_s > STATUS_EVERY_S:
            await self._controls.report(news)
            self._told = now_s, same

    async def _follow(self) -> None:
        """Begin what has to be done about each feed."""
        self._ended()
        wanted, now_s = self._wanted, time.monotonic()
        for topic in to_stop(wanted, self._states):
            self._begin(self._states[topic].feed, self._stop(topic))
        for topic, state in self._states.items():
            if isinstance(state, Reading):
                self._begin(state.feed, self._check(topic, state))
        starting = to_start(wanted, self._states, now_s)
        if starting and self._spark is None:
            # Checkpoints of queries that died with their process.
            shutil.rmtree(sources_spark.checkpoints(self._settings), ignore_errors=True)
            self._spark = await self._in_thread(lambda: sources_spark.session(self._settings))
        for feed in starting:
            self._begin(feed, self._start(feed))
        self._measure()

    def _measure(self) -> None:
        """Set the gauges."""
        down = sum(isinstance(state, Broken) for state in self._states.values())
        FEEDS.labels("broken").set(down)
        FEEDS.labels("paused").set(len(self._paused))
        FEEDS.labels("ended").set(len(self._over))
        FEEDS.labels("running").set(len(self._states) - down)
        reading = [each for each in self._states.values() if isinstance(each, Reading)]
        self._set(BEHIND, [(each.feed, each.behind) for each in reading])
        lags = [(e.feed, None if e.behind_ms is None else e.behind_ms / 1000) for e in reading]
        self._set(BEHIND_S, lags)
        self._set(RETAINED, [(each.feed, each.retained_bytes) for each in reading])
        now_s = time.monotonic()
        self._set(AGE_S, [(each.feed, now_s - each.fresh_s) for each in self._states.values()])
        self._set(FAILURES, [(each.feed, each.failures) for each in self._states.values()])

    def _set(self, gauge: Gauge, found: Sequence[tuple[Feed, float | None]]) -> None:
        """Set a gauge of feeds, and remove it of those of which nothing is known."""
        known = {
            (str(feed.workspace), feed.title): value for feed, value in found if value is not None
        }
        for labels in self._measured.get(gauge, set()) - known.keys():
            gauge.remove(*labels)
        for labels, value in known.items():
            gauge.labels(*labels).set(value)
        self._measured[gauge] = set(known)

    def _begin(self, feed: Feed, work: Coroutine[None, None, None]) -> None:
        """Run `work` on a feed, unless other work on it is still running."""
        if feed.raw_topic in self._work:
            work.close()
        else:
            self._work[feed.raw_topic] = asyncio.create_task(self._isolated(feed, work))

    async def _isolated(self, feed: Feed, work: Coroutine[None, None, None]) -> None:
        """Do `work`; an error that it did not expect parks the feed, unless the JVM has exited."""
        try:
            await work
        except Exception as unexpected:  # last line of defence: this parks one feed only
            reason = _reason(unexpected)
            if await self._jvm_exited():
                raise JvmExited(
                    f"Spark has ended ({reason}); the process ends, too"
                ) from unexpected
            log.exception("unexpected error of a source", source=feed.title)
            self._park(feed, reason)

    async def _jvm_exited(self) -> bool:
        """Return whether Spark has ended; one that does not say so in time has not."""
        spark = self._spark
        if spark is None:
            return False
        probe = in_daemon_thread(lambda: has_exited(spark), "spark-probe")
        try:
            return await asyncio.wait_for(probe, PROBE_S)
        except TimeoutError:
            return False

    def _ended(self) -> None:
        """Forget work that has ended; raises `JvmExited`."""
        for topic, task in list(self._work.items()):
            if task.done():
                del self._work[topic]
                task.result()

    async def _check(self, topic: TopicName, state: Reading) -> None:
        query = self._queries[topic]
        reason = await self._in_thread(query.failure)
        if reason is not None:
            await self._failed(state.feed, reason, await self._in_thread(query.owed_s))
            return
        progress = await self._in_thread(query.progress)
        self._states[topic] = after = seen(state, progress, time.monotonic())
        if not is_exhausted(after, self._found.get(topic)):
            return
        feed = state.feed
        try:
            # Another process may have found rows, so that this one did not.
            place = await self._in_thread(partial(self._counts.place, feed))
            # Not if it was resumed since the last look: it is read on, and its idleness begins.
            if self._note_place(topic, place) and await self._controls.end(topic, feed.reopened_at):
                log.info("source has ended", source=feed.title, workspace=feed.workspace)
        except SystemUnavailable as lost:  # it is not the source that has failed
            log.warning("an end was not stored; retrying", source=feed.title, reason=str(lost))

    def _note_place(self, topic: TopicName, place: int) -> bool:
        """Note how far a feed was read; return whether that is known. If not, rows were found."""
        if self._places.get(topic) == place:
            return True
        self._places[topic], self._found[topic] = place, time.monotonic()
        return False

    async def _start(self, feed: Feed) -> None:
        topic = feed.raw_topic
        await self._end(topic)  # the query of a feed that an unexpected error parked
        try:
            slot = ""
            if isinstance(feed.table, PostgresChanges):
                held = await self._slots.hold(feed, feed.table)
                if held is None:
                    raise FeedRemoved(f"{feed.title} is not the source of a dataset any more")
                slot = held
            if feed.idleness_us is not None:
                place = await self._in_thread(partial(self._counts.place, feed))
                self._note_place(topic, place)
            query = await self._in_thread(lambda: self._started(feed, slot))
        except (ConnectionsError, SourceError, PySparkException, KafkaException) as failed:
            await self._failed(feed, sources_spark.reason_of(str(failed)) or _reason(failed))
            return
        self._queries[topic] = query
        before, fresh_s = self._states.get(topic), self._taken_fresh_s(topic)
        self._states[topic] = started(feed, before, time.monotonic(), fresh_s)
        log.info("source is read", source=feed.title, workspace=feed.workspace)

    def _started(self, feed: Feed, slot: str) -> RunningFeed:
        assert self._spark is not None, "Spark is started before its first query"

        def count(counts: pa.Table) -> None:
            if counts.num_rows:
                self._found[feed.raw_topic] = time.monotonic()
            count_rows(counts)

        return start_feed(StartedBy(self._spark, self._settings, feed, self._open, count, slot))

    def _open(self, workspace: WorkspaceId, secret: SealedSecret) -> str:
        return secrets.opened_credential(self._sealer, workspace, secret.token)

    async def _failed(self, feed: Feed, reason: str, owed_s: float = 0.0) -> None:
        await self._end(feed.raw_topic)
        self._park(feed, reason, owed_s)

    def _taken_fresh_s(self, topic: TopicName) -> float | None:
        """Return what the process before this knew of a feed, once: it has a state from then on."""
        return None if self._fresh_s is None else self._fresh_s.pop(topic, None)

    def _park(self, feed: Feed, reason: str, owed_s: float = 0.0) -> None:
        """Leave a feed alone for a time, and for as long as its limit asks for."""
        topic = feed.raw_topic
        before, fresh_s = self._states.get(topic), self._taken_fresh_s(topic)
        state = broken(feed, before, reason, time.monotonic(), fresh_s, owed_s)
        self._states[topic] = state
        log.error(
            "source is broken; it is tried again",
            source=feed.title,
            workspace=feed.workspace,
            reason=reason,
            failures=state.failures,
        )

    async def _stop(self, topic: TopicName) -> None:
        await self._end(topic)
        state = self._states.pop(topic)
        log.info("source is not read any more", source=state.feed.title)

    async def _end(self, topic: TopicName) -> None:
        query = self._queries.pop(topic, None)
        if query is not None:
            await self._in_thread(query.stop)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with self._free:
            return await in_daemon_thread(work, "feed")

    def close(self) -> None:
        """Stop Spark; every query continues from its position in the next process."""
        if self._spark is not None:
            # The JVM may have received the same signal and exited first.
            with contextlib.suppress(*JVM_EXIT_ERRORS):
                self._spark.stop()


def _reason(failed: BaseException) -> str:
    """Return one line about an unexpected error, whatever its text is."""
    lines = [line.strip() for line in str(failed).splitlines() if line.strip()]
    return ": ".join([type(failed).__name__, *lines[:REASON_LINES]])[: sources_spark.REASON_CHARS]


def start_feed(by: StartedBy) -> RunningFeed:
    """Start to read a feed of any kind; blocks."""
    match by.feed.table:
        case KafkaTopic() as table:
            return kafka_topics.start(by, table)
        case S3Table(format="delta") as table:
            return delta_tables.start(by, table)
        case S3Table() as table:
            return s3_files.start(by, table)
        case KinesisStream() as table:
            return kinesis.start(by, table)
        case PostgresChanges() as table:
            return changes.start(by, table)
        case MySQLChanges() as table:
            return binlog_changes.start(by, table)
        case PostgresTable() | MySQLTable():
            raise AssertionError("tables are read by runs of their own")


def count_rows(counts: pa.Table) -> None:
    """Count what became of the rows of a batch, as ingest does for those of `log`."""
    for row in counts.to_pylist():
        name, dataset = row["source"], row["dataset"]
        rows = metrics.SOURCE_DATASET_ROWS
        rows.labels(name, dataset, "json", "msgs_processed").inc(row["accepted"])
        rows.labels(name, dataset, "json", "schema_error").inc(row["dead"])
        metrics.DISCARDED_ROWS.labels(name, dataset).inc(row["late"])
        if row["latest_us"] is not None:
            metrics.SOURCE_DATASET.labels(name, dataset, "event_timestamp_seconds").set(
                row["latest_us"] / MICROS
            )


class Companion(Protocol):
    """What runs beside the sources in their process, and is reported below its own path."""

    @property
    def path(self) -> str: ...

    def report(self) -> object: ...

    async def run(self) -> None:
        """Run until cancelled."""
        ...

    def close(self) -> None:
        """Release what it holds; may block."""
        ...


async def run_sources(settings: Settings, companion: Callable[[Settings, Pool], Companion]) -> None:
    """Run sources and a companion until SIGTERM; raises when Spark's JVM has exited."""
    logs.configure(PROCESS, settings.log_level, hidden=logs.secrets_of(settings))
    stop, changed = stop_signals(), asyncio.Event()
    dsn = settings.postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name=PROCESS, size=2) as pool:
        await require_ownership(settings, pool, None)
        host, beside = SourceHost(settings, pool), companion(settings, pool)

        async def following() -> str | None:
            return host.problem

        def close() -> None:
            beside.close()
            host.close()

        reports = {REPORT: host.report, beside.path: beside.report}
        health = HealthEndpoint(PROCESS, {"catalogs": following}, reports)
        rules = host_rules(settings, PROCESS, public=False)
        server = await health.serve(settings.host, settings.sources_port, rules)
        await run_until_stopped(
            PROCESS,
            stop,
            [host.run(changed), host.count(), beside.run(), _wake(dsn, changed)],
            close,
            server.cleanup,
            close_s=settings.shutdown_grace_s / 2,
        )


async def _wake(dsn: str, changed: asyncio.Event) -> None:
    """Set `changed` when a catalog or a stored connector may have changed."""
    async for wakeup in postgres.listen(
        dsn, ("catalog", connectors.CHANNEL), name="fennel-sources-wakeups"
    ):
        if not isinstance(wakeup, ListenStarted):
            changed.set()
