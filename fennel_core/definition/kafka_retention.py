"""Delete expired records, and report job partitions that need expiring records.

Four stores determine which records may be deleted: the bank (existing topics), the registry (their
readers), snapshot manifests (the offsets that each kept snapshot needs) and history (the offsets it
has archived). They are read before Kafka's offsets and only ever move forward, so a decision based
on them never deletes too much. `snapshots/log_retention.py` makes the decision. The survey is cheap
and the definition server repeats it often; deletion is a step of the DAG `snapshot`, after pruning.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, cast

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from psycopg_pool import PoolTimeout

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.logical import AssetKind
from fennel_core.blueprints.spec import Job
from fennel_core.connections import offsets, postgres
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.installation import installation_objects
from fennel_core.connections.kafka import client_config
from fennel_core.connections.postgres import Pool
from fennel_core.definition.periodic import run_periodically
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.request_pruning import PrunedRequests, prune_requests
from fennel_core.history.topics import HistoryTopics
from fennel_core.operators.spec import has_native_step
from fennel_core.settings.model import Settings
from fennel_core.snapshots import transfer
from fennel_core.snapshots.log_retention import (
    LogKind,
    LogPartition,
    RequiredOffset,
    RetentionAlarm,
    RetentionProblem,
    deletion_bound,
    retention_alarm,
)
from fennel_core.snapshots.manifest import StatePosition
from fennel_core.snapshots.postgres import PostgresPointers
from fennel_core.snapshots.store import Pointer
from fennel_core.snapshots.transfer import SnapshotContext
from fennel_core.telemetry.logs import logger
from fennel_core.telemetry.metrics import gauge
from fennel_core.vocab.ids import (
    JobId,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    partition_indexes,
)

TIMEOUT_S: Final = 15.0
TOPICS: Final = """
    SELECT a.id, w.partitions FROM asset a JOIN workspace w ON w.name = a.workspace
    WHERE a.kind = ANY(%s) AND a.state = 'live'
