"""The whole engine is killed and its disk lost after old log records were deleted: every feature is
unchanged and no record is emitted twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from itertools import product
from typing import Any

import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from fennel_core.apps.local import processes
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Job
from fennel_core.connections import s3
from fennel_core.connections.kafka import client_config
from fennel_core.engine.kafka.broker import KafkaBroker
from fennel_core.settings.model import Settings
from fennel_core.snapshots import snapshot_pass
from fennel_core.snapshots.manifest import SnapshotManifest, decode_manifest
from fennel_core.vocab.ids import Offset
from tests.conftest import cli
from tests.e2e.platform.shop import AT_ONCE, KEPT, Shop
from tests.support.installation import own_prefix
from tests.support.log_ranges import read_range
from tests.support.workspaces import INLINE

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(600)]
BEFORE, AFTER = AT_ONCE, AT_ONCE
"""Rows logged before and after the snapshots."""
Places = Mapping[tuple[str, int], SnapshotManifest]


def jobs_of(settings: Settings, workspace: str) -> list[Job]:
    with psycopg.connect(settings.postgres_dsn.get_secret_value()) as connection:
        rows = connection.execute(
            "SELECT spec FROM job WHERE workspace = %s", (workspace,)
        ).fetchall()
    return [stored_names.loads(row[0], Job) for row in rows]


def snapshots_of(settings: Settings, jobs: list[Job]) -> tuple[Places, set[str]]:
    """Return the newest manifest of every job partition, and the keys of these manifests."""
    client = s3.client(settings)
    found, keys = {}, set()
    with psycopg.connect(settings.postgres_dsn.get_secret_value()) as connection:
        for job, part in product(jobs, range(jobs[0].partitions)):
            newest = (
                "SELECT manifest FROM snapshot WHERE job_id = %s AND part = %s ORDER BY "
                "number DESC LIMIT 1"
            )
            row = connection.execute(newest, (job.id, part)).fetchone()
            assert row is not None, f"{job.title}[{part}] has no snapshot"
            found[(job.id, part)] = decode_manifest(
                s3.get(client, settings.s3_bucket, own_prefix(settings) + row[0]) or b""
            )
            keys.add(row[0])
    return found, keys


def forget_before(settings: Settings, jobs: list[Job], snapshots: Places) -> int:
    """Delete every input record that no snapshot needs; return the number of deleted offsets."""
    needed: dict[tuple[str, int], int] = {}
    for job, part in product(jobs, range(jobs[0].partitions)):
        for topic in job.inputs:
            offset = snapshots[(job.id, part)].position.offsets.get(topic, 0)
            needed[(topic, part)] = min(offset, needed.get((topic, part), offset))
    admin = AdminClient(client_config(settings))  # kept: futures of a collected client never end
    for deleted in admin.delete_records(
        [TopicPartition(*source, offset) for source, offset in needed.items()]
    ).values():
        deleted.result(30)
    return sum(needed.values())


async def emitted(
    settings: Settings, jobs: list[Job], starts: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """Return the records of every output topic except control records."""
    broker = KafkaBroker(settings)
    try:
        sources = [
            (out.topic, part)
            for job in jobs
            for out in job.outputs
            for part in range(job.partitions)
        ]
        found = {
            source: await read_range(broker, source, Offset(starts.get(source, 0)))
            for source in sources
        }
        return {
            source: [(r.offset, r.value) for r in records if r.control is None]
            for source, records in found.items()
        }
    finally:
        await broker.close()


def kill_engine(settings: Settings) -> int:
    """Kill the engine (driver, JVM, daemon, slots) with -9; return the number of processes."""
    record = processes.read_record(settings.data_dir / "pids" / "engine")
    assert record is not None
    pids = processes.session_members(record)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def restored(settings: Settings, from_byte: int) -> set[str]:
    """Return the snapshots that slots logged as restored after byte `from_byte`."""
    with (settings.logs_dir / "engine.log").open("rb") as log:
        log.seek(from_byte)
        return {
            json.loads(line)["snapshot"]
            for line in log
            if b"state restored from snapshot" in line and line.startswith(b"{")
        }


@pytest.fixture
async def unwatched(settings: Settings) -> AsyncIterator[None]:
    """Stop the watchdog, so that only this test starts the engine."""
    await asyncio.to_thread(cli, "down", "--only", "watchdog")
    yield
    await asyncio.to_thread(cli, "up")


async def test_an_engine_killed_as_a_whole_comes_back_from_snapshots_alone(
    make: Any, settings: Settings, unwatched: None
) -> None:
    api = await make()
    await api.commit(KEPT, **INLINE)
    shop = Shop(api)
    await shop.people()
    await shop.buy(BEFORE)
    await shop.settled()
    for address in snapshot_pass.owning_slots(settings):
        await asyncio.to_thread(snapshot_pass.snapshot_slot, settings, address)
    jobs = jobs_of(settings, api.workspace)
    snapshots, keys = snapshots_of(settings, jobs)
    await shop.buy(AFTER)
    await shop.settled()
    features = await shop.features()
    shop.check(features)
    assert forget_before(settings, jobs, snapshots) > 0, (
        "no record was deleted, so the test shows nothing"
    )
    starts = {
        (topic, p): m.position.offsets.get(topic, 0)
        for (_, p), m in snapshots.items()
        for topic in m.position.offsets
    }
    before = await emitted(settings, jobs, starts)
    assert sum(map(len, before.values())) > 0, "there are records that could be emitted twice"

    log_end = (settings.logs_dir / "engine.log").stat().st_size
    assert kill_engine(settings) >= 4, "driver, JVM, Spark's daemon and slots"
    shutil.rmtree(settings.state_dir)
    await asyncio.to_thread(cli, "up", "--only", "engine")
    await shop.settled()

    assert await shop.features() == features
    assert keys <= restored(settings, log_end), "the log names the snapshots that were used"
    assert await emitted(settings, jobs, starts) == before
    await shop.buy(AT_ONCE)
    await shop.settled()
    shop.check(await shop.features())
