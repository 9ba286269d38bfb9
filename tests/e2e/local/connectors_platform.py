"""Stored connectors whose credentials change while a platform of its own runs: each row once.

`make connectors` runs it, in about five minutes; CI does not. Each system gets its new credentials
first, so what reads or writes it breaks, and goes on when the connector is rotated. A topic beside
them shows that nothing else is started again.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic
from psycopg import sql

from fennel_core.apps.local import processes
from fennel_core.connections import s3
from fennel_core.connections.kafka import client_config
from fennel_core.settings.model import Settings
from tests.support.certificates import certificate
from tests.support.executors import commit_of
from tests.support.external_topics import committed, created
from tests.support.guarded_postgres import USER, GuardedPostgres, guarded_postgres
from tests.support.http_receivers import Answer, Receiver, served
from tests.support.kafka import ADMIN, secured_broker
from tests.support.own_platform import OwnPlatform
from tests.support.polling import eventually
from tests.support.ports import free_port
from tests.support.workspaces import INLINE, Api, make

__all__ = ["guarded_postgres", "make"]
pytestmark = pytest.mark.timeout(1200)
NOW = "2026-01-01T00:00:00Z"
BUCKET = "files"
FLOWS_S: Final = 150.0
BREAKS_S: Final = 60.0
DEFINITIONS = """
from datetime import datetime

from fennel.connectors import HTTP, S3, Certificate, Kafka, Postgres, sink, source
from fennel.datasets import Count, Dataset, Sum, dataset, field, index, pipeline
from fennel.dtypes import Continuous
from fennel.expr import col
from fennel.lib import inputs

__owner__ = "tests@example.com"
streams, calm = Kafka.get("streams"), Kafka.get("calm")
tables, files = Postgres.get("tables"), S3.get("files")
hooks = HTTP(name="hooks", host="", healthz="", ca_cert=Certificate(""))
json = files.bucket("files", path="{folder}/*.json", format="json")


@source(streams.topic("{stream}"), disorder="14d", cdc="append")
@source(calm.topic("{calm}"), disorder="14d", cdc="append")
@source(tables.table("orders", cursor="id"), every="5s", disorder="14d", cdc="append")
@source(json, every="1s", disorder="14d", cdc="append")
@dataset
class Order:
    via: str
    n: int
    at: datetime = field(timestamp=True)


@sink(streams.topic("{placed}"), cdc="debezium")
@sink(hooks.path("/rows"), cdc="debezium")
@dataset
class Placed:
    via: str
    n: int
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Order)
    def placed(cls, orders: Dataset):
        return orders.filter(col("n") > 0)


@index
@dataset
class Sales:
    via: str = field(key=True)
    orders: int
    amount: int
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Placed)
    def sold(cls, orders: Dataset):
        return orders.groupby("via").aggregate(
            orders=Count(window=Continuous("forever")),
            amount=Sum(of="n", window=Continuous("forever")),
        )