"""
EXPIRING: Final = (
    *(AssetKind.TOPIC.value, AssetKind.RAW.value, AssetKind.REPLAYLOG.value),
    AssetKind.QUERY_LOG.value,
)
BACKFILLED: Final = "SELECT job_id, part FROM backfill WHERE manifest IS NOT NULL"
JOBS: Final = "SELECT id, spec FROM job WHERE desired <> 'remove'"
"""Paused jobs, too: a commit may revive them, and then they read on from their offsets."""
log = logger(__name__)
NEEDED_LOST: Final = gauge(
    "fennel_core_needed_records_lost",
    "Job partitions that could not restart because records they need are lost.",
)
NEEDED_OLD: Final = gauge(
    "fennel_core_needed_records_old",
    "Job partitions that hold back the deletion of records that are about to expire.",
)


@dataclass(frozen=True, slots=True)
class RetentionSurvey:
    """Every topic partition, with the offsets that its readers require."""

    logs: Mapping[TopicPartition, LogPartition]
    needs: Mapping[TopicPartition, tuple[RequiredOffset, ...]]
    history: Mapping[TopicPartition, Offset] | None
    """The end of the archived records; None: deletion does not wait for history."""

    def alarms(self) -> list[RetentionAlarm]:
        """Return the alarms of readers whose required records are lost or about to expire."""
        found = [
            retention_alarm(self.logs[source], need)
            for source, needs in self.needs.items()
            if source in self.logs
            for need in needs
        ]
        return [each for each in found if each is not None]

    def deletable(self) -> dict[TopicPartition, Offset]:
        """Return the new start offset of each topic partition that may be truncated."""
        starts = {}
        for source, found in self.logs.items():
            history = None if self.history is None else self.history.get(source, Offset(0))
            start = deletion_bound(found, self.needs.get(source, ()), history)
            if start > found.start:
                starts[source] = start
        return starts

    def removable(self) -> dict[TopicPartition, Offset]:
        """Return the offset of each partition below which neither Kafka has records nor any reader
        may read them again: history alone has them, for readers that are created later.
        """
        return {
            source: Offset(
                min([found.start, *(need.offset for need in self.needs.get(source, ()))])
            )
            for source, found in self.logs.items()
        }


class KafkaRetention:
    """Surveys and truncates topics. Errors of Postgres, S3 and Kafka propagate."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._settings, self._pool = settings, pool
        self._snapshots = SnapshotContext(
            installation_objects(settings, pool), PostgresPointers(pool)
        )
        self._admin = AdminClient(client_config(settings))
        self._topics = HistoryTopics(pool)
        self._positions: dict[str, StatePosition] = {}

    async def survey(self, now_ms: int) -> RetentionSurvey:
        """Read the state of every topic partition and the offsets its readers require."""
        jobs = {
            JobId(cast(str, id_)): stored_names.loads(cast(bytes, spec), Job)
            for id_, spec in await self._rows(JOBS)
        }
        needs = await self._needs(jobs)
        partitions = await self._partition_counts()
        kinds = await self._kinds(partitions, jobs.values())
        content = [topic for topic, kind in kinds.items() if kind is LogKind.CONTENT]
        history: Mapping[TopicPartition, Offset] | None = None
        if self._settings.history_before_deletion:
            history = await PostgresHistoryFiles(self._pool).ends(content)
        sources = [
            (topic, part) for topic in kinds for part in partition_indexes(partitions[topic])
        ]
        kept_ms = await self._topics.raw_retention_ms()
        logs = await asyncio.to_thread(self._logs, sources, kinds, kept_ms, now_ms)
        return RetentionSurvey(logs, needs, history)

    async def delete(self, survey: RetentionSurvey) -> dict[TopicPartition, Offset]:
        """Truncate topic partitions as far as the survey allows; return their new start offsets."""
        starts = survey.deletable()
        await asyncio.to_thread(offsets.delete_before, self._admin, starts, TIMEOUT_S)
        return starts

    async def prune_requests(self, survey: RetentionSurvey) -> PrunedRequests:
        """Delete from history what is older than the `history` of its endpoint's datasets, and
        logged queries that are older than `query_log_history_s`.
        """
        needed = {
            source: Offset(min((need.offset for need in needs), default=0))
            for source, needs in survey.needs.items()
        }
        kept_us = await self._topics.request_history_us()
        if self._settings.query_log_history_s:
            queries_us = self._settings.query_log_history_s * 1_000_000
            kept_us |= dict.fromkeys(await self._topics.query_logs(), queries_us)
        return await prune_requests(
            PostgresHistoryFiles(self._pool),
            installation_objects(self._settings, self._pool),
            kept_us,
            needed,
            Micros(int((await postgres.now(self._pool)).timestamp() * 1_000_000)),
        )

    def _logs(
        self,
        sources: list[TopicPartition],
        kinds: Mapping[TopicName, LogKind],
        kept_ms: Mapping[TopicName, int],
        now_ms: int,
    ) -> dict[TopicPartition, LogPartition]:
        """Read the offsets of every partition.

        `kept_ms`: the retention of topics that have their own.
        """
        groups: dict[int, list[TopicPartition]] = defaultdict(list)
        for source in sources:
            groups[kept_ms.get(source[0], self._settings.kafka_retention_ms)].append(source)
        bounds = offsets.bounds(self._admin, sources, TIMEOUT_S)
        aged: dict[TopicPartition, Offset] = {}
        warned: dict[TopicPartition, Offset] = {}
        for keep_ms, group in groups.items():
            warn_ms = keep_ms * self._settings.retention_alarm_percent // 100
            aged |= offsets.offsets_at_time(self._admin, group, now_ms - keep_ms, TIMEOUT_S)
            warned |= offsets.offsets_at_time(self._admin, group, now_ms - warn_ms, TIMEOUT_S)
        return {
            s: LogPartition(s[0], PartitionIndex(s[1]), kinds[s[0]], *bounds[s], aged[s], warned[s])
            for s in sources
        }

    async def _partition_counts(self) -> dict[TopicName, int]:
        """Return every live topic whose records are deleted here, with its partitions."""
        kept = await self._rows(TOPICS, (list(EXPIRING),))
        return {TopicName(cast(str, name)): cast(int, count) for name, count in kept}

    async def _kinds(
        self, topics: Collection[TopicName], jobs: Collection[Job]
    ) -> dict[TopicName, LogKind]:
        """Return the kind of each of `topics`."""
        content = await self._topics.with_history()
        replaylogs = {job.replaylog for job in jobs}
        found = {}
        for topic in topics:
            passage = (
                LogKind.REPLAYLOG
                if f".{AssetKind.REPLAYLOG}." in topic or topic in replaylogs
                else LogKind.PASSAGE
            )
            found[topic] = LogKind.CONTENT if topic in content else passage
        return found

    async def _needs(
        self, jobs: Mapping[JobId, Job]
    ) -> dict[TopicPartition, tuple[RequiredOffset, ...]]:
        found: dict[TopicPartition, list[RequiredOffset]] = defaultdict(list)
        kept: set[str] = set()
        backfilled = set(await self._rows(BACKFILLED))
        snapshots = await self._snapshots.pointers.all()
        for job in jobs.values():
            for part in map(PartitionIndex, range(job.partitions)):
                pointers = snapshots.get((job.id, part), [])
                kept |= {pointer.manifest for pointer in pointers}
                positions = [await self._position(pointer) for pointer in pointers]
                for topic in (*job.inputs, job.replaylog):
                    needed = [
                        _needed_offset(position, topic, job.replaylog) for position in positions
                    ]
                    need = RequiredOffset(
                        job.id,
                        job.title,
                        part,
                        Offset(min(needed, default=0)),
                        len(positions),
                        (job.id, part) in backfilled or not has_native_step(job.step),
                    )
                    if topic != job.replaylog or job.outputs:
                        found[(topic, part)].append(need)
        self._positions = {
            manifest: position for manifest, position in self._positions.items() if manifest in kept
        }
        return {source: tuple(needs) for source, needs in found.items()}

    async def _position(self, pointer: Pointer) -> StatePosition:
        """Return the position of a snapshot, reading each manifest once as manifests never change.

        An unreadable manifest counts as position 0, so that nothing it may need is deleted.
        """
        known = self._positions.get(pointer.manifest)
        if known is None:
            (placed,) = await transfer.with_newest_position(self._snapshots, [pointer])
            if placed.position is None:
                return StatePosition(0, Offset(0), {})
            known = self._positions[pointer.manifest] = placed.position
        return known

    async def _rows(
        self, statement: str, values: tuple[object, ...] = ()
    ) -> list[tuple[object, ...]]:
        async with self._pool.connection() as connection:
            return await (await connection.execute(statement, values)).fetchall()


