"""Topics of Avro and of Debezium's change data, from a user's own Kafka to rows of keyed datasets.

The schema registry is a process of the user's own, too: it wants a password, and it is away once.
"""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from fennel_core.connections.kafka import client_config
from fennel_core.settings.model import Settings
from tests.support.executors import commit_of
from tests.support.external_topics import created
from tests.support.polling import eventually
from tests.support.schema_registry import (
    UNAVAILABLE,
    HttpRegistry,
    basic,
    framed,
    http_registry,
)
from tests.support.table_changes import SECOND_US, START_US, event
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(300)]
USER, PASSWORD = "reader", "not-a-secret"
DEFINITIONS = """
from datetime import datetime
from typing import Optional

from fennel.connectors import Avro, Kafka, source
from fennel.datasets import dataset, field
from fennel.lib import meta

kafka = Kafka(
    name="shop",
    bootstrap_servers="{bootstrap}",
    security_protocol="PLAINTEXT",
    sasl_mechanism="PLAIN",
    sasl_plain_username=None,
    sasl_plain_password=None,
)
avro = Avro(
    registry="confluent", url="{registry}", username="{user}", password="{password}", token=None
)


@source(kafka.topic("{orders}", format=avro), disorder="14d", cdc="upsert")
@meta(owner="tests@example.com")
@dataset(index=True)
class Order:
    number: int = field(key=True)
    city: str
    note: Optional[str]
    at: datetime = field(timestamp=True)


@source(kafka.topic("{people}"), disorder="14d", cdc="debezium")
@meta(owner="tests@example.com")
@dataset(index=True)
class Person:
    user: str = field(key=True)
    age: int
    at: datetime = field(timestamp=True)
"""
AT = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}
FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "number", "type": "long"}, {"name": "city", "type": "string"}, AT],
}
SECOND = FIRST | {"fields": [*FIRST["fields"], {"name": "note", "type": ["null", "string"]}]}


@pytest.fixture
def topics(settings: Settings) -> Iterator[tuple[str, str]]:
    """The topics of orders and of people."""
    orders, people = created(settings), created(settings)
    yield orders, people
    AdminClient(client_config(settings)).delete_topics([orders, people])


@pytest.fixture
def registry() -> Iterator[HttpRegistry]:
    with http_registry() as served:
        served.auth = basic(USER, PASSWORD)
        yield served


def order(number: int, schema: dict[str, Any], schema_id: int, **more: str) -> bytes:
    stream = io.BytesIO()
    row = {"number": number, "city": "Paris", "at": START_US + number, **more}
    fastavro.schemaless_writer(stream, schema, row)
    return framed(schema_id, stream.getvalue())


def people() -> list[tuple[str, bytes | None]]:
    """Return the messages, by key: Ada is updated, Bob is deleted."""

    def row(user: str, age: int, second: int) -> dict[str, Any]:
        return {"user": user, "age": age, "at": START_US + second * SECOND_US}

    def made(second: int) -> int:
        return START_US + second * SECOND_US

    ada, older, bob = row("ada", 35, 0), row("ada", 36, 2), row("bob", 20, 1)
    return [
        ("ada", event("c", None, ada, made(0), wrapped=True)),
        ("bob", event("c", None, bob, made(1))),
        ("ada", event("u", ada, older, made(2))),
        ("bob", event("d", bob, None, made(3), wrapped=True)),
        ("bob", None),
    ]


class Cluster:
    """What the user's own programs write."""

    def __init__(self, settings: Settings) -> None:
        self._producer = Producer(client_config(settings))

    def send(self, topic: str, *messages: tuple[str, bytes | None]) -> None:
        for key, value in messages:
            self._producer.produce(topic, value, key=key)
        assert self._producer.flush(30) == 0


async def looked_up(api: Api, dataset: str, key: str, *values: object) -> dict[str, list[Any]]:
    """Return the columns of these keys; none of them while a slot is late."""
    body = {"keys": [{key: value} for value in values], "fields": []}
    status, text = await api.call("POST", f"/dataset/{dataset}/lookup", body)
    assert status in (200, 503), f"{status} {text}"
    return json.loads(text)["data"] if status == 200 else {}


async def becomes(api: Api, dataset: str, key: str, values: list[Any], **columns: Any) -> None:
    """Wait until the rows of these keys have these columns."""
    found: dict[str, list[Any]] = {}

    async def there() -> bool:
        found.update(await looked_up(api, dataset, key, *values))
        return {name: found.get(name) for name in columns} == columns

    await eventually(there, within_s=60, interval_s=0.2, what=lambda: (found, columns))


async def source_of(api: Api, topic: str) -> dict[str, Any]:
    listed = (await api.good("GET", "/sources"))["sources"]
    (found,) = (each for each in listed if each["source"] == f"shop/{topic}")
    return dict(found)


async def dead_letters(api: Api) -> list[dict[str, Any]]:
    return list((await api.good("GET", "/dead_letters/rows"))["rows"])


@pytest.mark.long
async def test_avro_and_change_data_of_topics_become_rows(
    make: Callable[[], Awaitable[Api]],
    settings: Settings,
    topics: tuple[str, str],
    registry: HttpRegistry,
    tmp_path: Path,
) -> None:
    api, cluster, (orders, persons) = await make(), Cluster(settings), topics
    first = registry.memory.add(FIRST)
    cluster.send(orders, ("1", order(1, FIRST, first)), ("x", framed(99, b"no such schema")))
    cluster.send(persons, *people())
    file = tmp_path / "formats.py"
    file.write_text(
        DEFINITIONS.format(
            bootstrap=settings.kafka_bootstrap,
            registry=registry.url,
            user=USER,
            password=PASSWORD,
            orders=orders,
            people=persons,
        )
    )
    await api.good("POST", "/commit", await commit_of(str(file), folder=tmp_path), **INLINE)
    await becomes(api, "Order", "number", [1, 2], city=["Paris", None])
    await becomes(api, "Person", "user", ["ada", "bob"], age=[36, None])
    # Partitions are written one by one, so its dead letter may come after the row.
    (dead,) = await eventually(partial(dead_letters, api), within_s=60, interval_s=0.2)
    assert (dead["subject"], dead["kind"]) == ("Order", "unreadable")
    assert "schema 99" in dead["reason"]

    # The registry is away when a second version of the schema comes: nothing is lost.
    registry.statuses += [UNAVAILABLE] * 1000
    second = registry.memory.add(SECOND)
    cluster.send(orders, ("2", order(2, SECOND, second, note="late")))

    async def parked() -> str | None:
        source = await source_of(api, orders)
        return source["error"] if source["state"] == "parked" else None

    assert registry.url in await eventually(parked, within_s=60, interval_s=0.2)
    registry.statuses.clear()
    cluster.send(orders, ("3", order(3, FIRST, first)))
    await becomes(api, "Order", "number", [1, 2, 3], city=["Paris"] * 3, note=[None, "late", None])

    tried = await api.good(
        "POST", "/sources/test", json.dumps({"source": f"shop/{orders}"}).encode()
    )
    shown = tried["datasets"][0]["messages"]
    assert sorted(each["row"]["number"] for each in shown if "row" in each) == [1, 2, 3]
    assert await dead_letters(api) == [dead]