"""


class Forgetful(Receiver):
    """Ends each connection, so that the next request sees the certificate of its time."""

    def take(self, key: str, body: bytes) -> Answer:
        status, headers = super().take(key, body)
        return status, {**headers, "Connection": "close"}


class Hooks:
    """An endpoint with TLS whose certificate changes."""

    def __init__(self, folder: Path) -> None:
        self.receiver, self.port, self._folder = Forgetful(), free_port(), folder
        self._running = ExitStack()

    def renew(self) -> str:
        """Serve with a new certificate, and return it."""
        self._running.close()
        pem, key = certificate("localhost")
        file = self._folder / "hooks.pem"
        file.write_text(key + pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        self._running.enter_context(served(self.receiver, context, self.port))
        return pem

    def close(self) -> None:
        self._running.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Settings]:
    """A broker that asks for credentials again and again, as one does whose operator wants so."""
    supers = f"User:{ADMIN};User:ANONYMOUS;User:{USER}"
    with secured_broker(connections_max_reauth_ms="4000", super_users=supers) as settings:
        yield settings


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hooks]:
    found = Hooks(tmp_path_factory.mktemp("hooks"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def platform(hooks: Hooks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPlatform]:
    platform = OwnPlatform(
        tmp_path_factory.mktemp("connectors") / "data",
        FENNEL_HTTP_SINK_PRIVATE_HOSTS=json.dumps([f"localhost:{hooks.port}"]),
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


@dataclass
class Shop:
    """The systems of a user, and the rows that were put into each. `topics`: and the folder."""

    platform: OwnPlatform
    settings: Settings
    api: Api
    cluster: Settings
    database: GuardedPostgres
    hooks: Hooks
    topics: Mapping[str, str]
    sold: Counter[str] = field(default_factory=Counter)

    def sell(self, via: str, rows: int) -> None:
        first = self.sold[via] + 1
        self.sold[via] += rows
        orders = [{"via": via, "n": n, "at": NOW} for n in range(first, first + rows)]
        match via:
            case "stream" | "calm":
                self.produce(via, orders)
            case "table":
                with psycopg.connect(self.database.owner, autocommit=True) as connection:
                    connection.cursor().executemany(
                        "INSERT INTO orders (via, n, at) VALUES (%(via)s, %(n)s, %(at)s)", orders
                    )
            case "file":
                body = "\n".join(map(json.dumps, orders)).encode()
                key = f"{self.topics['folder']}/{first:06}.json"
                s3.client(self.settings).put_object(Bucket=BUCKET, Key=key, Body=body)

    def set_password(self, system: str, word: str) -> None:
        """Change the password of the user at a system."""
        if system == "tables":
            self.database.set_password(word)
            return
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(USER, info, word.encode())
        admin = AdminClient(client_config(self.cluster))
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(30)

    async def commit(self, folder: Path, streams: str = 'Kafka.get("streams")') -> None:
        """Commit the definitions; `streams`: the connector of the topics."""
        text = DEFINITIONS.format(**self.topics).replace('Kafka.get("streams")', streams)
        (folder / "shop.py").write_text(text)
        body = await commit_of(str(folder / "shop.py"), folder=folder)
        await self.api.good("POST", "/commit", body, **INLINE)

    def produce(self, via: str, orders: list[dict[str, Any]]) -> None:
        """Write messages to a topic: all to one partition, so that they are late for each other."""
        producer = Producer(client_config(self.cluster if via == "stream" else self.settings))
        for order in orders:
            producer.produce(self.topics[via], json.dumps(order).encode(), partition=0)
        assert producer.flush(60) == 0

    def connector(self, order: str, name: str, *words: str, **secrets: str) -> str:
        """Run `fennel-core connector`; `secrets`: properties and their values."""
        given = [f"--secret={key}=env:WORD_{key}" for key in secrets]
        return self.platform.run(
            *("connector", "--token", f"dev-{self.api.workspace}", order, name, *words, *given),
            **{f"WORD_{key}": value for key, value in secrets.items()},
        )

    def read_once_more(self) -> Counter[str]:
        """Return how often each source and sink was started by the process that hosts them."""
        lines = (self.platform.data / "logs" / "sources.log").read_text().splitlines()
        started = ("source is read", "sink is written")
        events = [json.loads(line) for line in lines if any(text in line for text in started)]
        return Counter(str(each.get("source") or each.get("sink")) for each in events)

    async def counts(self) -> dict[str, int]:
        """Return what became of the messages of the stream, as its present source counts them."""
        listed = (await self.api.good("GET", "/sources"))["sources"]
        name = f"streams/{self.topics['stream']}"
        [row] = [each for each in listed if each["source"] == name]
        [dataset] = row["datasets"]
        return {what: dataset[what] for what in ("accepted", "late", "dead")}

    async def rows(self) -> dict[str, tuple[int, int]]:
        """Return number and sum of the orders of each kind that are there."""
        kinds = list(self.sold)
        body = {"keys": [{"via": via} for via in kinds], "fields": []}
        status, text = await self.api.call("POST", "/dataset/Sales/lookup", body)
        assert status in (200, 503), f"{status} {text}"
        if status != 200:
            return {}
        data = json.loads(text)["data"]
        pairs = zip(data["orders"], data["amount"], strict=True)
        return {via: (n or 0, s or 0) for via, (n, s) in zip(kinds, pairs, strict=True)}

    async def flowing(self, *kinds: str) -> float:
        """Wait until all orders of some kinds are counted; return how many seconds it took."""
        began_s, seen = time.monotonic(), dict[str, object]()

        async def there() -> bool:
            found = await self.rows()
            seen.update(found)
            return all(found.get(via, (0, 0))[0] >= self.sold[via] for via in kinds)

        def missing() -> str:
            return f"{dict(self.sold)}, there {seen}; {self.platform.run('status')}"

        await eventually(there, within_s=FLOWS_S, interval_s=0.1, what=missing)
        return time.monotonic() - began_s

    async def sent(self) -> float:
        """Wait until every order is in both sinks; return how many seconds it took."""
        began_s, wanted = time.monotonic(), sum(self.sold.values())

        def counts() -> tuple[int, int]:
            return len(self.in_topic()), len(self.hooks.receiver.events())

        def missing() -> str:
            return (
                f"{wanted} orders, in topic and endpoint {counts()}; {self.platform.run('status')}"
            )

        await eventually(
            lambda: min(counts()) >= wanted, within_s=FLOWS_S, interval_s=0.3, what=missing
        )
        return time.monotonic() - began_s

    def in_topic(self) -> list[Any]:
        values = committed(self.cluster, self.topics["placed"]).values()
        return [json.loads(each) for of_key in values for each in of_key if each is not None]

    async def broken(self, connector: str) -> None:
        """Wait until a source or sink of a connector cannot be used, and the remedy is shown."""

        remedy, seen = f"fennel-core connector rotate {connector}", list[object]()

        async def parked() -> bool:
            listed = (await self.api.good("GET", "/sources"))["sources"]
            seen[:] = [each for each in listed if each["source"].startswith(f"{connector}/")]
            return any(
                each["state"] == "parked"
                and "authentication" in each["error"].lower()
                and remedy in each["remedy"]
                for each in listed
                if each in seen
            )

        await eventually(parked, within_s=BREAKS_S, interval_s=0.3, what=lambda: seen)
        shown = self.platform.run("status")
        assert remedy in " ".join(shown.split()), shown

    async def each_once(self) -> None:
        """Check that every order is counted and in both sinks once."""
        await self.flowing(*self.sold)
        await self.sent()
        await self.api.settled(within_s=60)
        expected = {via: (rows, rows * (rows + 1) // 2) for via, rows in self.sold.items()}
        assert await eventually(self.rows, within_s=60, interval_s=0.3) == expected
        orders = Counter((via, n) for via, rows in self.sold.items() for n in range(1, rows + 1))
        for events in (self.in_topic(), self.hooks.receiver.events()):
            assert Counter((e["after"]["via"], e["after"]["n"]) for e in events) == orders
            assert {e["op"] for e in events} == {"c"}
        assert (await self.api.good("GET", "/dead_letters/rows"))["rows"] == []


@pytest.fixture
async def shop(
    make: Callable[[], Awaitable[Api]],
    platform: OwnPlatform,
    settings: Settings,
    cluster: Settings,
    guarded_postgres: GuardedPostgres,
    hooks: Hooks,
    tmp_path: Path,
) -> Shop:
    """A shop with its connectors stored and its definitions committed."""
    hooks.receiver = Forgetful()
    calm = f"calm-{uuid.uuid4().hex[:8]}"
    admin = AdminClient(client_config(settings))
    admin.create_topics([NewTopic(calm, 1, 1)])[calm].result(30)
    topics = {"stream": created(cluster), "calm": calm, "placed": created(cluster)}
    topics["folder"] = calm  # of the files
    shop = Shop(platform, settings, await make(), cluster, guarded_postgres, hooks, topics)
    with psycopg.connect(guarded_postgres.owner, autocommit=True) as connection:
        connection.execute("DROP TABLE orders")
        connection.execute(
            "CREATE TABLE orders (id bigserial PRIMARY KEY, via text, n bigint, at timestamptz)"
        )
        grant = sql.SQL("GRANT SELECT ON orders TO {}")
        connection.execute(grant.format(sql.Identifier(USER)))
    s3.ensure_bucket(s3.client(settings), BUCKET)
    add_connectors(shop)
    await shop.commit(tmp_path)
    return shop


def add_connectors(shop: Shop) -> None:
    for system in ("tables", "streams"):
        shop.set_password(system, "the-first-word")
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512"}
    given = {
        "streams": ("kafka", login | {"bootstrap_servers": shop.cluster.kafka_bootstrap}),
        "calm": (
            "kafka",
            {
                "bootstrap_servers": shop.settings.kafka_bootstrap,
                "security_protocol": "PLAINTEXT",
            },
        ),
        "tables": ("postgres", shop.database.properties),
        "files": ("s3", {"aws_access_key_id": shop.settings.s3_access_key}),
        "hooks": ("http", {"host": f"https://localhost:{shop.hooks.port}", "healthz": "/health"}),
    }
    given["streams"][1]["sasl_plain_username"] = USER
    secrets = {
        "streams": {"sasl_plain_password": "the-first-word"},
        "tables": {"password": "the-first-word"},
        "files": {"aws_secret_access_key": shop.settings.s3_secret_key.get_secret_value()},
        "hooks": {"ca_cert": shop.hooks.renew()},
    }
    for name, (kind, properties) in given.items():
        plain = [f"--set={key}={value}" for key, value in properties.items()]
        shop.connector("add", name, kind, *plain, **secrets.get(name, {}))


PASSWORDS: Final = {"tables": "password", "streams": "sasl_plain_password"}


def rotate(shop: Shop, connector: str, word: str) -> None:
    """Refuse a wrong password, and take the right one."""
    key = PASSWORDS[connector]
    with pytest.raises(AssertionError, match="Nothing was changed"):
        shop.connector("rotate", connector, **{key: "a-wrong-word"})
    shop.connector("rotate", connector, **{key: word})


async def test_rows_flow_again_after_a_rotation_each_once_and_nothing_else_is_started_again(
    shop: Shop,
) -> None:
    for via in ("stream", "calm", "table", "file"):
        shop.sell(via, 200)
    await shop.flowing("stream", "calm", "table", "file")
    await shop.sent()
    before = shop.read_once_more()

    shop.set_password("tables", "the-second-word")
    shop.sell("table", 50)
    await shop.broken("tables")
    rotate(shop, "tables", "the-second-word")
    print(f"\nPostgres: rows flow {await shop.flowing('table'):.1f} s after the rotation")
    assert shop.read_once_more() == before

    shop.set_password("streams", "the-second-word")
    await shop.broken("streams")
    for via in ("stream", "calm", "file"):
        shop.sell(via, 50)
    await shop.flowing("calm", "file")
    rotate(shop, "streams", "the-second-word")
    print(f"Kafka: rows flow {await shop.flowing('stream'):.1f} s after the rotation")
    print(f"Kafka sink: {await shop.sent():.1f} s later")
    again = shop.read_once_more() - before
    assert set(again) == {f"streams/{shop.topics[each]}" for each in ("stream", "placed")}
    assert set(again.values()) == {1} or again[f"streams/{shop.topics['placed']}"] == 1

    wrong = {"aws_secret_access_key": "no-key-of-anyone"}
    with pytest.raises(AssertionError, match="does not allow listing"):
        shop.connector("rotate", "files", **wrong)
    pem = shop.hooks.renew()
    shop.sell("calm", 50)
    other, _ = certificate("localhost")
    with pytest.raises(AssertionError, match="CERTIFICATE_VERIFY_FAILED"):
        shop.connector("rotate", "hooks", ca_cert=other)
    shop.connector("rotate", "hooks", ca_cert=pem)
    print(f"HTTP sink: {await shop.sent():.1f} s after the rotation")
    await shop.each_once()
    assert shop.read_once_more()[f"calm/{shop.topics['calm']}"] == 1


async def test_rows_enter_once_when_the_sources_are_killed_around_a_rotation(shop: Shop) -> None:
    for via in ("stream", "table", "calm"):
        shop.sell(via, 100)
    await shop.flowing("stream", "table", "calm")
    for number, when in enumerate(("before", "after", "after")):
        word = f"word-number-{number}"
        for system in PASSWORDS:
            shop.set_password(system, word)
        for via in ("stream", "table", "calm"):
            shop.sell(via, 100)
        if when == "before":
            kill_sources(shop.settings)
        for connector, key in PASSWORDS.items():
            shop.connector("rotate", connector, **{key: word})
        if when == "after":
            kill_sources(shop.settings)
        took_s = await shop.flowing("stream", "table", "calm")
        print(f"\nkilled {when} the rotation: rows flow {took_s:.1f} s later")
    await shop.each_once()


def kill_sources(settings: Settings) -> None:
    """Kill the sources and sinks (driver, JVM, workers) with -9."""
    record = processes.read_record(settings.data_dir / "pids" / "sources")
    assert record is not None
    for pid in processes.session_members(record):
        os.kill(pid, signal.SIGKILL)


IN_CODE = """Kafka(
    name="streams",
    bootstrap_servers="{address}",
    security_protocol="SASL_PLAINTEXT",
    sasl_mechanism="SCRAM-SHA-512",
    sasl_plain_username="{user}",
    sasl_plain_password="the-first-word",
)"""


async def test_from_code_to_get_the_stream_goes_on_and_lateness_begins_again(
    shop: Shop, tmp_path: Path
) -> None:
    in_code = IN_CODE.format(address=shop.cluster.kafka_bootstrap, user=USER)
    shop.sell("stream", 100)
    await shop.flowing("stream")
    shop.sell("stream", 100)  # they are read by the source of the code, or of the name
    await shop.commit(tmp_path, in_code)
    for _ in range(2):  # the watermark is that before the last batch
        shop.sell("stream", 100)
        await shop.flowing("stream")
    old = {"via": "old", "n": 1, "at": "2025-11-01T00:00:00Z"}
    shop.produce("stream", [old])
    shop.sell("stream", 100)
    await shop.flowing("stream")
    counts = await shop.counts()
    assert (counts["late"], counts["dead"]) == (1, 0)

    await shop.commit(tmp_path)
    shop.produce("stream", [old])  # the first row of another source of the dataset
    shop.sold["old"] = 1
    shop.sell("stream", 100)
    await shop.flowing("stream", "old")
    assert await shop.counts() == {"accepted": 101, "late": 0, "dead": 0}
    await shop.each_once()