def _needed_offset(position: StatePosition, topic: TopicName, replaylog: TopicName) -> int:
    return position.replayed if topic == replaylog else position.offsets.get(topic, 0)


class NeededRecordsCheck:
    """Report every `retention_check_s` which job partitions need records that are about to expire.

    An alarm is logged when it begins, exported as a gauge, and kept for `status`.
    """

    def __init__(self, retention: KafkaRetention, interval_s: float) -> None:
        self._retention, self._interval_s = retention, interval_s
        self.alarms: list[RetentionAlarm] = []

    async def run(self) -> None:
        """Run the check forever."""
        await run_periodically(self.check_once, "retention", self._interval_s)

    async def check_once(self) -> None:
        """Log new alarms and set the gauges."""
        survey = await self._retention.survey(time.time_ns() // 1_000_000)
        found = survey.alarms()
        before = {(each.job, each.part, each.topic, each.problem) for each in self.alarms}
        for each in found:
            if (each.job, each.part, each.topic, each.problem) not in before:
                log.error(
                    "needed records",
                    problem=each.problem.value,
                    job=each.job,
                    part=each.part,
                    topic=each.topic,
                    message=each.message,
                )
        if self.alarms and not found:
            log.info("needed records: all alarms cleared")
        self.alarms = found
        for metric, problem in (
            (NEEDED_LOST, RetentionProblem.LOST),
            (NEEDED_OLD, RetentionProblem.OLD),
        ):
            metric.set(len({(each.job, each.part) for each in found if each.problem is problem}))


@dataclass(frozen=True, slots=True)
class ExpiredRecords:
    """What was deleted: the new start offsets, and files of request history; and the alarms."""

    starts: Mapping[TopicPartition, Offset]
    requests: PrunedRequests
    alarms: Sequence[RetentionAlarm]


async def removable_records(settings: Settings, pool: Pool) -> Mapping[TopicPartition, Offset]:
    """Return the offset of each partition below which rows may be removed from history.

    Raises SystemUnavailable.
    """
    try:
        survey = await KafkaRetention(settings, pool).survey(time.time_ns() // 1_000_000)
    except (KafkaException, psycopg.OperationalError, PoolTimeout) as lost:
        raise SystemUnavailable(
            f"the offsets that jobs need cannot be read from Kafka and Postgres: {lost}"
        ) from lost
    return survey.removable()


def delete_expired_records(settings: Settings) -> ExpiredRecords:
    """Delete expired records from Kafka, and expired requests from history.

    For callers without an event loop.
    """

    async def survey_and_delete() -> ExpiredRecords:
        async with AsyncExitStack() as stack:
            pool = await stack.enter_async_context(
                postgres.pool(settings.postgres_dsn.get_secret_value(), name="retention", size=1)
            )
            retention = KafkaRetention(settings, pool)
            survey = await retention.survey(time.time_ns() // 1_000_000)
            starts = await retention.delete(survey)
            requests = await retention.prune_requests(survey)
            return ExpiredRecords(starts, requests, survey.alarms())

    return asyncio.run(survey_and_delete())
