"""A Kinesis stream as the source of a dataset, on a platform of its own: once, across a kill.

`make connectors` runs it, in about two minutes; CI does not. Kinesis and STS are moto over
HTTP, with the corrections that `tests/support/kinesis_server.py` names; AWS itself was not tried.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fennel_core.apps.local import processes, status_requests
from fennel_core.connections.external_kinesis import shard_id
from fennel_core.settings.model import Settings
from tests.support.executors import commit_of
from tests.support.kinesis_server import KEY, ROLE, KinesisServer, kinesis_server
from tests.support.kinesis_streams import aggregated
from tests.support.orders import orders
from tests.support.own_platform import OwnPlatform
from tests.support.polling import eventually
from tests.support.workspaces import INLINE, Api, make

__all__ = ["kinesis_server", "make"]
pytestmark = pytest.mark.timeout(900)
NOW = "2026-01-01T00:00:00Z"
DEFINITIONS = orders(
    "Kinesis, source",
    'kinesis = Kinesis(name="shop", role_arn="{role}")\n'
    'stream = kinesis.stream("{arn}", init_position="trim_horizon", format="json")',
    '@source(stream, disorder="14d", cdc="append")',
)


@pytest.fixture(scope="module")
def platform(
    kinesis_server: KinesisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OwnPlatform]:
    platform = OwnPlatform(
        tmp_path_factory.mktemp("kinesis") / "data",
        FENNEL_KINESIS_ENDPOINT=kinesis_server.url,
        FENNEL_STS_ENDPOINT=kinesis_server.url,
        FENNEL_AWS_ACCESS_KEY=KEY,
        FENNEL_AWS_SECRET_KEY=KEY,
        FENNEL_SOURCE_ROLES=json.dumps([ROLE]),
    )
    try:
        platform.run("up")
        yield platform
    finally:
        platform.run("down")


@pytest.fixture
def settings(platform: OwnPlatform, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for line in (platform.data / "env").read_text().splitlines():
        name, _, value = line.partition("=")
        monkeypatch.setenv(name, value)
    for name, value in platform.settings.items():
        monkeypatch.setenv(name, value)
    return Settings()


class Shop:
    """Puts orders into a stream, and knows what their sums must be."""

    def __init__(self, server: KinesisServer) -> None:
        self.client, self.name = server.client(), f"orders-{uuid.uuid4().hex[:8]}"
        self.arn = server.create(self.name, shards=2)
        self.orders = self.amount = 0

    def row(self) -> bytes:
        self.orders += 1
        self.amount += self.orders
        return json.dumps({"city": "Paris", "amount": self.orders, "at": NOW}).encode()

    def sell(self, rows: int) -> None:
        for first in range(0, rows, 500):
            records = [
                {"Data": self.row(), "PartitionKey": str(self.orders)}
                for _ in range(min(500, rows - first))
            ]
            done = self.client.put_records(StreamName=self.name, Records=records)
            assert done["FailedRecordCount"] == 0

    def put(self, data: bytes) -> dict[str, Any]:
        return dict(self.client.put_record(StreamName=self.name, Data=data, PartitionKey="1"))

    def split(self, number: int) -> None:
        shards = self.client.list_shards(StreamName=self.name)["Shards"]
        hashes = shards[number]["HashKeyRange"]
        middle = (int(hashes["StartingHashKey"]) + int(hashes["EndingHashKey"])) // 2
        self.client.split_shard(
            StreamName=self.name,
            ShardToSplit=shard_id(number),
            NewStartingHashKey=str(middle),
        )

    def merge(self, one: int, other: int) -> None:
        self.client.merge_shards(
            StreamName=self.name,
            ShardToMerge=shard_id(one),
            AdjacentShardToMerge=shard_id(other),
        )


@pytest.fixture
def shop(kinesis_server: KinesisServer) -> Shop:
    return Shop(kinesis_server)


def written(tmp_path: Path, arn: str, role: str = ROLE) -> str:
    file = tmp_path / "orders.py"
    file.write_text(DEFINITIONS.format(arn=arn, role=role))
    return str(file)


async def sales(api: Api) -> tuple[int, int] | None:
    """Return the number of orders and their sum; None if a slot is late, as on a busy machine."""
    body = {"keys": [{"city": "Paris"}], "fields": []}
    status, text = await api.call("POST", "/dataset/Sales/lookup", body)
    assert status in (200, 503), f"{status} {text}"
    data = json.loads(text)["data"] if status == 200 else None
    return None if data is None else (data["orders"][0] or 0, data["amount"][0] or 0)


async def sold(api: Api, shop: Shop, settings: Settings) -> None:
    """Wait until every order is counted, and check that none is counted twice."""
    seen: list[object] = []

    async def all_there() -> bool:
        found = await sales(api)
        seen[:] = [found, list(status_requests.read(settings).sources or ())]
        return found is not None and found[0] >= shop.orders

    await eventually(
        all_there, within_s=150, interval_s=0.3, what=lambda: f"{shop.orders} orders: {seen}"
    )
    await api.settled(within_s=60)
    counted = await eventually(partial(sales, api), within_s=60, interval_s=0.3)
    assert counted == (shop.orders, shop.amount)


def kill_sources(settings: Settings) -> None:
    """Kill the sources (driver, JVM, workers) with -9."""
    record = processes.read_record(settings.data_dir / "pids" / "sources")
    assert record is not None
    for pid in processes.session_members(record):
        os.kill(pid, signal.SIGKILL)


async def test_records_are_counted_once_across_resharding_and_a_kill(
    make: Callable[[], Awaitable[Api]], settings: Settings, shop: Shop, tmp_path: Path
) -> None:
    api = await make()
    shop.sell(2_000)
    definitions = await commit_of(written(tmp_path, shop.arn), folder=tmp_path)
    await api.good("POST", "/commit", definitions, **INLINE)
    await sold(api, shop, settings)
    shop.split(0)
    shop.sell(3_000)
    kill_sources(settings)
    shop.split(1)
    shop.sell(1_000)
    shop.merge(3, 4)
    shop.put(aggregated([(str(n), shop.row()) for n in range(1)]))
    shop.sell(500)
    broken = shop.put(b"no json")
    await sold(api, shop, settings)
    (listed,) = (await api.good("GET", "/sources"))["sources"]
    (dataset,) = listed["datasets"]
    assert (listed["kind"], listed["state"]) == ("kinesis", "running")
    assert (dataset["accepted"], dataset["late"], dataset["dead"]) == (shop.orders, 0, 1)
    letters = json.dumps(await api.good("GET", "/dead_letters/rows"))
    assert f"Kinesis stream `{shop.name}`, {broken['ShardId']}" in letters
    assert broken["SequenceNumber"] in letters


@pytest.mark.parametrize(
    ("arn", "role", "expected"),
    [
        ("{arn}-none", ROLE, "does not exist"),
        ("{arn}", ROLE + "-other", "FENNEL_SOURCE_ROLES"),
        ("arn:aws:s3:::orders", ROLE, "not the ARN of a stream"),
    ],
)
async def test_a_stream_that_cannot_be_read_is_refused_at_commit(
    make: Callable[[], Awaitable[Api]],
    settings: Settings,
    shop: Shop,
    tmp_path: Path,
    arn: str,
    role: str,
    expected: str,
) -> None:
    api = await make()
    text = written(tmp_path, arn.format(arn=shop.arn), role)
    definitions = await commit_of(text, folder=tmp_path)
    for path in ("/commit?preview=true", "/commit"):
        status, answer = await api.call("POST", path, definitions, **INLINE)
        assert status in (400, 500), answer
        assert expected in answer
