"""Kafka retention: unneeded records are deleted, and a job never skips lost ones."""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from fennel_core.connections import offsets, s3
from fennel_core.connections.installation import installation_objects
from fennel_core.connections.kafka import client_config
from fennel_core.definition.kafka_retention import KafkaRetention, NeededRecordsCheck
from fennel_core.engine.errors import OffsetTruncated
from fennel_core.snapshots.transfer import PREFIX
from fennel_core.vocab.ids import Offset
from tests.e2e.engine.slot_bench import (
    PARTITIONS,
    USERS,
    Bench,
    read_everywhere,
    slot,
    snapshots,
    written,
)
from tests.support.log_ranges import read_range
from tests.support.polling import eventually

pytestmark = pytest.mark.platform
ASSET = """
    INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title, blueprint)
    VALUES (%s, 'w', %s, %s, 1, 'live', '', '')
"""


@pytest.fixture
async def kept(bench: Bench) -> AsyncIterator[Bench]:
    """A bench whose topics are in the bank and whose records expire at once, without history."""
    bench.settings = bench.settings.model_copy(
        update={"lease_ms": 30_000, "kafka_retention_ms": 1, "history_before_deletion": False}
    )
    client = s3.client(bench.settings)
    s3.ensure_bucket(client, bench.settings.s3_bucket)
    first, second = bench.jobs
    names = {
        first.inputs[0]: "topic",
        first.outputs[0].topic: "topic",
        first.replaylog: "replaylog",
        second.replaylog: "replaylog",
    }
    async with bench.pool.connection() as connection:
        await connection.execute("INSERT INTO workspace (name, partitions) VALUES ('w', 2)")
        for name, kind in names.items():
            await connection.execute(ASSET, (name, kind, name))
    yield bench
    bucket = installation_objects(bench.settings, bench.pool)
    for job in bench.jobs:
        await bucket.delete([each.key for each in await bucket.list_objects(f"{PREFIX}/{job.id}/")])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def shortened(bench: Bench) -> set[str]:
    """Delete expired records; return the topics from which some were deleted."""
    retention = KafkaRetention(bench.settings, bench.pool)
    return {topic for topic, _ in await retention.delete(await retention.survey(now_ms()))}


async def test_records_below_every_snapshot_are_deleted_and_state_is_restored(
    kept: Bench,
) -> None:
    first, _ = kept.jobs
    async with slot(kept, 0):
        await written(kept, USERS, "Rome")
        assert await shortened(kept) == set(), "without a snapshot everything is needed"
        await snapshots(kept, "taken")
        await written(kept, USERS[::2], "Oslo")
        assert await shortened(kept) == {first.inputs[0], first.outputs[0].topic, first.replaylog}
        assert await shortened(kept) == set(), "the snapshots have not moved"
        with pytest.raises(OffsetTruncated):
            await read_range(kept.broker, (first.inputs[0], 0), Offset(0))
        await snapshots(kept, "taken")
        assert await shortened(kept) == set(), (
            "older snapshots still need the records: the newest may be damaged"
        )
    shutil.rmtree(kept.settings.state_dir)
    async with slot(kept, 0):
        owners = await kept.owned(kept.jobs[1], slots=1)
        await read_everywhere(kept, USERS[::2], owners, "Oslo")
        await read_everywhere(kept, USERS[1::2], owners, "Rome")


async def test_an_expiring_record_is_reported_and_a_lost_one_parks_the_job_with_the_remedy(
    kept: Bench,
) -> None:
    first, second = kept.jobs
    watch = NeededRecordsCheck(KafkaRetention(kept.settings, kept.pool), 60)
    async with slot(kept, 0):
        await written(kept, USERS, "Rome")
        await watch.check_once()
        assert {(each.job, each.problem) for each in watch.alarms} == {
            (first.id, "old"),
            (second.id, "old"),
        }
        assert all("it has no snapshot" in each.message for each in watch.alarms)
        await snapshots(kept, "taken")
        await watch.check_once()
        assert watch.alarms == []
    admin = AdminClient(client_config(kept.settings))
    sources = [(first.inputs[0], part) for part in range(PARTITIONS)]
    ends = {source: end for source, (_, end) in offsets.bounds(admin, sources, 10).items()}
    async with slot(kept, 0):
        await written(kept, USERS, "Oslo")
        more = {source: end for source, (_, end) in offsets.bounds(admin, sources, 10).items()}
        for deleted in admin.delete_records(
            [TopicPartition(*source, end) for source, end in more.items()]
        ).values():
            deleted.result(30)
        assert all(more[source] > ends[source] for source in sources)
        await watch.check_once()
        assert {(each.job, each.topic) for each in watch.alarms if each.problem == "lost"} == {
            (first.id, first.inputs[0])
        }
    shutil.rmtree(kept.settings.state_dir)

    async def all_parked() -> bool:
        return {status for _, status in (await kept.owners(first)).values()} == {"parked"}

    async with slot(kept, 0):
        await eventually(all_parked, within_s=60)
        async with kept.pool.connection() as connection:
            rows = await (
                await connection.execute(
                    "SELECT part, error FROM job_partition WHERE job_id = %s", (first.id,)
                )
            ).fetchall()
        for part, error in rows:
            assert f"copy ({first.id}[{part}])" in error
            source = (first.inputs[0], part)
            assert f"{source[0]}[{part}] begins at {more[source]}: its records from" in error
            assert f"to {more[source] - 1} are deleted. Nothing is skipped" in error
            assert "commit its dataset under a new version" in error
        await read_everywhere(kept, USERS, await kept.owned(second, slots=1), "Oslo")
