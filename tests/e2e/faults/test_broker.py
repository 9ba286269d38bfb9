"""The broker is killed with -9 and returns with new leader epochs: clients that used its topics
before read them at once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from fennel_core.connections.kafka import client_config
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.kafka.broker import KafkaBroker
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition
from tests.e2e.faults.strikes import kill_part
from tests.support.polling import eventually

pytestmark = [pytest.mark.platform, pytest.mark.timeout(300)]
BACK_SECONDS = 120.0
MAX_BYTES = 1_000_000


@pytest.fixture
async def broker(infra: None) -> AsyncIterator[KafkaBroker]:
    kafka = KafkaBroker(Settings())
    yield kafka
    await kafka.close()


@pytest.fixture
def topics(infra: None) -> Iterator[list[TopicName]]:
    """Two topics, created and deleted by another client."""
    names = [TopicName(f"test.{uuid.uuid4().hex[:12]}") for _ in range(2)]
    admin = AdminClient(client_config(Settings()))
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result(20)
    yield names
    for gone in admin.delete_topics(names).values():
        gone.result(20)


async def write(broker: KafkaBroker, source: TopicPartition, text: bytes) -> None:
    producer = await broker.producer(f"{source[0]}-{uuid.uuid4().hex}")
    await producer.commit([OutgoingRecord(*source, text)])


async def read(broker: KafkaBroker, source: TopicPartition, count: int) -> list[bytes]:
    """Return the first `count` records of a new subscription from offset 0, and close it."""
    subscription = await broker.subscribe({source: Offset(0)})
    values: list[bytes] = []
    async with asyncio.timeout(20):
        while len(values) < count:
            values += [record.value for record in (await subscription.next(MAX_BYTES)).records]
    await subscription.close()
    return values


async def broker_responds(settings: Settings) -> None:
    """Wait until the broker responds to a new client, so that the client under test learns nothing
    of it.
    """

    async def responds() -> bool:
        try:
            await asyncio.to_thread(AdminClient(client_config(settings)).list_topics, timeout=2)
        except KafkaException:
            return False
        return True

    await eventually(responds, within_s=BACK_SECONDS, interval_s=0.2)


async def test_topics_known_before_the_broker_was_killed_are_read_at_once_when_it_is_back(
    broker: KafkaBroker, topics: list[TopicName]
) -> None:
    closed, kept = [(topic, 0) for topic in topics]
    for source in (closed, kept):
        await write(broker, source, b"before")
        assert await read(broker, source, 1) == [b"before"]
    following = await broker.subscribe({kept: Offset(0)})
    kill_part(Settings(), "kafka")
    await broker_responds(Settings())
    for source in (closed, kept):
        await write(broker, source, b"after")
        assert await read(broker, source, 2) == [b"before", b"after"]
    got: list[bytes] = []
    async with asyncio.timeout(20):
        while len(got) < 2:
            got += [record.value for record in (await following.next(MAX_BYTES)).records]
    assert got == [b"before", b"after"], "the open subscription continues"
