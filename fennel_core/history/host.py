"""The history writer as a process: rounds for ever, health, metrics, deletion now and then.

Theory. It is a part of its own and not a guest in the engine's Spark application: the engine
retries tasks without end and never reuses a Python worker, which suits slots and would make every
batch pay for new interpreters; and whatever a large batch does to its JVM, the slots must not
notice. A round that fails is told in the log and on `/readyz` and is tried again; a JVM that has
ended ends the process, and whoever keeps parts running starts it again.
"""

from __future__ import annotations

import asyncio
import signal
import time
from datetime import timedelta
from typing import Final

import structlog

from fennel_core.connections import postgres, s3
from fennel_core.history.backlog import RollRule
from fennel_core.history.kafka import TopicReader
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.s3 import S3Objects
from fennel_core.history.spark import SparkRoller
from fennel_core.history.store import HistoryTotals, StoreError
from fennel_core.history.topics import HistoryTopics
from fennel_core.history.writer import HistoryWriter, PassResult, RollFailed, prune_history
from fennel_core.settings.model import Settings
from fennel_core.telemetry import logs, metrics
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab.ids import TopicName

PROCESS: Final = "history"
FAILURES_TOLD: Final = 3
"""So many failed rounds in a row are what a restart of Kafka or Postgres takes; more of them are a
state that people should see.
"""
NOTHING: Final = HistoryTotals(0, 0, 0)
log = structlog.get_logger(__name__)

FILES = metrics.gauge("fennel_history_files", "Files that hold a topic's history.", ("topic",))
ROWS = metrics.gauge("fennel_history_rows", "Rows in a topic's history.", ("topic",))
LAG = metrics.gauge(
    "fennel_history_lag_records", "Messages of a topic that are not in history yet.", ("topic",)
)
ROUNDS = metrics.counter(
    "fennel_history_rounds",
    "Rounds of the history writer by outcome: `done` or `failed`.",
    ("outcome",),
)
ROUND_SECONDS = metrics.histogram(
    "fennel_history_round_seconds", "Time of one round of the history writer."
)


class _State:
    """What `/readyz` and `/metrics` tell of the rounds."""

    def __init__(self) -> None:
        self._failures = 0
        self._problem: str | None = None
        self._topics: frozenset[TopicName] = frozenset()

    async def check(self) -> str | None:
        return self._problem if self._failures >= FAILURES_TOLD else None

    def done(self, rolled: PassResult) -> None:
        self._failures, self._problem = 0, None
        ROUNDS.labels("done").inc()
        topics = frozenset(rolled.lag) | frozenset(rolled.totals)
        for topic in self._topics - topics:
            for gauge in (FILES, ROWS, LAG):
                gauge.remove(topic)
        for topic in topics:
            totals = rolled.totals.get(topic, NOTHING)
            FILES.labels(topic).set(totals.files)
            ROWS.labels(topic).set(totals.rows)
            LAG.labels(topic).set(rolled.lag.get(topic, 0))
        self._topics = topics
        if rolled.files:
            log.info(
                "history has grown",
                files=rolled.files,
                rows=rolled.rows,
                lag=sum(rolled.lag.values()),
            )

    def failed(self, reason: str) -> None:
        self._failures += 1
        self._problem = reason
        ROUNDS.labels("failed").inc()
        log.error(
            "a round of history failed; it is tried again", failures=self._failures, reason=reason
        )


async def run_history(settings: Settings) -> None:
    """Run until SIGTERM. JvmGone when Spark's JVM ended."""
    logs.configure(PROCESS, settings.log_level, hidden=logs.secrets_of(settings))
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    state, roller = _State(), SparkRoller(settings)
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name=PROCESS, size=2
    ) as pool:
        files, topics = PostgresHistoryFiles(pool), HistoryTopics(pool)
        rule = RollRule(settings.history_file_records, settings.history_max_wait_s)
        writer = HistoryWriter(
            files, topics, TopicReader(settings).bounds, roller, rule, time.monotonic
        )
        objects = S3Objects(s3.client(settings), settings.s3_bucket)
        grace = timedelta(milliseconds=settings.history_grace_ms)

        async def pruning() -> None:
            while True:
                await asyncio.sleep(grace.total_seconds())
                try:
                    done = await prune_history(files, topics, objects, grace)
                    log.info("history was pruned", topics=done.topics, objects=done.objects)
                except StoreError as away:
                    log.warning("history could not be pruned; it is tried later", reason=str(away))

        server = await HealthEndpoint(PROCESS, {"rounds": state.check}).serve(
            settings.host, settings.history_port
        )
        tasks = [
            asyncio.create_task(_rounds(writer, state, settings.history_trigger_s)),
            asyncio.create_task(pruning()),
        ]
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        log.info("history is stopping")
        await asyncio.to_thread(roller.stop)
        await server.cleanup()
        ended = [task for task in tasks if task.done()]
        for task in (*tasks, stopping):
            task.cancel()
        for task in ended:
            task.result()  # ours end only with an error


async def _rounds(writer: HistoryWriter, state: _State, trigger_s: float) -> None:
    while True:
        began = time.monotonic()
        try:
            with ROUND_SECONDS.time():
                rolled = await writer.round()
        except (StoreError, RollFailed) as failed:
            state.failed(str(failed))
        else:
            state.done(rolled)
        await asyncio.sleep(max(0.0, trigger_s - (time.monotonic() - began)))
