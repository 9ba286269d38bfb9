"""A topic of a user's own Kafka as the source of a dataset, through a pipeline, exactly once."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterator
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fennel_core.apps.local import processes, status_requests
from fennel_core.settings.model import Settings
from tests.support.executors import commit_of
from tests.support.orders import orders
from tests.support.polling import eventually
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(600)]
NOW = "2026-01-01T00:00:00Z"
PARTITIONS = 3
DEFINITIONS = orders(
    "Kafka, source",
    """\
kafka = Kafka(
    name="shop",
    bootstrap_servers="{bootstrap}",
    security_protocol="PLAINTEXT",
    sasl_mechanism="PLAIN",
    sasl_plain_username=None,
    sasl_plain_password=None,
)""",
    """\
@source(kafka.topic("{topic}"), disorder="14d", cdc="append")""",
)


@pytest.fixture
def topic(settings: Settings) -> Iterator[str]:
    """A topic that no part of the platform made."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result()
    yield name
    admin.delete_topics([name])


class Shop:
    """Writes orders to the topic, and knows what their sums must be."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._topic, self.orders, self.amount = topic, 0, 0
        self._producer = Producer({"bootstrap.servers": settings.kafka_bootstrap})

    def sell(self, rows: int) -> None:
        for _ in range(rows):
            self.orders += 1
            self.amount += self.orders
            row = {"city": "Paris", "amount": self.orders, "at": NOW}
            self.send(json.dumps(row).encode())
        assert self._producer.flush(30) == 0

    def send(self, value: bytes) -> None:
        self._producer.produce(self._topic, value, partition=self.orders % PARTITIONS)


async def sales(api: Api) -> tuple[int, int] | None:
    """Return the number of orders and their sum; None if a slot is late, as on a busy machine."""
    body = {"keys": [{"city": "Paris"}], "fields": []}
    status, text = await api.call("POST", "/dataset/Sales/lookup", body)
    assert status in (200, 503), f"{status} {text}"
    data = json.loads(text)["data"] if status == 200 else None
    return None if data is None else (data["orders"][0] or 0, data["amount"][0] or 0)


async def sold(api: Api, shop: Shop) -> None:
    """Wait until every order is counted, and check that none is counted twice."""

    async def all_there() -> bool:
        found = await sales(api)
        return found is not None and found[0] >= shop.orders

    await eventually(all_there, within_s=150, interval_s=0.3, what=lambda: f"{shop.orders} orders")
    await api.settled(within_s=60)
    counted = await eventually(partial(sales, api), within_s=60, interval_s=0.3)
    assert counted == (shop.orders, shop.amount)


async def dead_rows(settings: Settings, api: Api) -> int:
    """Return how many rows of the workspace became dead letters, once they are counted."""
    admin = copy(api)
    admin.token = settings.admin_token.get_secret_value()

    async def counted() -> int:
        found = await admin.good("GET", "/operations/dead_letters")
        rows = [e for e in found["dead_letters"] if e["workspace"] == api.workspace]
        assert {e["subject"] for e in rows} <= {"Order"}
        return sum(int(e["rows"]) for e in rows)

    rows: int = await eventually(counted, within_s=60, interval_s=0.5)
    return rows


def written(tmp_path: Path, settings: Settings, topic: str) -> Path:
    file = tmp_path / "orders.py"
    file.write_text(DEFINITIONS.format(bootstrap=settings.kafka_bootstrap, topic=topic))
    return file


def kill_sources(settings: Settings) -> None:
    """Kill the sources (driver, JVM, workers) with -9."""
    record = processes.read_record(settings.data_dir / "pids" / "sources")
    assert record is not None
    for pid in processes.session_members(record):
        os.kill(pid, signal.SIGKILL)


async def test_orders_of_a_topic_are_counted_once_across_a_kill(
    make: Callable[[], Awaitable[Api]], settings: Settings, topic: str, tmp_path: Path
) -> None:
    api, shop = await make(), Shop(settings, topic)
    shop.sell(100)
    definitions = await commit_of(str(written(tmp_path, settings, topic)), folder=tmp_path)
    await api.good("POST", "/commit", definitions, **INLINE)
    await sold(api, shop)
    read = (api.workspace, f"shop/{topic}", None)
    assert read in [
        (each["workspace"], each["source"], each["reason"])
        for each in status_requests.read(settings).sources or ()
    ]
    shop.send(b"no json")
    shop.sell(50)
    kill_sources(settings)
    shop.sell(50)
    await sold(api, shop)
    # The same definitions in another branch read nothing twice.
    await api.good("POST", "/init", {"clone_from": "main"}, **{"X-Fennel-Branch": "copy"})
    shop.sell(10)
    await sold(api, shop)
    assert await dead_rows(settings, api) == 1


async def state_of(api: Api) -> str:
    (listed,) = (await api.good("GET", "/sources"))["sources"]
    return str(listed["state"])


async def order(api: Api, path: str, **body: object) -> dict[str, Any]:
    found: dict[str, Any] = await api.good("POST", path, json.dumps(body).encode())
    return found


@pytest.mark.long
async def test_a_stream_is_paused_tested_and_rewound_and_its_dead_letters_are_replayed(
    make: Callable[[], Awaitable[Api]], settings: Settings, topic: str, tmp_path: Path
) -> None:
    api, shop = await make(), Shop(settings, topic)
    name = f"shop/{topic}"
    shop.sell(6)
    shop.send(b"no json")
    shop.send(json.dumps({"city": "Paris", "amount": "much", "at": NOW}).encode())
    file = written(tmp_path, settings, topic)
    await api.good("POST", "/commit", await commit_of(str(file), folder=tmp_path), **INLINE)
    await sold(api, shop)
    await eventually(lambda: state_of(api), within_s=60, interval_s=0.3)
    # A pause outlives the process that reads, and no order moves what is read.
    await order(api, "/sources/pause", source=name)
    kill_sources(settings)
    shop.sell(3)
    tried = await order(api, "/sources/test", source=name)
    messages = tried["datasets"][0]["messages"]
    assert {"row", "error"} & {key for message in messages for key in message}
    assert await state_of(api) == "paused"
    assert await sales(api) == (6, 21)
    await order(api, "/sources/resume", source=name)
    await sold(api, shop)
    # Nothing has changed since, so a replay lets no dead letter in.
    counted = (await api.good("GET", "/dead_letters"))["dead_letters"]
    assert {each["kind"]: each["rows"] for each in counted} == {"not-admitted": 1, "unreadable": 1}
    done = await order(api, "/dead_letters/replay")
    assert (done["accepted"], len(done["not_replayable"])) == (0, 1)
    await sold(api, shop)
    assert (await order(api, "/dead_letters/drop", all=True))["rows"] == 2
    assert (await api.good("GET", "/dead_letters/rows")) == {"rows": [], "next": None}
    # A rewind appends rows again, when that is accepted.
    await order(api, "/sources/pause", source=name)
    body = {"source": name, "to": "earliest"}
    status, text = await api.call("POST", "/sources/rewind", json.dumps(body).encode())
    assert status == 409, text
    assert "11 messages" in text
    moved = await order(api, "/sources/rewind", **body, duplicates_rows=True)
    assert moved["read_again"] == 11
    await order(api, "/sources/resume", source=name)
    shop.orders, shop.amount = 2 * shop.orders, 2 * shop.amount
    await sold(api, shop)


async def test_a_topic_that_cannot_be_read_is_refused_at_commit(
    make: Callable[[], Awaitable[Api]], settings: Settings, tmp_path: Path
) -> None:
    api = await make()
    for name, text in (("no-such-topic", "has no topic"), ("w.raw.ab12.1", "no source")):
        file = written(tmp_path, settings, name)
        definitions = await commit_of(str(file), folder=tmp_path)
        for path in ("/commit?preview=true", "/commit"):
            status, answer = await api.call("POST", path, definitions, **INLINE)
            assert status == 500, answer
            assert text in answer
