"""The whole engine killed and its disk gone, after the log before its snapshots was deleted: every
feature is as it was, nothing twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
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
from fennel_core.engine.kafka import KafkaBroker
from fennel_core.settings.model import Settings
from fennel_core.snapshots import snapshot_pass
from fennel_core.snapshots.manifest import SnapshotManifest, decode_manifest
from fennel_core.vocab.ids import Offset
from tests.conftest import cli
from tests.e2e.platform import test_promises
from tests.e2e.platform.test_promises import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(600)]
settings, make = test_promises.settings, test_promises.make
KEPT = "tests.e2e.platform.kept"
START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = [f"person {n}" for n in range(500)]
CITIES = [f"city {n}" for n in range(20)]
BEFORE, AFTER, AT_ONCE = 160_000, 60_000, 40_000
Places = Mapping[tuple[str, int], SnapshotManifest]


class Shop:
    """Rows as they were logged, and what must come of them."""

    def __init__(self, api: Api) -> None:
        self._api, self._random = api, random.Random(7)
        self.logged = 0
        self.purchases: Counter[str] = Counter()
        self.spent: Counter[str] = Counter()

    async def _log(self, endpoint: str, data: dict[str, list[Any]]) -> None:
        status, response = await self._api.call(
            "POST", "/log", {"webhook": "kept", "endpoint": endpoint, "data": data}
        )
        assert status == 200, response

    async def people(self) -> None:
        cities = [CITIES[n % len(CITIES)] for n in range(len(NAMES))]
        await self._log(
            "people", {"name": NAMES, "city": cities, "at": [START.isoformat()] * len(NAMES)}
        )

    async def buy(self, rows: int) -> None:
        for _ in range(rows // AT_ONCE):
            names = self._random.choices(NAMES, k=AT_ONCE)
            amounts = [self._random.randrange(1, 100) for _ in names]
            seconds = [(self.logged + n) // 10 for n in range(AT_ONCE)]
            await self._log(
                "purchases",
                {
                    "name": names,
                    "amount": amounts,
                    "at": [(START + timedelta(seconds=s)).isoformat() for s in seconds],
                },
            )
            self.logged += AT_ONCE
            for name, amount in zip(names, amounts, strict=True):
                self.purchases[name] += 1
                self.spent[name] += amount

    async def settled(self) -> None:
        """Everything logged is visible; while an engine comes up the answer is that it cannot be
        said yet.
        """
        async with asyncio.timeout(300):
            while (answer := await self._api.call("POST", "/barrier", {"timeout_s": 30}))[0] != 200:
                assert answer[0] in (503, 504), answer
                await asyncio.sleep(0.2)

    async def features(self) -> dict[str, Any]:
        """Every key of every dataset, as of now and as of earlier moments."""
        hours = [START + timedelta(hours=h) for h in (0, 1.5, 4)]
        found: dict[str, Any] = {}
        for dataset, column, keys in (
            ("Person", "name", NAMES),
            ("Spending", "name", NAMES),
            ("Hourly", "city", CITIES),
        ):
            for at in hours:
                found[f"{dataset} as of {at}"] = await self._looked_up(dataset, column, keys, at)
            found[dataset] = await self._looked_up(dataset, column, keys, None)
            found[dataset].pop("lately", None)  # of the last two hours before the query
        return found

    async def _looked_up(
        self, dataset: str, column: str, keys: list[str], at: datetime | None
    ) -> dict[str, list[Any]]:
        answer: dict[str, list[Any]] = defaultdict(list)
        for start in range(0, len(keys), 50):
            asked = keys[start : start + 50]
            body: dict[str, Any] = {"keys": [{column: key} for key in asked], "fields": []}
            if at is not None:
                body["timestamps"] = [at.isoformat()] * len(asked)
            async with asyncio.timeout(60):
                while (
                    response := await self._api.call("POST", f"/dataset/{dataset}/lookup", body)
                )[0] == 503:
                    await asyncio.sleep(0.2)  # a busy machine
            assert response[0] == 200, response
            part = json.loads(response[1])
            for name, values in {**part["data"], "found": part["found"]}.items():
                answer[name] += values
        return answer

    def check(self, features: dict[str, Any]) -> None:
        """The sums are those of the rows."""
        now = features["Spending"]
        assert dict(zip(now["name"], now["spent"], strict=True)) == self.spent
        assert dict(zip(now["name"], now["purchases"], strict=True)) == self.purchases
        assert all(features["Hourly"]["found"])


def jobs_of(settings: Settings, workspace: str) -> list[Job]:
    with psycopg.connect(settings.postgres_dsn.get_secret_value()) as connection:
        rows = connection.execute(
            "SELECT spec FROM job WHERE workspace = %s", (workspace,)
        ).fetchall()
    return [stored_names.loads(row[0], Job) for row in rows]


def snapshots_of(settings: Settings, jobs: list[Job]) -> tuple[Places, set[str]]:
    """The newest manifest of every job partition, and their keys."""
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
                s3.get(client, settings.s3_bucket, row[0]) or b""
            )
            keys.add(row[0])
    return found, keys


def forget_before(settings: Settings, jobs: list[Job], snapshots: Places) -> int:
    """Delete every input record that no snapshot needs; how many offsets that are."""
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
    """What is on every output topic but control records."""
    broker = KafkaBroker(settings)
    try:
        sources = [
            (out.topic, part)
            for job in jobs
            for out in job.outputs
            for part in range(job.partitions)
        ]
        found = {
            source: await broker.read(source, Offset(starts.get(source, 0))) for source in sources
        }
        return {
            source: [(r.offset, r.value) for r in records if r.control is None]
            for source, records in found.items()
        }
    finally:
        await broker.close()


def kill_engine(settings: Settings) -> int:
    """kill -9 everything that the engine consists of: driver, JVM, daemon and slots; how many
    processes that were.
    """
    record = processes.read_record(settings.data_dir / "pids" / "engine")
    assert record is not None
    pids = processes.session_members(record)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def restored(settings: Settings, from_byte: int) -> set[str]:
    """The snapshots that slots say they restored, since the log file was so long."""
    with (settings.logs_dir / "engine.log").open("rb") as log:
        log.seek(from_byte)
        return {
            json.loads(line)["snapshot"]
            for line in log
            if b"state restored from snapshot" in line and line.startswith(b"{")
        }


@pytest.fixture
async def unwatched(settings: Settings) -> AsyncIterator[None]:
    """Nobody starts the engine but this test."""
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
    assert shop.logged >= 200_000
    features = await shop.features()
    shop.check(features)
    assert forget_before(settings, jobs, snapshots) > 0, (
        "nothing was deleted: the test would show nothing"
    )
    starts = {
        (topic, p): m.position.offsets.get(topic, 0)
        for (_, p), m in snapshots.items()
        for topic in m.position.offsets
    }
    before = await emitted(settings, jobs, starts)
    assert sum(map(len, before.values())) > 0, "there is something that could be emitted twice"

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
