"""Bounded sources of each kind end when nothing comes any more, and are read on when resumed.

`make connectors` runs this.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fennel_core.apps.local import status_requests
from fennel_core.connections import s3
from fennel_core.settings.model import Settings
from tests.support.executors import commit_of
from tests.support.orders import orders
from tests.support.polling import eventually
from tests.support.workspaces import INLINE, Api

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("platform"), pytest.mark.timeout(1200)]
NOW = "2026-01-01T00:00:00Z"
DEFINITIONS = orders(
    "S3, Kafka, Postgres, Webhook, source",
    """\
kafka = Kafka(
    name="topics",
    bootstrap_servers="{bootstrap}",
    security_protocol="PLAINTEXT",
    sasl_mechanism="PLAIN",
    sasl_plain_username=None,
    sasl_plain_password=None,
)
postgres = Postgres(
    name="tables",
    host="{host}",
    port={port},
    db_name="{database}",
    username="{user}",
    password="{password}",
)
files = S3(name="files", aws_access_key_id="{key}", aws_secret_access_key="{secret}")
folder = files.bucket("test-lake", path="{name}/*.json", format="json")
ends = {{"disorder": "14d", "cdc": "append", "bounded": True, "idleness": "6s"}}""",
    """\
@source(Webhook(name="hook").endpoint("orders"), **ends)
@source(kafka.topic("{name}"), **ends)
@source(postgres.table("orders", cursor="id"), every="2s", **ends)
@source(folder, every="1s", **ends)""",
)
STREAMS = ("topics/", "tables/", "files/")


class Shop:
    """Sells one order in each place, and more when it is asked to."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.name, self.orders = settings, f"orders-{uuid.uuid4().hex[:8]}", 0
        dsn = settings.postgres_dsn.get_secret_value()
        with psycopg.connect(dsn, autocommit=True) as server:
            server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.name)))
        self.dsn = make_conninfo(dsn, dbname=self.name)
        self.s3 = s3.client(settings)
        s3.ensure_bucket(self.s3, "test-lake")
        admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap})
        admin.create_topics([NewTopic(self.name, 3, 1)])[self.name].result()
        with psycopg.connect(self.dsn) as own:
            own.execute("CREATE TABLE orders (id bigserial, city text, amount int, at timestamptz)")

    def row(self) -> dict[str, Any]:
        self.orders += 1
        return {"city": "Paris", "amount": 1, "at": NOW}

    def sell(self) -> None:
        producer = Producer({"bootstrap.servers": self.settings.kafka_bootstrap})
        producer.produce(self.name, json.dumps(self.row()).encode())
        assert producer.flush(30) == 0
        with psycopg.connect(self.dsn) as own:
            own.execute(
                "INSERT INTO orders (city, amount, at) VALUES (%(city)s, %(amount)s, %(at)s)",
                self.row(),
            )
        key = f"{self.name}/{self.orders}.json"
        self.s3.put_object(Bucket="test-lake", Key=key, Body=json.dumps(self.row()).encode())

    def definitions(self) -> str:
        at = conninfo_to_dict(self.dsn)
        return DEFINITIONS.format(
            bootstrap=self.settings.kafka_bootstrap,
            host=at["host"],
            port=at["port"],
            database=at["dbname"],
            user=at["user"],
            password=at.get("password", "none"),
            key=self.settings.s3_access_key,
            secret=self.settings.s3_secret_key.get_secret_value(),
            name=self.name,
        )


@pytest.fixture
def shop(settings: Settings) -> Iterator[Shop]:
    made = Shop(settings)
    yield made
    with psycopg.connect(settings.postgres_dsn.get_secret_value(), autocommit=True) as server:
        name = sql.Identifier(made.name)
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


async def listed(api: Api) -> dict[str, dict[str, Any]]:
    return {each["source"]: each for each in (await api.good("GET", "/sources"))["sources"]}


def log(api: Api, shop: Shop) -> Awaitable[Any]:
    rows = {"webhook": "hook", "endpoint": "orders", "data": [shop.row()]}
    return api.good("POST", "/log", rows)


async def test_sources_end_and_are_read_on(
    make: Callable[[], Awaitable[Api]], settings: Settings, shop: Shop, tmp_path: Path
) -> None:
    api = await make()
    shop.sell()
    (tmp_path / "orders.py").write_text(shop.definitions())
    definitions = await commit_of(str(tmp_path / "orders.py"), folder=tmp_path)
    await api.good("POST", "/commit", definitions, **INLINE)
    await log(api, shop)
    seen: list[Any] = []

    async def all_ended() -> bool:
        seen[:] = (await listed(api)).values()
        return all(each["state"] == "ended" for each in seen)

    async def counted() -> int:
        body = {"keys": [{"city": "Paris"}], "fields": ["orders"]}
        status, text = await api.call("POST", "/dataset/Sales/lookup", body)
        return json.loads(text)["data"]["orders"][0] or 0 if status == 200 else 0

    await eventually(all_ended, within_s=240, interval_s=0.5, what=lambda: seen)
    await api.settled(within_s=60)
    assert await counted() == shop.orders == 4
    reported = [
        each["ended"]
        for each in status_requests.read(settings).sources or ()
        if each["workspace"] == api.workspace
    ]
    assert reported == [True, True, True]
    shop.sell()
    for name in await listed(api):
        if name.startswith(STREAMS):
            await api.good("POST", "/sources/resume", {"source": name})

    async def all_there() -> bool:
        return await counted() >= shop.orders

    await eventually(all_there, within_s=240, interval_s=0.5, what=lambda: seen)
    await eventually(all_ended, within_s=240, interval_s=0.5, what=lambda: seen)
    await log(api, shop)
    await api.settled(within_s=60)
    assert await counted() == 7, "a webhook that has ended takes no row"
