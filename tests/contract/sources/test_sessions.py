"""The contract of source sessions, in memory and over Kafka's transactions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.errors import TransactionAborted, TransactionOutcomeUnknown
from fennel_core.ingest.kafka import KafkaTransactionalProducer
from fennel_core.ingest.store import ProducerRecord, boot_s
from fennel_core.ledger.kafka import KafkaTopicAdmin
from fennel_core.ledger.topics import TopicSpec
from fennel_core.settings.model import Settings
from fennel_core.sources.kafka import KafkaSourceLog
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.store import FeedPartition, MemorySourceLog, SourceLog
from fennel_core.vocab.ids import TopicName, WorkspaceId

PARTITIONS = 2


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.platform)])
async def log(request: pytest.FixtureRequest, partition: FeedPartition) -> AsyncIterator[SourceLog]:
    if request.param == "memory":
        yield MemorySourceLog()
        return
    request.getfixturevalue("infra")
    topics = KafkaTopicAdmin(Settings())
    names = [partition.raw_topic, partition.positions]
    kinds = [AssetKind.RAW, AssetKind.POSITIONS]
    await topics.create(
        [TopicSpec(name, kind, PARTITIONS) for name, kind in zip(names, kinds, strict=True)]
    )
    with ThreadPoolExecutor(8) as threads:
        yield KafkaSourceLog(Settings(), threads)
    await topics.delete(names)


@pytest.fixture
def partition() -> FeedPartition:
    return of(0, uuid.uuid4().hex[:12])


def of(number: int, name: str) -> FeedPartition:
    return FeedPartition(
        WorkspaceId(f"t{name}"),
        f"Kafka topic `orders`[{number}]",
        "kafka",
        "orders",
        TopicName(f"t{name}.raw.orders.1"),
        TopicName(f"t{name}.positions.orders.1"),
        PARTITIONS,
        number,
    )


def rows(partition: FeedPartition, text: bytes) -> list[ProducerRecord]:
    return [ProducerRecord(partition.raw_topic, 0, text, ())]


def at(offset: int) -> SourcePosition:
    return SourcePosition(offset, "cluster/topic")


def soon() -> float:
    return boot_s() + 60


async def test_a_position_is_read_back_by_the_next_session(
    log: SourceLog, partition: FeedPartition
) -> None:
    first = await log.open(partition)
    assert first.position is None
    await first.commit(rows(partition, b"a"), at(3), soon())
    await first.commit(rows(partition, b"b"), at(7), soon())
    assert first.position == at(7)
    first.close()
    assert (await log.open(partition)).position == at(7)


async def test_partitions_of_a_source_have_positions_of_their_own(
    log: SourceLog, partition: FeedPartition
) -> None:
    name = partition.workspace.removeprefix("t")
    for number in (0, 1, 2):
        session = await log.open(of(number, name))
        await session.commit(rows(partition, b"a"), at(10 + number), soon())
    found = [(await log.open(of(number, name))).position for number in (0, 1, 2, 3)]
    assert found == [at(10), at(11), at(12), None]


async def test_what_a_source_remembers_is_read_back_by_the_next_session(
    log: SourceLog, partition: FeedPartition
) -> None:
    session = await log.open(partition)
    assert session.notes == {}
    for name, value in (("file/a", b"1"), ("file/b", b"1"), ("file/a", b"2")):
        note = partition.note(name, value)
        place = SourcePosition(1, "cluster/topic", cursor=name + value.decode())
        await session.commit([*rows(partition, b"a"), note], place, soon())
    with pytest.raises(TransactionAborted):
        await session.commit([partition.note("file/c", b"1")], at(4), boot_s() - 1)
    found = await log.open(partition)
    assert found.notes == {"file/a": b"2", "file/b": b"1"}
    assert found.position == SourcePosition(1, "cluster/topic", cursor="file/a2")
    other = await log.open(of(2, partition.workspace.removeprefix("t")))
    assert (other.position, other.notes) == (None, {})


async def test_an_earlier_session_cannot_commit(log: SourceLog, partition: FeedPartition) -> None:
    zombie = await log.open(partition)
    await zombie.commit(rows(partition, b"a"), at(1), soon())
    owner = await log.open(partition)
    with pytest.raises((TransactionAborted, TransactionOutcomeUnknown)):
        await zombie.commit(rows(partition, b"zombie"), at(2), soon())
    zombie.close()
    assert owner.position == at(1)
    await owner.commit(rows(partition, b"b"), at(2), soon())
    assert (await log.open(partition)).position == at(2)


async def test_nothing_is_committed_after_the_deadline(
    log: SourceLog, partition: FeedPartition
) -> None:
    session = await log.open(partition)
    with pytest.raises(TransactionAborted):
        await session.commit(rows(partition, b"a"), at(1), boot_s() - 1)
    assert (await log.open(partition)).position is None


@pytest.mark.platform
async def test_an_open_transaction_of_another_partition_hides_no_position(
    infra: object, partition: FeedPartition
) -> None:
    topics = KafkaTopicAdmin(Settings())
    await topics.create([TopicSpec(partition.positions, AssetKind.POSITIONS, PARTITIONS)])
    settings = Settings()
    with ThreadPoolExecutor(8) as threads:
        log = KafkaSourceLog(settings, threads)
        session = await log.open(partition)
        # Partition 2 writes to the same partition of the positions topic, and hangs.
        id_ = f"other.{partition.raw_topic}"
        other = KafkaTransactionalProducer(settings, id_, threads)
        await other.open()
        producer = other._producer
        assert producer is not None
        producer.begin_transaction()
        producer.produce(partition.positions, b"{}", key=b"2", partition=0)
        producer.flush(10)
        await session.commit([], at(5), soon())
        reopened = asyncio.create_task(log.open(partition))
        await asyncio.sleep(0.5)  # long enough to open a session that does not wait
        assert not reopened.done()
        # Ends the transaction, unless the broker has done so by its time-out.
        await KafkaTransactionalProducer(settings, id_, threads).open()
        assert (await reopened).position == at(5)
    await topics.delete([partition.positions])
