"""One suite for the in-memory log, the simulation's model of the log, and Kafka.

It states what a runner relies on.
"""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fennel_core.connections.kafka import client_config
from fennel_core.engine.broker import Broker, FetchedRecords, OutgoingRecord, Producer, Subscription
from fennel_core.engine.errors import OffsetBeyondEnd, OffsetTruncated, ProducerFenced
from fennel_core.engine.kafka.broker import KafkaBroker
from fennel_core.engine.kafka.consumer import ConsumerLimits
from fennel_core.engine.memory_broker import MemoryBroker, MemoryLog
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition
from tests.sim.engine.faulty_components import Dice, Process, SimBroker
from tests.sim.engine.model_log import ModelLog
from tests.support.log_ranges import read_range

MAX_BYTES = 1_000_000
START = Offset(0)
SMALL_BUFFERS = ConsumerLimits(buffer_bytes=2_000, turn_bytes=4_000)


@pytest.fixture(params=["memory", "model", pytest.param("kafka", marks=pytest.mark.platform)])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    if request.param == "memory":
        yield MemoryBroker(MemoryLog())
        return
    if request.param == "model":
        never_fails = Dice(random.Random(1), 0.0, held_s=(0.0,))  # noqa: S311  # repeatable, and no secret
        yield SimBroker(Process(never_fails), ModelLog(timeout_ms=10_000), SMALL_BUFFERS)
        return
    request.getfixturevalue("infra")
    kafka = KafkaBroker(Settings(), SMALL_BUFFERS)
    yield kafka
    await kafka.close()


@pytest.fixture
async def topic(request: pytest.FixtureRequest, broker: Broker) -> AsyncIterator[TopicName]:
    name = TopicName(f"test.{uuid.uuid4().hex[:12]}")
    if not isinstance(broker, KafkaBroker):
        yield name
        return
    admin = AdminClient(client_config(Settings()))
    (created,) = admin.create_topics([NewTopic(name, 2, 1)]).values()
    created.result(10)
    yield name
    admin.delete_topics([name])


def at(topic: TopicName, partition: int = 0) -> TopicPartition:
    return (topic, partition)


def values(fetched: list[FetchedRecords]) -> list[bytes]:
    return [record.value for part in fetched for record in part.records]


async def take(subscription: Subscription, count: int) -> list[FetchedRecords]:
    """Read until `count` records have arrived."""
    got: list[FetchedRecords] = []
    async with asyncio.timeout(20):
        while len(values(got)) < count:
            got.append(await subscription.next(MAX_BYTES))
    return got


async def commit(broker: Broker, producer: Producer, *records: OutgoingRecord) -> Offset:
    """Commit, and wait until readers see the records.

    Kafka acknowledges a transaction a moment before its marker is in the log.
    """
    (source, end), *others = (await producer.commit(records)).items()
    assert not others, "one partition at a time"
    await read_range(broker, source, Offset(end - 1), end)
    return end


async def write(broker: Broker, topic: TopicName, *texts: bytes, partition: int = 0) -> Offset:
    producer = await broker.producer(f"{topic}-{uuid.uuid4().hex}")
    return await commit(
        broker, producer, *(OutgoingRecord(topic, partition, text) for text in texts)
    )


async def test_records_arrive_in_order_from_the_requested_position(
    broker: Broker, topic: TopicName
) -> None:
    await write(broker, topic, b"a", b"b", b"c")
    subscription = await broker.subscribe({at(topic): Offset(1)})
    assert values(await take(subscription, 2)) == [b"b", b"c"]


async def test_records_written_after_subscribing_arrive(broker: Broker, topic: TopicName) -> None:
    subscription = await broker.subscribe({at(topic, 0): START, at(topic, 1): START})
    await write(broker, topic, b"a", partition=0)
    await write(broker, topic, b"b", partition=1)
    assert sorted(values(await take(subscription, 2))) == [b"a", b"b"]


async def test_a_reader_sees_that_it_has_passed_the_transaction_marker(
    broker: Broker, topic: TopicName
) -> None:
    end = await write(broker, topic, b"a")
    subscription = await broker.subscribe({at(topic): START})
    async with asyncio.timeout(20):
        position = START
        while position < end + 1:
            position = (await subscription.next(MAX_BYTES)).next
    assert position == end + 1
    assert subscription.ends() == {at(topic): end + 1}


async def test_two_readers_of_one_partition_at_different_positions_both_get_everything(
    broker: Broker, topic: TopicName
) -> None:
    await write(broker, topic, b"a", b"b")
    early = await broker.subscribe({at(topic): START})
    assert values(await take(early, 2)) == [b"a", b"b"]
    late = await broker.subscribe({at(topic): START})
    await write(broker, topic, b"c")
    assert values(await take(late, 3)) == [b"a", b"b", b"c"]
    assert values(await take(early, 1)) == [b"c"]


async def test_a_closed_reader_does_not_disturb_the_others(
    broker: Broker, topic: TopicName
) -> None:
    first, second = [await broker.subscribe({at(topic): START}) for _ in range(2)]
    await first.close()
    await write(broker, topic, b"a")
    assert values(await take(second, 1)) == [b"a"]
    again = await broker.subscribe({at(topic): START})
    assert values(await take(again, 1)) == [b"a"]


