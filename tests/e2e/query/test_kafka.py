"""Ends and tails of real topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fennel_core.connections.kafka import client_config, producer_config
from fennel_core.query.errors import ViewOutdated
from fennel_core.query.kafka import FIRST_STEP, KafkaEnds, KafkaTails
from fennel_core.settings.model import Settings
from fennel_core.vocab import versions
from fennel_core.vocab.ids import TopicName
from fennel_core.vocab.position import Hlc, stamp

pytestmark = pytest.mark.platform
PARTITIONS = 2


class Topic:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = TopicName(f"qtest.{uuid.uuid4().hex[:12]}")
        self.admin = AdminClient(client_config(settings))
        for made in self.admin.create_topics([NewTopic(self.name, PARTITIONS, 1)]).values():
            made.result()
        self.producer = Producer(producer_config(settings, self.name))
        self.producer.init_transactions()
        self.batches = 0

    def write(self, part: int, *, commit: bool = True, data: bool = True) -> None:
        """One batch of two rows (or a control record) in one transaction."""
        self.batches += 1
        rows = pa.table({"n": pa.array([self.batches * 2, self.batches * 2 + 1], pa.int64())})
        batch = versions.with_meta(rows, stamp(Hlc(self.batches << 16), 0, 2))
        self.producer.begin_transaction()
        headers = [versions.FORMAT_HEADER] if data else [("c", b"watermark")]
        self.producer.produce(
            self.name,
            value=versions.encode(batch) if data else b"\x01",
            partition=part,
            headers=headers,
        )
        self.producer.flush()
        if commit:
            self.producer.commit_transaction()
        else:
            self.producer.abort_transaction()


@pytest.fixture
def topic(infra: None) -> Iterator[Topic]:
    made = Topic(Settings())
    yield made
    for gone in made.admin.delete_topics([made.name]).values():
        gone.result()


async def test_an_end_covers_what_was_acknowledged_the_moment_it_was(topic: Topic) -> None:
    ends = KafkaEnds(topic.settings)
    places = [(topic.name, part) for part in range(PARTITIONS)]
    assert await ends.ends(places) == {(topic.name, 0): 0, (topic.name, 1): 0}
    before = 0
    for _ in range(20):
        topic.write(1)
        now = (await ends.ends(places))[topic.name, 1]
        assert now > before, "the end right after a commit lies behind its rows"
        before = now
    assert await ends.ends([]) == {}


async def test_the_end_of_a_deleted_topic_makes_the_view_outdated(topic: Topic) -> None:
    with pytest.raises(ViewOutdated):
        await KafkaEnds(topic.settings).ends([(TopicName(f"{topic.name}.never"), 0)])


async def test_a_tail_holds_committed_batches_only(topic: Topic) -> None:
    tails = KafkaTails(topic.settings)
    assert await tails.tail(topic.name, PARTITIONS, 10) is None
    topic.write(0)
    topic.write(1, commit=False)
    topic.write(1, data=False)
    topic.write(1)
    frame = await tails.tail(topic.name, PARTITIONS, 10)
    assert frame is not None
    assert sorted(frame["n"].to_list()) == [2, 3, 8, 9]
    tails.close()


async def test_a_tail_reads_on_until_there_are_rows_enough(topic: Topic) -> None:
    tails = KafkaTails(topic.settings)
    topic.write(0)
    for _ in range(FIRST_STEP):
        topic.write(0, commit=False)
    frame = await tails.tail(topic.name, PARTITIONS, 2)
    assert frame is not None
    assert sorted(frame["n"].to_list()) == [2, 3]
    tails.close()
