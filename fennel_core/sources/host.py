"""The process of the streaming sources: one Spark application over every feed of the installation.

Theory. The catalogs of the branches' target versions are the only list of feeds; this process
follows them, as ingest servers do. Each feed is started, stopped and tried again on its own, and a
feed that fails, for whatever reason, only holds up itself. Spark starts with the first feed, so an
installation without streams runs no JVM. Correctness needs no leader: two applications that read
one feed fence each other, and no row is written twice.

Everything that blocks runs in threads: a cluster that does not respond delays its own feed.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar, cast

import pyarrow as pa
import structlog
from confluent_kafka import KafkaException
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog
from fennel_core.connections import postgres, secrets
from fennel_core.connections.errors import ConnectionsError, SystemUnavailable
from fennel_core.connections.external_kafka import describe_topic, opened
from fennel_core.connections.installation import require_ownership
from fennel_core.connections.postgres import ListenStarted, Pool, connection_of
from fennel_core.connections.spark import JVM_EXIT_ERRORS
from fennel_core.settings.hosts import host_rules
from fennel_core.settings.model import Settings
from fennel_core.sources import spark as sources_spark
from fennel_core.sources.errors import SourceError, StreamReplaced
from fennel_core.sources.feeds import (
    Broken,
    Feed,
    FeedReport,
    FeedState,
    broken,
    feeds_of,
    report_of,
    started,
    to_start,
    to_stop,
)
from fennel_core.sources.kafka import read_positions
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.spark import EARLIEST, FeedQuery, start_query
from fennel_core.telemetry import logs, metrics
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.wire.connectors import SealedSecret

T = TypeVar("T")
PROCESS: Final = "sources"
REPORT: Final = "/sources"
"""The path of the report that `fennel-core status` reads."""
LOOK_S: Final = 1.0
"""How often queries are checked; a change of the catalogs is noticed at once."""
STARTS: Final = 8
"""Feeds that are started at once."""
MICROS: Final = 1e6
CATALOGS: Final = """
    SELECT c.id, CASE WHEN c.id = ANY(%(known)s) THEN NULL ELSE c.catalog END
    FROM commit c WHERE c.catalog IS NOT NULL AND c.id IN (SELECT target FROM branch)
    ORDER BY c.created_at DESC, c.id
