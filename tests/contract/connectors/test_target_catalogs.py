"""The processes that read and write see a stored connector as soon as it has changed."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest
from google.protobuf.message import DecodeError

from fennel_core.blueprints import stored_names
from fennel_core.connections.postgres import pool
from fennel_core.connectors.postgres import PostgresConnectorStore
from fennel_core.sources.target_catalogs import TargetCatalogs
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.connectors import JsonFormat, Kafka, KafkaTopic, NamedReference
from fennel_core.wire.gen import connector_pb2
from tests.support.ingest_world import binding, catalog, source

SHOP, BANK = WorkspaceId("shop"), WorkspaceId("bank")
NAMED = KafkaTopic(NamedReference("k", "kafka"), "orders", JsonFormat())
COMMIT = """
    INSERT INTO commit (id, workspace, branch, state, digest, options, catalog)
    VALUES (%s, %s, 'main', 'serving', '', '{}', %s)
"""


def kafka(address: str) -> bytes:
    message = connector_pb2.ExtDatabase(name="k")
    message.kafka.bootstrap_servers = address
    return message.SerializeToString()


async def test_catalogs_are_read_with_the_connectors_of_their_own_workspace(database: str) -> None:
    named = replace(binding(), source=source("Orders", table=NAMED))
    with psycopg.connect(database) as connection:
        for name in (SHOP, BANK):
            stored = stored_names.dumps(replace(catalog(named), workspace=name))
            connection.execute("INSERT INTO workspace (name, partitions) VALUES (%s, 2)", (name,))
            connection.execute(COMMIT, (f"c-{name}", name, stored))
            connection.execute(
                "INSERT INTO branch (workspace, name, target) VALUES (%s, 'main', %s)",
                (name, f"c-{name}"),
            )
    async with pool(database, name="test", size=2) as connections:
        catalogs, store = TargetCatalogs(connections), PostgresConnectorStore(connections)

        async def addresses() -> dict[WorkspaceId, str | None]:
            found: dict[WorkspaceId, str | None] = {}
            for each in await catalogs.read():
                db = each.sources[0].source.table.db
                found[each.workspace] = db.bootstrap_servers if isinstance(db, Kafka) else None
            return found

        assert await addresses() == {SHOP: None, BANK: None}
        assert await store.put(SHOP, "k", kafka("one:1"), "ann", 0)
        assert await addresses() == {SHOP: "one:1", BANK: None}
        [shop] = [each for each in await catalogs.read() if each.workspace == SHOP]
        table = shop.sources[0].source.table
        assert "connector rotate k --secret" in (catalogs.remedy(SHOP, table) or "")
        assert "commit connector `k`" in (catalogs.remedy(BANK, table) or "")
        assert await store.put(SHOP, "k", kafka("two:2"), "ann", 1)
        assert await addresses() == {SHOP: "two:2", BANK: None}
        first, second = await catalogs.read(), await catalogs.read()
        assert all(a is b for a, b in zip(first, second, strict=True)), "resolved once"
        assert await store.put(SHOP, "k", b"no connector", "ann", 2)
        for _ in range(2):
            with pytest.raises(DecodeError):
                await addresses()
        assert await store.put(SHOP, "k", kafka("three:3"), "ann", 3)
        assert await addresses() == {SHOP: "three:3", BANK: None}
        assert await store.remove(SHOP, "k", 4)
        assert await addresses() == {SHOP: None, BANK: None}