async def test_a_slow_reader_loses_nothing_and_blocks_no_other(
    broker: Broker, topic: TopicName
) -> None:
    slow, fast = [await broker.subscribe({at(topic): START}) for _ in range(2)]
    sent = [b"%04d" % n + b"x" * 200 for n in range(300)]
    for start in range(0, 300, 50):
        await write(broker, topic, *sent[start : start + 50])
    assert values(await take(fast, 300)) == sent
    assert values(await take(slow, 300)) == sent


async def test_opening_a_producer_fences_the_earlier_one(broker: Broker, topic: TopicName) -> None:
    name = f"{topic}-owner"
    zombie = await broker.producer(name)
    await commit(broker, zombie, OutgoingRecord(topic, 0, b"before"))
    owner = await broker.producer(name)
    with pytest.raises(ProducerFenced):
        await zombie.commit([OutgoingRecord(topic, 0, b"zombie")])
    await commit(broker, owner, OutgoingRecord(topic, 0, b"owner"))
    assert [r.value for r in await read_range(broker, at(topic), START)] == [b"before", b"owner"]


async def test_a_range_can_be_read_again(broker: Broker, topic: TopicName) -> None:
    await write(broker, topic, b"a", b"b", b"c")
    end = await write(broker, topic, b"d")
    assert [r.value for r in await read_range(broker, at(topic), Offset(1), Offset(3))] == [
        b"b",
        b"c",
    ]
    assert [r.value for r in await read_range(broker, at(topic), Offset(3), end)] == [b"d"]
    assert await read_range(broker, at(topic, 1), START) == []


async def test_one_reader_reads_many_ranges_in_any_order(broker: Broker, topic: TopicName) -> None:
    sent = [b"%04d" % n + b"x" * 200 for n in range(100)]
    end = await write(broker, topic, *sent)
    await write(broker, topic, b"of the other partition", partition=1)
    reader = await broker.range_reader()
    for first, stop in [(0, 10), (10, 11), (11, 60), (70, 80), (90, end), (20, 30), (30, 30)]:
        span = Offset(first), Offset(stop)
        found = [r async for portion in reader.read(at(topic), *span) for r in portion]
        assert [r.value for r in found] == sent[first:stop], (first, stop)
        assert [r.offset for r in found] == list(range(first, stop))
    others = [r.value async for portion in reader.read(at(topic, 1), START) for r in portion]
    assert others == [b"of the other partition"]
    await reader.close()


async def test_a_reader_that_follows_a_closed_one_starts_at_its_own_position(
    broker: Broker, topic: TopicName
) -> None:
    sent = [b"%04d" % n for n in range(500)]
    await write(broker, topic, *sent)
    for start in (300, 10, 499, 0):
        before = await broker.subscribe({at(topic): Offset(450)})
        assert values([await before.next(1)]) == [sent[450]]
        await before.close()
        subscription = await broker.subscribe({at(topic): Offset(start)})
        assert values(await take(subscription, 500 - start)) == sent[start:]
        await subscription.close()


async def test_control_records_are_distinguished_from_rows(
    broker: Broker, topic: TopicName
) -> None:
    producer = await broker.producer(f"{topic}-control")
    await commit(
        broker,
        producer,
        OutgoingRecord(topic, 0, b"7", (("c", b"watermark"),)),
        OutgoingRecord(topic, 0, b"a"),
    )
    assert [(r.value, r.control) for r in await read_range(broker, at(topic), START)] == [
        (b"7", "watermark"),
        (b"a", None),
    ]


async def truncate(broker: Broker, topic: TopicName, start: int) -> None:
    """Delete the records of partition 0 below `start`."""
    if isinstance(broker, MemoryBroker | SimBroker):
        broker.log.truncate(at(topic), Offset(start))
        return
    admin = AdminClient(client_config(Settings()))
    for deleted in admin.delete_records([RdTopicPartition(topic, 0, start)]).values():
        await asyncio.to_thread(deleted.result, 10)


async def test_a_reader_that_needs_deleted_records_fails_and_is_never_moved_forward(
    broker: Broker, topic: TopicName
) -> None:
    end = await write(broker, topic, b"a", b"b", b"c", b"d")
    await truncate(broker, topic, 2)
    assert await broker.starts([at(topic), at(topic, 1)]) == {at(topic): 2, at(topic, 1): 0}
    with pytest.raises(
        OffsetTruncated, match="begins at 2: its records from 1 to 1 are deleted"
    ) as gone:
        await broker.subscribe({at(topic): Offset(1)})
    assert (gone.value.source, gone.value.first, gone.value.start) == (at(topic), 1, 2)
    with pytest.raises(OffsetTruncated):
        await read_range(broker, at(topic), Offset(0), end)
    subscription = await broker.subscribe({at(topic): Offset(2)})
    assert values(await take(subscription, 2)) == [b"c", b"d"]
    assert [r.value for r in await read_range(broker, at(topic), Offset(2), end)] == [b"c", b"d"]


async def test_a_position_beyond_the_end_belongs_to_another_log(
    broker: Broker, topic: TopicName
) -> None:
    end = await write(broker, topic, b"a")
    with pytest.raises(OffsetBeyondEnd):
        await broker.subscribe({at(topic): Offset(end + 7)})
