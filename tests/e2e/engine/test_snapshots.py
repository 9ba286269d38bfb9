"""A slot that lost its machine: state is restored from S3, later records are replayed, and no
record is emitted twice.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from fennel_core.connections import s3
from fennel_core.connections.installation import installation_objects
from fennel_core.connections.kafka import client_config
from fennel_core.connections.object_store import ObjectStore
from fennel_core.snapshots.manifest import SnapshotManifest, decode_manifest
from fennel_core.snapshots.transfer import PREFIX
from fennel_core.vocab.ids import Offset, TopicName
from tests.e2e.engine.slot_bench import (
    USERS,
    Bench,
    read_everywhere,
    slot,
    snapshots,
    written,
)
from tests.support.log_ranges import read_range

pytestmark = pytest.mark.platform
MOVED, STAYED = USERS[::2], USERS[1::2]
Emitted = list[tuple[Offset, bytes]]


@dataclass
class Bucket:
    objects: ObjectStore

    async def manifest(self, key: str) -> SnapshotManifest:
        body = await self.objects.get(key)
        assert body is not None
        return decode_manifest(body)

    async def damage(self, key: str) -> None:
        """Delete the objects that this snapshot was the first to reference."""
        own = key.rpartition("/")[0]
        lost = [
            file.object for file in (await self.manifest(key)).files if file.object.startswith(own)
        ]
        assert lost
        await self.objects.delete(lost)


def forget_before(bench: Bench, manifests: list[SnapshotManifest]) -> None:
    """Delete every input record that the snapshots cover."""
    ends = [
        TopicPartition(topic, m.part, offset)
        for m in manifests
        for topic, offset in m.position.offsets.items()
    ]
    assert sum(end.offset for end in ends) > 0, "there are records to delete"
    admin = AdminClient(
        client_config(bench.settings)
    )  # kept: futures of a collected client never end
    for deleted in admin.delete_records(ends).values():
        deleted.result(30)


async def emitted(bench: Bench, manifests: list[SnapshotManifest]) -> dict[int, Emitted]:
    """Return the output topic's data records from the positions of the table's snapshots on."""
    output = bench.jobs[0].outputs[0].topic
    starts = {
        m.part: m.position.offsets.get(TopicName(output), Offset(0))
        for m in manifests
        if m.job == bench.jobs[1].id
    }
    found = {
        part: await read_range(bench.broker, (output, part), start)
        for part, start in starts.items()
    }
    return {
        part: [(r.offset, r.value) for r in records if r.control is None]
        for part, records in found.items()
    }


@pytest.mark.parametrize("damaged", [False, True], ids=["newest", "damaged newest"])
async def test_a_slot_that_lost_its_disk_restores_from_the_snapshot_and_emits_nothing_twice(
    bench: Bench, capsys: pytest.CaptureFixture[str], damaged: bool
) -> None:
    # A lease that expires on a busy machine starts a new epoch, whose marker moves the position.
    bench.settings = bench.settings.model_copy(update={"lease_ms": 30_000})
    client = s3.client(bench.settings)
    s3.ensure_bucket(client, bench.settings.s3_bucket)
    bucket = Bucket(installation_objects(bench.settings, bench.pool))
    try:
        async with slot(bench, 0):
            await written(bench, USERS, "Rome")
            first = await snapshots(bench, "taken")
            assert await snapshots(bench, "unchanged") == first
            await written(bench, MOVED, "Oslo")
            used = first
            if damaged:
                await written(bench, USERS, "Bern")
                await written(bench, MOVED, "Oslo")
                for key in (await snapshots(bench, "taken")).values():
                    await bucket.damage(key)
            manifests = [await bucket.manifest(key) for key in used.values()]
            before = await emitted(bench, manifests)
            assert any(before.values()), "there are records that could be emitted twice"
        forget_before(bench, manifests)
        shutil.rmtree(bench.settings.state_dir)
        capsys.readouterr()

        async with slot(bench, 0):
            owners = await bench.owned(bench.jobs[1], slots=1)
            await bench.owned(bench.jobs[0], slots=1)
            await read_everywhere(bench, MOVED, owners, "Oslo")
            await read_everywhere(bench, STAYED, owners, "Bern" if damaged else "Rome")
            told = [
                json.loads(line)
                for line in capsys.readouterr().err.splitlines()
                if "restored from snapshot" in line
            ]
            restored = {line["snapshot"] for line in told}
            assert restored == set(used.values())
            assert await emitted(bench, manifests) == before
            await written(bench, USERS, "Lima")
    finally:
        for job in bench.jobs:
            await bucket.objects.delete(
                [each.key for each in await bucket.objects.list_objects(f"{PREFIX}/{job.id}/")]
            )
