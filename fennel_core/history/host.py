"""The history writer's process: passes without end, health, metrics, periodic pruning.

Theory. It is a separate process and does not run inside the engine's Spark application. The engine
retries tasks without limit and never reuses a Python worker, which suits slots but would start new
interpreters for every batch; and whatever a large batch does to its JVM must not affect the slots.
A failed pass is logged, shown on `/readyz` and repeated. When the JVM has exited, the process ends
and its supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Final

import structlog

from fennel_core.connections import postgres
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.garbage import (
    DeletionLimit,
    DeletionRefused,
    PostgresGarbageMarks,
)
from fennel_core.connections.installation import installation_objects, require_ownership
from fennel_core.connections.postgres import Pool
from fennel_core.history.backlog import RollRule
from fennel_core.history.erasure_report import ErasureReport
from fennel_core.history.errors import RollFailed
from fennel_core.history.held_rows import HeldRowsReport
from fennel_core.history.kafka import TopicReader
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.pruning import prune_history
from fennel_core.history.spark import SparkRoller
from fennel_core.history.topic_counts import TopicCounts, TopicGroup, count_groups
from fennel_core.history.topics import HistoryTopics
from fennel_core.history.writer import HistoryWriter, PassResult
from fennel_core.settings.hosts import host_rules
from fennel_core.settings.model import Settings
from fennel_core.telemetry import logs, metrics
from fennel_core.telemetry.endless_tasks import run_until_stopped, stop_signals
from fennel_core.telemetry.health import HealthEndpoint
from fennel_core.vocab.ids import TopicName

PROCESS: Final = "history"
REPORTED_FAILURES: Final = 3
"""Consecutive failures from which on `/readyz` reports them; a restart of Kafka or Postgres causes
fewer.
"""
TOPICS: Final = "/topics"
"""The path of the counts of each topic, for `fennel-core status`."""
ERASURES: Final = "/erasures"
"""The path of the progress of erasures, for `fennel-core status`."""
HELD_ROWS: Final = "/held_rows"
"""The path of the workspaces that keep rows older than `history`, for `fennel-core status`."""
log = structlog.get_logger(__name__)

GROUP: Final = ("workspace", "kind")
FILES = metrics.gauge("fennel_history_files", "Files in history.", GROUP)
ROWS = metrics.gauge("fennel_history_rows", "Rows in history.", GROUP)
LAG = metrics.gauge(
    "fennel_history_lag_records", "Messages of topics that are not in history yet.", GROUP
)
LOST = metrics.gauge(
    "fennel_history_lost_records",
    "Messages of topics that Kafka deleted before they were in history.",
    GROUP,
)
EXPIRED = metrics.gauge(
    "fennel_history_expired_rows",
    "Rows that left history because they were older than the `history` of their datasets.",
    GROUP,
)
WAITING = metrics.gauge(
    "fennel_history_waiting_seconds",
    "For how long the partition that waits longest has not got into history.",
    GROUP,
)
LATE = metrics.gauge(
    "fennel_history_late_topics",
    "Topics with records that wait longer than a working history writer needs.",
)
ROUNDS = metrics.counter(
    "fennel_history_rounds",
    "Rounds of the history writer by outcome: `done` or `failed`.",
    ("outcome",),
)
PRUNING_REFUSED = metrics.gauge(
    "fennel_history_pruning_refused",
    "1 if the last pruning of history would have deleted more than the limit, else 0.",
)
ROUND_SECONDS = metrics.histogram(
    "fennel_history_round_seconds", "Time of one round of the history writer."
)


class _State:
    """The outcome of the passes, for `/readyz`, `/metrics` and `/topics`."""

    def __init__(self) -> None:
        self._failures = 0
        self._problem: str | None = None
        self._topics: Mapping[TopicName, TopicCounts] = {}
        self._groups: frozenset[TopicGroup] = frozenset()

    async def check(self) -> str | None:
        return self._problem if self._failures >= REPORTED_FAILURES else None

    def publish(self, topics: Mapping[TopicName, TopicCounts]) -> None:
        """Show these counts in `/topics` and `/metrics`."""
        self._topics = topics
        groups = count_groups(topics)
        for group in self._groups - groups.keys():
            for gauge in (FILES, ROWS, LAG, LOST, EXPIRED, WAITING):
                gauge.remove(group.workspace, group.kind)
        for group, counts in groups.items():
            labels = (group.workspace, group.kind)
            FILES.labels(*labels).set(counts.totals.files)
            ROWS.labels(*labels).set(counts.totals.rows)
            LAG.labels(*labels).set(counts.lag_records)
            LOST.labels(*labels).set(counts.totals.lost_records)
            EXPIRED.labels(*labels).set(counts.totals.expired_rows)
            WAITING.labels(*labels).set(counts.waiting_s)
        self._groups = frozenset(groups)
        LATE.set(sum(counts.late for counts in topics.values()))

    def done(self, result: PassResult) -> None:
        self._failures, self._problem = 0, None
        ROUNDS.labels("done").inc()
        self.publish(result.topics)
        if result.files:
            log.info(
                "history pass added files",
                files=result.files,
                rows=result.rows,
                lag=sum(counts.lag_records for counts in result.topics.values()),
            )

    def report(self) -> list[dict[str, object]]:
        """Return what history holds and lacks of each topic, as of the last counts."""
        return [
            {
                "topic": topic,
                **asdict(counts.totals),
                "lag_records": counts.lag_records,
                "waiting_s": round(counts.waiting_s),
                "late": counts.late,
            }
            for topic, counts in self._topics.items()
        ]

    def failed(self, reason: str, topics: Mapping[TopicName, TopicCounts]) -> None:
        """`topics`: the counts that the writer has, with waiting times until now."""
        self._failures += 1
        self._problem = reason
        self.publish(topics)
        ROUNDS.labels("failed").inc()
        log.error("history pass failed; retrying", failures=self._failures, reason=reason)


Beside = Callable[[Settings, Pool], Coroutine[None, None, None]]
"""Work without end that runs in this process, too: it gets the pool of connections."""


async def run_history(settings: Settings, *beside: Beside) -> None:
    """Run until SIGTERM; raises JvmExited when Spark's JVM has exited."""
    logs.configure(PROCESS, settings.log_level, hidden=logs.secrets_of(settings))
    stop = stop_signals()
    async with postgres.pool(
        settings.postgres_dsn.get_secret_value(), name=PROCESS, size=2
    ) as pool:
        await require_ownership(settings, pool, None)
        state, roller = _State(), SparkRoller(settings, installation_objects(settings, pool))
        files, topics = PostgresHistoryFiles(pool), HistoryTopics(pool)
        rule = RollRule(settings.history_file_records, settings.history_max_wait_s)
        writer = HistoryWriter(
            files,
            topics,
            TopicReader(settings).permitted_bounds,
            roller,
            rule,
            time.monotonic,
            state.publish,
        )
        erasures = ErasureReport(pool)
        held = HeldRowsReport(pool, retention=settings.history_retention)
        marks = PostgresGarbageMarks(pool)
        grace = timedelta(milliseconds=settings.history_grace_ms)
        limit = DeletionLimit(settings.garbage_items, settings.garbage_percent)

        async def pruning() -> None:
            while True:
                await asyncio.sleep(grace.total_seconds())
                # The owner is checked again: it must be proven when something is deleted.
                objects = installation_objects(settings, pool)
                try:
                    done = await prune_history(files, topics, objects, marks, grace, limit)
                except SystemUnavailable as unavailable:
                    log.warning("history pruning failed; retrying later", reason=str(unavailable))
                except DeletionRefused as refused:
                    PRUNING_REFUSED.set(1)
                    log.error("history pruning was refused", reason=str(refused))
                else:
                    PRUNING_REFUSED.set(0)
                    log.info(
                        "history pruned",
                        topics=done.topics,
                        objects=done.objects,
                        retired=done.retired,
                    )

        reports = {TOPICS: state.report, ERASURES: erasures.rows, HELD_ROWS: held.rows}
        server = await HealthEndpoint(PROCESS, {"rounds": state.check}, reports).serve(
            settings.host,
            settings.history_port,
            host_rules(settings, PROCESS, public=False),
        )
        await run_until_stopped(
            PROCESS,
            stop,
            [
                _run_passes(writer, state, settings.history_trigger_s),
                pruning(),
                erasures.run(),
                held.run(),
                *(work(settings, pool) for work in beside),
            ],
            roller.stop,
            server.cleanup,
            close_s=settings.shutdown_grace_s / 2,
        )


async def _run_pass(writer: HistoryWriter, state: _State) -> None:
    try:
        with ROUND_SECONDS.time():
            result = await writer.run_pass()
    except (SystemUnavailable, RollFailed) as failed:
        state.failed(str(failed), writer.counts())
    else:
        state.done(result)


async def _run_passes(writer: HistoryWriter, state: _State, trigger_s: float) -> None:
    while True:
        began = time.monotonic()
        await _run_pass(writer, state)
        await asyncio.sleep(max(0.0, trigger_s - (time.monotonic() - began)))
