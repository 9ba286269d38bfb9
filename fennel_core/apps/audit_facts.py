"""Collect the facts of an audit from Postgres, Kafka, S3 and the local disk, without changing any.

Postgres is read in one repeatable-read transaction. Objects are listed before the rows that need
them are read, so an object of a snapshot that is written at the same time never looks missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fennel_core.apps.audit import AuditedAsset, AuditFacts, Finding, confirmed, find_problems
from fennel_core.bank.store import AssetState
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.logical import AssetKind, LogicalJob, LogicalTopic
from fennel_core.connections import postgres
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.installation import installation_objects, installation_of
from fennel_core.connections.kafka import client_config
from fennel_core.connections.object_store import ObjectStore
from fennel_core.history import roll
from fennel_core.ledger.reconcile import ASSET_TOPIC
from fennel_core.settings.model import Settings
from fennel_core.snapshots import transfer
from fennel_core.snapshots.errors import SnapshotCorrupt
from fennel_core.snapshots.store import Pointer
from fennel_core.vocab.ids import AssetId, Epoch, JobId, PartitionIndex, TopicName

KAFKA_S: Final = 15.0
RECHECK_S: Final = 3.0
"""Between the two collections that a finding must survive: longer than a step of a commit."""
ASSETS: Final = "SELECT id, state, kind, title, blueprint FROM asset WHERE state <> 'deleted'"
HELD: Final = """
    SELECT asset_id FROM asset_ref UNION SELECT asset_id FROM reservation
    UNION SELECT a.id FROM asset a JOIN workspace w ON w.name = a.workspace
    WHERE a.kind = 'querylog' AND w.state = 'open'
"""
"""What versions and commits hold, and what open workspaces hold themselves."""
SERVED: Final = "SELECT DISTINCT asset_id FROM asset_ref"
JOBS: Final = """
    SELECT j.id, array_remove(array_agg(p.part), NULL) FROM job j
    LEFT JOIN job_partition p ON p.job_id = j.id GROUP BY j.id
"""
ISSUED: Final = """
    SELECT s.min_value, coalesce(s.last_value, s.min_value - 1) FROM pg_sequences s
    WHERE s.schemaname = current_schema() AND s.sequencename = 'asset_incarnation'
"""
SNAPSHOTS: Final = """
    SELECT s.job_id, s.part, s.number, s.epoch, s.manifest, s.sha256, s.taken_at
    FROM snapshot s JOIN job j ON j.id = s.job_id
"""
HISTORY: Final = "SELECT object_key, topic, part FROM history_file"
RETIRED: Final = "SELECT object_key FROM history_retired"
"""Objects that are deleted when they are due: neither needed nor orphaned."""


async def audit(settings: Settings) -> tuple[Finding, ...]:
    """Return the disagreements that two collections have in common.

    Raises SystemUnavailable if one of the systems cannot be read.
    """
    first = find_problems(await collect(settings))
    if not first:
        return ()
    await asyncio.sleep(RECHECK_S)
    return confirmed(first, find_problems(await collect(settings)))


async def collect(settings: Settings) -> AuditFacts:
    """Read everything once."""
    async with postgres.pool(settings.postgres_dsn.get_secret_value(), name="audit", size=1) as p:
        installation, now = await installation_of(p), await postgres.now(p)
        store = installation_objects(settings, p, claims=False)
        await store.root()
    objects = await _objects(settings, store, now)
    topics = await asyncio.to_thread(_topics, settings)
    rows = await asyncio.to_thread(_read_rows, settings.postgres_dsn.get_secret_value())
    for (key,) in rows["retired"]:
        objects.pop(key, None)
    first, last = rows["issued"][0]
    return AuditFacts(
        assets={AssetId(row[0]): _asset(*row[1:]) for row in rows["assets"]},
        topics={
            name: partitions
            for name, partitions in topics.items()
            if first <= int(name.rpartition(".")[2]) <= last
        },
        held=frozenset(AssetId(id_) for (id_,) in rows["held"]),
        served=frozenset(AssetId(id_) for (id_,) in rows["served"]),
        jobs={JobId(id_): frozenset(parts) for id_, parts in rows["jobs"]},
        needed_objects=await _needed_objects(store, rows),
        objects=objects,
        local_state=_local_state(settings.state_dir / installation),
    )


def _read_rows(dsn: str) -> dict[str, list[tuple[Any, ...]]]:
    queries: dict[str, LiteralString] = {
        "assets": ASSETS,
        "held": HELD,
        "served": SERVED,
        "jobs": JOBS,
        "issued": ISSUED,
        "snapshots": SNAPSHOTS,
        "history": HISTORY,
        "retired": RETIRED,
    }
    try:
        with postgres.connect(dsn, name="audit") as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            return {name: connection.execute(query).fetchall() for name, query in queries.items()}
    except psycopg.OperationalError as error:
        raise SystemUnavailable(f"Postgres: {str(error).splitlines()[0]}") from error


def _asset(state: str, kind: str, title: str, blueprint: bytes) -> AuditedAsset:
    if AssetKind(kind) is AssetKind.JOB:
        job = stored_names.loads(blueprint, LogicalJob)
        return AuditedAsset(AssetState(state), True, job.partitions, title)
    topic = stored_names.loads(blueprint, LogicalTopic)
    return AuditedAsset(AssetState(state), False, topic.partitions, title)


def _topics(settings: Settings) -> dict[TopicName, int]:
    """Return name → number of partitions of every topic that is named like an asset."""
    try:
        found = AdminClient(client_config(settings)).list_topics(timeout=KAFKA_S).topics
    except KafkaException as error:
        raise SystemUnavailable(f"Kafka: {error}") from error
    return {
        TopicName(name): len(topic.partitions)
        for name, topic in found.items()
        if ASSET_TOPIC.match(name)
    }


async def _objects(settings: Settings, store: ObjectStore, now: datetime) -> dict[str, bool]:
    graces = {
        transfer.PREFIX: settings.snapshot_grace_ms,
        roll.PREFIX: settings.history_grace_ms,
    }
    found: dict[str, bool] = {}
    for prefix, grace_ms in graces.items():
        expired = now - timedelta(milliseconds=grace_ms)
        for each in await store.list_objects(f"{prefix}/"):
            found[each.key] = each.written_at < expired
    return found


async def _needed_objects(
    store: ObjectStore, rows: Mapping[str, list[tuple[Any, ...]]]
) -> dict[str, str]:
    """Return object key → what needs it; an unreadable manifest counts as a missing object."""
    needed = {
        key: f"the history of {topic}, partition {part}" for key, topic, part in rows["history"]
    }
    for job, part, number, epoch, manifest, sha256, taken_at in rows["snapshots"]:
        pointer = Pointer(
            JobId(job), PartitionIndex(part), number, Epoch(epoch), manifest, sha256, taken_at
        )
        owner = f"snapshot {number} of {job}, partition {part}"
        needed[manifest] = owner
        try:
            files = (await transfer.read_manifest(store, pointer)).files
        except SnapshotCorrupt as corrupt:
            needed[f"{manifest} ({corrupt})"] = owner
            continue
        needed.update({file.object: owner for file in files})
    return needed


def _local_state(root: Path) -> dict[JobId, str]:
    if not root.exists():
        return {}
    return {JobId(path.name): str(path) for path in sorted(root.iterdir()) if path.is_dir()}
