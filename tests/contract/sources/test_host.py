"""The sources over a real database, broker and Spark, without the other services."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pydantic import SecretStr

from fennel_core.blueprints.logical import AssetKind
from fennel_core.blueprints.spec import Catalog, SourceBinding
from fennel_core.connections import postgres
from fennel_core.connections.kafka import client_config
from fennel_core.connections.offsets import bounds
from fennel_core.connections.postgres import Pool
from fennel_core.ledger.kafka import KafkaTopicAdmin
from fennel_core.ledger.topics import OffsetRange, TopicSpec
from fennel_core.settings.model import Settings
from fennel_core.sources.host import SourceHost
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName
from fennel_core.vocab.versions import decode
from fennel_core.wire.connectors import JsonFormat, KafkaTopic
from tests.support.ingest_rows import open_workspace, point_branch
from tests.support.ingest_world import KEYLESS, PARTITIONS, WORKSPACE, binding, catalog, source
from tests.support.polling import eventually
from tests.support.source_world import CONNECTOR

AT = 1_700_000_000_000
STREAMS = 3
"""Partitions of the external topic."""


@dataclass
class Shop:
    """An external topic, the platform's topics of its dataset, and a host that reads it."""

    settings: Settings
    pool: Pool
    stream: str
    binding: SourceBinding
    sold: int = 0

    @property
    def catalog(self) -> Catalog:
        return catalog(self.binding)

    def sell(self, rows: int) -> None:
        """Write orders 0, 1, 2, … to the external topic."""
        producer = Producer({"bootstrap.servers": self.settings.kafka_bootstrap})
        for number in range(self.sold, self.sold + rows):
            row = {"user": "ann", "amount": number, "at": AT}
            producer.produce(self.stream, json.dumps(row).encode(), partition=number % STREAMS)
        self.sold += rows
        assert producer.flush(30) == 0

    async def rows(self, topic: TopicName) -> list[dict]:
        """Return the committed rows of a topic."""
        admin, topics = AdminClient(client_config(self.settings)), KafkaTopicAdmin(self.settings)
        parts = [(topic, PartitionIndex(number)) for number in range(PARTITIONS)]
        ends = await asyncio.to_thread(bounds, admin, parts, 15.0)
        ranges = [OffsetRange(at, Offset(first), end) for at, (first, end) in ends.items()]
        read = await topics.read(ranges, seconds=15, size_bytes=1 << 30)
        return [
            row for each in read for _, value in each.messages for row in decode(value).to_dicts()
        ]

    async def arrived(self) -> None:
        """Wait until every order is on the typed topic, once."""

        async def all_there() -> bool:
            return len(await self.rows(self.binding.topic)) >= self.sold

        await eventually(all_there, within_s=240, interval_s=0.5, what=f"{self.sold} orders")
        found = [row["amount"] for row in await self.rows(self.binding.topic)]
        assert sorted(found) == list(range(self.sold))


@pytest.fixture
async def shop(infra: object, database: str, tmp_path: Path) -> AsyncIterator[Shop]:
    name = uuid.uuid4().hex[:8]
    settings = Settings().model_copy(
        update={"postgres_dsn": SecretStr(database), "data_dir": tmp_path}
    )
    stream = f"orders-{name}"
    connector = replace(CONNECTOR, bootstrap_servers=settings.kafka_bootstrap)
    of = source("Orders", table=KafkaTopic(connector, stream, JsonFormat()))
    bound = replace(
        binding(KEYLESS, "Orders", of=of),
        webhook="kafka",
        endpoint=stream,
        topic=TopicName(f"t{name}.topic.orders.1"),
        raw_topic=TopicName(f"t{name}.raw.orders.1"),
        dead_letters=TopicName(f"t{name}.dead.orders.1"),
        positions=TopicName(f"t{name}.positions.orders.1"),
    )
    topics = KafkaTopicAdmin(settings)
    specs = [
        TopicSpec(bound.topic, AssetKind.TOPIC, PARTITIONS),
        TopicSpec(bound.raw_topic, AssetKind.RAW, PARTITIONS),
        TopicSpec(bound.dead_letters, AssetKind.DEAD, PARTITIONS),
        TopicSpec(bound.positions, AssetKind.POSITIONS, PARTITIONS),
    ]
    await topics.create(specs)
    admin = AdminClient(client_config(settings))
    admin.create_topics([NewTopic(stream, STREAMS, 1)])[stream].result()
    async with postgres.pool(database, name="test") as pool:
        await open_workspace(pool, WORKSPACE)
        yield Shop(settings, pool, stream, bound)
    await topics.delete([*(spec.name for spec in specs), TopicName(stream)])


@pytest.mark.platform
@pytest.mark.timeout(600)
async def test_a_stream_is_read_once_over_restarts_and_a_lost_checkpoint(shop: Shop) -> None:
    shop.sell(100)
    for commit in ("c1", "c2"):
        host = SourceHost(shop.settings, shop.pool)
        changed = asyncio.Event()
        running = asyncio.create_task(host.run(changed))
        await point_branch(shop.pool, WORKSPACE, "main", commit, shop.catalog)
        await shop.arrived()
        shop.sell(50)
        await shop.arrived()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await asyncio.to_thread(host.close)
        # The next host finds these, and has no checkpoint: its folder begins empty.
        shop.sell(50)
