"""The contract of stored connectors, in memory and in a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fennel_core.connections.postgres import pool
from fennel_core.connections.secrets import CREDENTIAL, Sealer, make_key_file
from fennel_core.connectors.postgres import PostgresConnectorStore
from fennel_core.connectors.store import ConnectorStore, MemoryConnectorStore, connectors_of
from fennel_core.definition.reseal import reseal
from fennel_core.definition.sealed_request import seal_connector
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.connectors import Kafka, Login, SealedSecret
from fennel_core.wire.gen import connector_pb2

SHOP, BANK = WorkspaceId("shop"), WorkspaceId("bank")


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[ConnectorStore]:
    if request.param == "memory":
        yield MemoryConnectorStore(lambda: datetime.now(UTC))
        return
    async with pool(request.getfixturevalue("database"), name="test", size=2) as connections:
        async with connections.connection() as connection:
            for name in (SHOP, BANK):
                await connection.execute(
                    "INSERT INTO workspace (name, partitions) VALUES (%s, 2)", (name,)
                )
        yield PostgresConnectorStore(connections)


def kafka(name: str, address: str) -> bytes:
    message = connector_pb2.ExtDatabase(name=name)
    message.kafka.bootstrap_servers = address
    return message.SerializeToString()


async def test_a_connector_is_of_one_workspace(store: ConnectorStore) -> None:
    assert await store.all() == []
    assert await store.put(SHOP, "k", kafka("k", "one:1"), "ann", 0)
    assert await store.put(BANK, "k", kafka("k", "two:2"), "bob", 0)
    found = connectors_of(await store.of(SHOP))
    assert found == {"k": Kafka("k", "one:1", "", "", None, "", Login(None, None))}
    assert [(each.workspace, each.changed_by) for each in await store.all()] == [
        (BANK, "bob"),
        (SHOP, "ann"),
    ]
    assert await store.remove(SHOP, "k", 1)
    assert await store.of(SHOP) == {}
    assert list(await store.of(BANK)) == ["k"]


async def test_a_change_is_made_once_from_what_it_saw(store: ConnectorStore) -> None:
    first, second, third = (kafka("k", f"b:{number}") for number in range(3))
    assert not await store.put(SHOP, "k", first, "ann", 1)
    assert await store.put(SHOP, "k", first, "ann", 0)
    assert not await store.put(SHOP, "k", second, "bob", 0)
    assert await store.put(SHOP, "k", second, "bob", 1)
    assert not await store.put(SHOP, "k", third, "eve", 1)
    assert not await store.remove(SHOP, "k", 1)
    found = (await store.of(SHOP))["k"]
    assert (found.message, found.number, found.changed_by) == (second, 2, "bob")
    assert "b:1" not in repr(found)
    assert not await store.remove(BANK, "k", 2)
    assert await store.remove(SHOP, "k", 2)
    assert not await store.remove(SHOP, "k", 2)


async def test_a_rotation_does_not_put_back_what_an_old_key_encrypted(
    database: str, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for file in (old, new):
        make_key_file(file)
    message = connector_pb2.ExtDatabase(name="k")
    message.kafka.bootstrap_servers = "b:1"
    message.kafka.sasl_plain_password = "a-word"  # noqa: S105  # of a test
    sealed = seal_connector(message, SHOP, Sealer.from_file(old))
    async with pool(database, name="test", size=2) as connections:
        async with connections.connection() as connection:
            await connection.execute("INSERT INTO workspace (name, partitions) VALUES ('shop', 2)")
        store = PostgresConnectorStore(connections)
        assert await store.put(SHOP, "k", sealed, "ann", 0)
        new.write_text(new.read_text() + old.read_text())
        assert (await reseal(connections, Sealer.from_file(new))).connectors == 1
        assert not await store.put(SHOP, "k", sealed, "ann", 1), "it has changed meanwhile"
        [found] = connectors_of(await store.of(SHOP)).values()
    assert isinstance(found, Kafka)
    assert isinstance(found.login.password, SealedSecret)
    new.write_text(new.read_text().splitlines()[0])
    token = found.login.password.token.encode()
    assert Sealer.from_file(new).open(SHOP, CREDENTIAL, token) == "a-word"