"""
"""The newest first: its credentials of a connector count."""
FEEDS = metrics.gauge(
    "fennel_stream_sources", "Streaming sources by state: `running` or `broken`.", ("state",)
)
log = structlog.get_logger(__name__)


class SourceHost:
    """Starts and stops the queries. Use from one event loop."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._settings, self._pool = settings, pool
        key_file = settings.secrets_key_file
        self._sealer = None if key_file is None else secrets.Sealer.from_file(key_file)
        self._states: dict[TopicName, FeedState] = {}
        self._queries: dict[TopicName, FeedQuery] = {}
        self._catalogs: dict[str, Catalog] = {}
        self._work: dict[TopicName, asyncio.Task[None]] = {}
        self._spark: SparkSession | None = None
        self._threads = ThreadPoolExecutor(STARTS, thread_name_prefix="feed")
        self.problem: str | None = "the catalogs were not read yet"

    def report(self) -> list[FeedReport]:
        """Return what is known of each feed."""
        return report_of(self._states)

    async def run(self, changed: asyncio.Event) -> None:
        """Follow the catalogs; raises only when the JVM has exited."""
        while True:
            changed.clear()
            try:
                await self._step()
                self.problem = None
            except SystemUnavailable as lost:
                self.problem = str(lost)
                log.warning("the catalogs could not be read; retrying", reason=str(lost))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), LOOK_S)

    async def _step(self) -> None:
        self._ended()
        wanted, now_s = feeds_of(await self._targets()), time.monotonic()
        for topic in to_stop(wanted, self._states):
            self._begin(topic, self._stop(topic))
        for topic in list(self._queries):
            self._begin(topic, self._check(topic))
        starting = to_start(wanted, self._states, now_s)
        if starting and self._spark is None:
            # Checkpoints of queries that died with their process.
            shutil.rmtree(sources_spark.checkpoints(self._settings), ignore_errors=True)
            self._spark = await asyncio.to_thread(sources_spark.session, self._settings)
        for feed in starting:
            self._begin(feed.raw_topic, self._start(feed))
        down = sum(isinstance(state, Broken) for state in self._states.values())
        FEEDS.labels("broken").set(down)
        FEEDS.labels("running").set(len(self._states) - down)

    def _begin(self, topic: TopicName, work: Coroutine[None, None, None]) -> None:
        """Run `work` on a feed, unless other work on it is still running."""
        if topic in self._work:
            work.close()
        else:
            self._work[topic] = asyncio.create_task(work)

    def _ended(self) -> None:
        """Forget work that has ended; raise what it did not expect, as when the JVM has exited."""
        for topic, task in list(self._work.items()):
            if task.done():
                del self._work[topic]
                task.result()

    async def _check(self, topic: TopicName) -> None:
        reason = await self._in_thread(self._queries[topic].failure)
        if reason is not None:
            await self._failed(self._states[topic].feed, reason)

    async def _targets(self) -> list[Catalog]:
        async with connection_of(self._pool) as connection:
            rows = await (
                await connection.execute(CATALOGS, {"known": list(self._catalogs)})
            ).fetchall()
        self._catalogs = {
            str(commit): self._catalogs[str(commit)]
            if data is None
            else stored_names.loads(cast(bytes, data), Catalog)
            for commit, data in rows
        }
        return list(self._catalogs.values())

    async def _start(self, feed: Feed) -> None:
        try:
            query = await self._in_thread(lambda: self._started(feed))
        except (ConnectionsError, SourceError, PySparkException, KafkaException) as failed:
            await self._failed(feed, str(failed).splitlines()[0])
            return
        topic = feed.raw_topic
        self._queries[topic] = query
        self._states[topic] = started(feed, self._states.get(topic), time.monotonic())
        log.info("source is read", source=feed.title, workspace=feed.workspace)

    def _started(self, feed: Feed) -> FeedQuery:
        kafka = opened(feed.connector, lambda secret: self._open(feed.workspace, secret))
        topic = describe_topic(kafka, feed.stream)
        positions: dict[bytes, SourcePosition] = {}
        for number in range(min(feed.partitions, topic.partitions)):
            positions |= read_positions(self._settings, feed.positions, number)
        starts: dict[int, int] = {}
        for number in range(topic.partitions):
            position = positions.get(feed.partition(number).key)
            if position is not None and position.origin != topic.origin:
                raise StreamReplaced(feed.title, position.origin, topic.origin)
            starts[number] = EARLIEST if position is None else position.next
        assert self._spark is not None, "Spark is started before its first query"
        return start_query(
            self._spark, self._settings, feed, kafka, topic.origin, starts, count_rows
        )

    def _open(self, workspace: WorkspaceId, secret: SealedSecret) -> str:
        if self._sealer is None:
            raise secrets.SecretUnreadable(
                "a connector has a password and this server has no key to decrypt it; set "
                "FENNEL_SECRETS_KEY_FILE"
            )
        return self._sealer.open(workspace, secrets.CREDENTIAL, secret.token.encode("ascii"))

    async def _failed(self, feed: Feed, reason: str) -> None:
        topic = feed.raw_topic
        await self._end(topic)
        state = broken(feed, self._states.get(topic), reason, time.monotonic())
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
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Stop Spark; every query continues from its position in the next process."""
        if self._spark is not None:
            # The JVM may have received the same signal and exited first.
            with contextlib.suppress(*JVM_EXIT_ERRORS):
                self._spark.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)


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


async def run_sources(settings: Settings) -> None:
    """Run until SIGTERM; raises when Spark's JVM has exited."""
    logs.configure(PROCESS, settings.log_level, hidden=logs.secrets_of(settings))
    stop, changed = asyncio.Event(), asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    dsn = settings.postgres_dsn.get_secret_value()
    async with postgres.pool(dsn, name=PROCESS, size=2) as pool:
        await require_ownership(settings, pool, None)
        host = SourceHost(settings, pool)

        async def following() -> str | None:
            return host.problem

        health = HealthEndpoint(PROCESS, {"catalogs": following}, {REPORT: host.report})
        rules = host_rules(settings, PROCESS, public=False)
        server = await health.serve(settings.host, settings.sources_port, rules)
        tasks = [
            asyncio.create_task(host.run(changed)),
            asyncio.create_task(_follow(dsn, changed)),
        ]
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        log.info("sources are stopping")
        await asyncio.to_thread(host.close)
        await server.cleanup()
        ended = [task for task in tasks if task.done()]
        for task in (*tasks, stopping):
            task.cancel()
        for task in ended:
            # Both loops are endless, so a finished task has an error to raise.
            task.result()


async def _follow(dsn: str, changed: asyncio.Event) -> None:
    """Set `changed` when a commit or branch may have changed a catalog."""
    async for wakeup in postgres.listen(dsn, ("catalog",), name="fennel-sources-wakeups"):
        if not isinstance(wakeup, ListenStarted):
            changed.set()
