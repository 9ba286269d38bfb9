"""What `engine.kafka.client` promises: the simulation's model of it, and librdkafka.

librdkafka runs against the mock cluster that it contains, so no broker is needed.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka import TopicPartition as RdTopicPartition

from fennel_core.connections.kafka import consumer_config
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.kafka.locating_consumer import LocatingConsumer
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import PartitionIndex, TopicName
from tests.sim.engine.faulty_components import Dice
from tests.sim.engine.model_client import ModelClient
from tests.sim.engine.model_log import ModelLog

COUNT = 300
WAIT_POLLS = 300
"""Polls without a message after which an expected one is missing: half a minute with librdkafka."""
TOPIC = TopicName("t")


@dataclass
class Subject:
    client: Any
    poll_s: float
    quiet_polls: int
    """Polls without a message after which none will come."""

    def take(self, count: int) -> list[int | str]:
        """Return the next `count` messages, however long a busy machine needs for them."""
        return self.drain(count, quiet_polls=WAIT_POLLS)

    def drain(self, most: int = 10 * COUNT, quiet_polls: int | None = None) -> list[int | str]:
        """Return offsets, and `end n` for the end of the partition."""
        found: list[int | str] = []
        quiet = 0
        while quiet < (quiet_polls or self.quiet_polls) and len(found) < most:
            message = self.client.poll(self.poll_s)
            if message is None:
                quiet += 1
                continue
            error = message.error()
            if error is None:
                found.append(message.offset())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                found.append(f"end {message.offset()}")
        return found


def at(offset: int | None = None) -> list[RdTopicPartition]:
    if offset is None:
        return [RdTopicPartition(TOPIC, 0)]
    return [RdTopicPartition(TOPIC, 0, offset)]


@pytest.fixture(params=["model", "librdkafka"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "librdkafka":
        cluster = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock"})
        (broker,) = cluster.list_topics(timeout=10).brokers.values()
        for number in range(COUNT):
            cluster.produce(TOPIC, b"%d" % number, partition=0)
        assert cluster.flush(10) == 0
        address = {"bootstrap.servers": f"{broker.host}:{broker.port}"}
        client = LocatingConsumer(consumer_config(Settings(), fetch_wait_ms=10) | address)
        yield Subject(client, 0.1, 5)
        client.close()
        return
    log = ModelLog(10_000)
    records = [OutgoingRecord(TOPIC, PartitionIndex(0), b"v")] * COUNT
    log.end(log.begin("w", log.open("w"), records, 0), "committed")
    dice = Dice(random.Random(1), 0.0, held_s=(0.0,))  # noqa: S311  # repeatable, and no secret

    yield Subject(ModelClient(log, dice, lambda: 0), 0.0, 3)


def test_delivery_begins_at_the_assigned_offset_and_reports_the_end_once(subject: Subject) -> None:
    subject.client.incremental_assign(at(290))
    *offsets, end = subject.take(COUNT - 290 + 1)
    assert offsets == list(range(290, COUNT))
    assert end in {f"end {COUNT}", f"end {COUNT + 1}"}, "the model has a transaction marker"
    assert subject.drain() == []


def test_a_reassigned_partition_delivers_nothing_that_was_fetched_before(subject: Subject) -> None:
    chosen = random.Random(7)  # noqa: S311  # repeatable, and no secret
    subject.client.incremental_assign(at(0))
    for _ in range(30):
        subject.drain(chosen.randrange(1, 5))
        subject.client.consume(chosen.randrange(1, 20), 0)
        time.sleep(chosen.choice([0, 0.01]))  # lets the client fetch ahead, or not
        offset = chosen.randrange(COUNT)
        subject.client.incremental_unassign(at())
        subject.client.incremental_assign(at(offset))
        assert subject.take(1) == [offset]


def test_a_paused_partition_delivers_nothing_and_resumes_after_the_last_message(
    subject: Subject,
) -> None:
    subject.client.incremental_assign(at(0))
    assert subject.take(10) == list(range(10))
    subject.client.pause(at())
    assert subject.drain() == []
    subject.client.resume(at())
    assert subject.take(290) == list(range(10, COUNT))
    (end,) = subject.take(1)
    subject.client.pause(at())
    subject.client.resume(at())
    assert subject.take(1) == [end], "the end is reported again after a pause"


def test_a_pause_outlives_an_assignment(subject: Subject) -> None:
    subject.client.incremental_assign(at(0))
    subject.take(1)
    subject.client.pause(at())
    subject.client.incremental_unassign(at())
    subject.client.incremental_assign(at(5))
    assert subject.drain() == []
    subject.client.resume(at())
    assert subject.take(1) == [5]


def test_the_end_of_the_log_is_known_without_a_request(subject: Subject) -> None:
    subject.client.incremental_assign(at(0))
    subject.take(1)
    assert subject.client.get_watermark_offsets(at()[0], cached=True)[1] >= COUNT
