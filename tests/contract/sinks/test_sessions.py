"""The contract of sink sessions: in memory, over Kafka's transactions, to HTTP, in a table."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from fennel_core.connections import s3
from fennel_core.connections.errors import TransactionAborted, TransactionOutcomeUnknown
from fennel_core.connections.external_delta import ExternalDelta
from fennel_core.connections.external_http import ExternalHttp, HttpEndpoint
from fennel_core.connections.external_kafka import ExternalKafka, ExternalKafkaUnusable
from fennel_core.connections.external_s3 import ExternalBucket
from fennel_core.connections.external_sinks import POSITIONS, check_sink_topic
from fennel_core.connections.http_addresses import AllowedHosts
from fennel_core.connections.kafka import FETCH_MAX_BYTES, client_config, consumer_config
from fennel_core.settings.model import Settings
from fennel_core.sinks import kafka as sinks_kafka
from fennel_core.sinks.debezium import SinkRecord
from fennel_core.sinks.deliveries import (
    EVENT,
    NUMBER,
    KafkaDeliveryLog,
    LettersOf,
    RefusedEvent,
)
from fennel_core.sinks.delta import DeltaSinkLog
from fennel_core.sinks.delta_rows import AddedRows
from fennel_core.sinks.errors import SinkMessageTooLarge
from fennel_core.sinks.http import HttpSinkLog
from fennel_core.sinks.kafka import KafkaPositionCopy, KafkaSinkLog
from fennel_core.sinks.positions import SinkPosition
from fennel_core.sinks.store import MemorySinkLog, SinkLog
from fennel_core.vocab import dtypes as d
from fennel_core.vocab.change_columns import change_columns
from fennel_core.vocab.dead_letters import DeadLetterKind, origin_of
from fennel_core.vocab.dtypes import Field
from fennel_core.vocab.ids import DatasetName, TopicName
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import decode
from tests.support.delta_log import read_rows
from tests.support.external_topics import LOGIN, PARTITIONS, committed, created, external
from tests.support.http_receivers import Receiver, served
from tests.support.kafka import secured_kafka
from tests.support.polling import eventually_sync
from tests.support.s3 import S3Server, bucket_settings

__all__ = ["secured_kafka"]
UNKEYED = b'"unkeyed"'
"""The change without a key."""


@dataclass
class Place:
    """A sink, and what an independent reader of committed records finds there, by key.

    `batch` makes what the sink writes of records.
    """

    log: SinkLog[Any]
    read: Callable[[], dict[bytes | None, list[bytes | None]]]
    tombstones: bool = True
    """A key without a value is written."""
    fences: bool = True
    """Opening a session ends the earlier ones; otherwise the first that commits does."""
    batch: Callable[[Sequence[SinkRecord]], Any] = lambda records: records


def sink(cluster: Settings, topic: str) -> KafkaSinkLog:
    name, of = TopicName(f"t.sink.{topic}.1"), TopicName("t.topic.x.1")
    return KafkaSinkLog(external(cluster), topic, "installation", name, of)


def http_sink(
    cluster: Settings, to: Callable[[], HttpEndpoint], clock: Callable[[], float]
) -> HttpSinkLog:
    """Return a sink whose position and dead letters are in new topics of a cluster."""
    position, letters = TopicName(created(cluster)), TopicName(created(cluster))
    deliveries = KafkaDeliveryLog(
        cluster,
        position,
        TopicName("t.topic.x.1"),
        (LettersOf(position, "hooks/rows", DatasetName("Users")), letters, PARTITIONS),
        asyncio.run,
    )
    return HttpSinkLog("hooks/rows", position, "url", to, deliveries, clock=clock)


@pytest.fixture
def http_place(secured_kafka: Settings) -> Iterator[Place]:
    receiver, ticks = Receiver(), itertools.count(0, 10)
    with served(receiver) as port:
        url = f"http://127.0.0.1:{port}/rows"
        allowed = AllowedHosts((), (f"127.0.0.1:{port}",))
        external = ExternalHttp("hooks/rows", url, url, (), "")
        log = http_sink(
            secured_kafka, lambda: HttpEndpoint(external, allowed), lambda: float(next(ticks))
        )

        def received() -> dict[bytes | None, list[bytes | None]]:
            found: dict[bytes | None, list[bytes | None]] = {}
            for value in (json.dumps(event).encode() for event in receiver.events()):
                found.setdefault(None if value == UNKEYED else b"k", []).append(value)
            return found

        yield Place(log, received, tombstones=False)


BYTES = Schema((Field("k", d.Bytes()),), (Field("v", d.Bytes()),), "at")


def table_rows(records: Sequence[SinkRecord]) -> AddedRows:
    columns = change_columns(BYTES)
    rows = [dict.fromkeys(columns.names) | {"k": each.key, "v": each.value} for each in records]
    return AddedRows(pa.Table.from_pylist(rows, columns))


def delta_place(server: S3Server) -> Place:
    settings = bucket_settings(server)
    client = s3.client(settings)
    s3.ensure_bucket(client, settings.s3_bucket)
    access = (settings.s3_endpoint, settings.s3_region, settings.s3_access_key)
    bucket = ExternalBucket("lake", settings.s3_bucket, *access, settings.s3_secret_key)
    path = f"tables/{uuid.uuid4().hex}"
    name, of = TopicName("t.sink.x.1"), TopicName("t.topic.x.1")
    log = DeltaSinkLog(ExternalDelta(bucket, path), BYTES, "installation", name, of)

    def written() -> dict[bytes | None, list[bytes | None]]:
        found: dict[bytes | None, list[bytes | None]] = {}
        for row in read_rows(client, settings.s3_bucket, path):
            found.setdefault(row["k"], []).append(row["v"])
        return found

    return Place(log, written, batch=table_rows, fences=False)


@pytest.fixture(params=["memory", "kafka", "http", "delta"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "http":
        found: Place = request.getfixturevalue("http_place")
        return found
    if request.param == "delta":
        return delta_place(request.getfixturevalue("s3_server"))
    if request.param == "memory":
        log = MemorySinkLog()

        def written() -> dict[bytes | None, list[bytes | None]]:
            found: dict[bytes | None, list[bytes | None]] = {}
            for record in log.records:
                found.setdefault(record.key, []).append(record.value)
            return found

        return Place(log, written)
    cluster = request.getfixturevalue("secured_kafka")
    topic = created(cluster)
    return Place(sink(cluster, topic), lambda: committed(cluster, topic))


def rows(*values: bytes) -> list[SinkRecord]:
    return [SinkRecord(b"k", value, 0, 0) for value in values]


def at(origin: str, offset: int) -> SinkPosition:
    return SinkPosition(origin, {0: offset})


def test_a_position_is_read_back_by_the_next_session(place: Place) -> None:
    first = place.log.open()
    assert first.position is None
    first.commit(place.batch(rows(b'"a"', b'"b"')), at(first.origin, 3))
    records = [*rows(b'"c"'), SinkRecord(None, UNKEYED, 5, 0)]
    first.commit(place.batch(records), at(first.origin, 7))
    assert first.position == at(first.origin, 7)
    first.close()
    assert place.log.open().position == at(first.origin, 7)
    assert place.read() == {b"k": [b'"a"', b'"b"', b'"c"'], None: [UNKEYED]}


def test_a_deleted_key_has_no_value(place: Place) -> None:
    session = place.log.open()
    records = [*rows(b'"a"'), SinkRecord(b"k", None)]
    session.commit(place.batch(records), at(session.origin, 1))
    assert place.read() == {b"k": [b'"a"', None] if place.tombstones else [b'"a"']}


def test_an_earlier_session_cannot_commit(place: Place) -> None:
    zombie = place.log.open()
    zombie.commit(place.batch(rows(b'"a"')), at(zombie.origin, 1))
    owner = place.log.open()
    assert owner.position == at(owner.origin, 1)
    if not place.fences:
        owner.commit(place.batch(rows(b'"b"')), at(owner.origin, 2))
    with pytest.raises((TransactionAborted, TransactionOutcomeUnknown)):
        zombie.commit(place.batch(rows(b'"zombie"')), at(zombie.origin, 2))
    zombie.close()
    if place.fences:
        owner.commit(place.batch(rows(b'"b"')), at(owner.origin, 2))
    assert place.log.open().position == at(owner.origin, 2)
    assert place.read() == {b"k": [b'"a"', b'"b"']}


@pytest.mark.parametrize("first", ["rows", "position"])
@pytest.mark.parametrize("second", ["rows", "position"])
def test_of_two_sessions_at_one_position_one_commits(
    s3_server: S3Server, first: str, second: str
) -> None:
    place = delta_place(s3_server)
    winner, other = place.log.open(), place.log.open()
    written, refused = (
        None if kind == "position" else place.batch(rows(b'"a"')) for kind in (first, second)
    )
    winner.commit(written, at(winner.origin, 1))
    with pytest.raises((TransactionAborted, TransactionOutcomeUnknown)):
        other.commit(refused, at(other.origin, 1))
    assert place.read() == ({} if first == "position" else {b"k": [b'"a"']})


def test_a_position_alone_is_committed_with_all_that_it_has(place: Place) -> None:
    session = place.log.open()
    position = SinkPosition(session.origin, {0: 5, 3: 2**40}, 9, 77, rewound=2**50)
    session.commit(None, position)
    moved = position.moved({3: 2**40 + 1}, 0, 1)
    session.commit(place.batch(rows(b'"a"')), moved)
    assert place.log.open().position == moved
    assert place.read() == {b"k": [b'"a"']}


def test_what_a_frozen_writer_had_sent_is_aborted(secured_kafka: Settings) -> None:
    topic = created(secured_kafka)
    log = sink(secured_kafka, topic)
    frozen = log.open()
    producer = frozen._producer
    producer.begin_transaction()
    producer.produce(topic, b"sent", key=b"k")
    producer.produce(POSITIONS, b"{}", key=frozen._key, partition=0)
    assert producer.flush(30) == 0
    owner = log.open()
    assert owner.position is None
    owner.commit(rows(b"sent"), at(owner.origin, 1))
    assert committed(secured_kafka, topic) == {b"k": [b"sent"]}


def test_a_session_that_failed_holds_back_no_reader(secured_kafka: Settings) -> None:
    topic = created(secured_kafka)
    session = sink(secured_kafka, topic).open()
    produce = session._produce

    def sent(record: SinkRecord, delivered: object) -> None:
        if record.value == b"refused":
            raise KafkaException(KafkaError(KafkaError.INVALID_RECORD))
        produce(record, delivered)
        assert session._producer.flush(30) == 0

    session._produce = sent  # type: ignore[method-assign]  # one refusal
    with pytest.raises(TransactionAborted):
        session.commit(rows(b"half", b"refused"), at(session.origin, 1))
    session.close()
    other = Producer(client_config(secured_kafka) | {"partitioner": "murmur2_random"})
    other.produce(topic, b"other", key=b"k")
    assert other.flush(30) == 0
    assert committed(secured_kafka, topic) == {b"k": [b"other"]}


def test_a_topic_that_was_made_again_ends_the_session(
    secured_kafka: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks_kafka, "DESCRIBED_S", 0.0)
    topic = created(secured_kafka)
    first = sink(secured_kafka, topic).open()
    first.commit(rows(b"1"), at(first.origin, 1))
    admin = AdminClient(client_config(secured_kafka))
    admin.delete_topics([topic])[topic].result(30)
    eventually_sync(lambda: topic not in admin.list_topics(timeout=30).topics)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    eventually_sync(
        lambda: len(admin.list_topics(timeout=30).topics[topic].partitions) == PARTITIONS
    )
    with pytest.raises(TransactionAborted, match="created again"):
        first.commit(rows(b"2"), at(first.origin, 2))
    first.close()
    assert committed(secured_kafka, topic) == {}
    second = sink(secured_kafka, topic).open()
    assert second.position == at(first.origin, 1)
    assert second.origin != first.origin
    second.close()


def test_a_change_that_is_too_large_is_named_with_its_size(secured_kafka: Settings) -> None:
    topic = created(secured_kafka)
    admin = AdminClient(client_config(secured_kafka))

    def take(size_bytes: int) -> None:
        entry = ConfigEntry(
            "max.message.bytes",
            str(size_bytes),
            incremental_operation=AlterConfigOpType.SET,
        )
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)

    log, large = sink(secured_kafka, topic), random.Random(3).randbytes(2_000_000)  # noqa: S311  # no secret
    take(1_000_000)
    for value, size_bytes in ((large, 2_000_000), (b"x" * 40_000_000, 40_000_001)):
        session = log.open()
        with pytest.raises(SinkMessageTooLarge, match=f"topic `{topic}` has {size_bytes} bytes"):
            session.commit(rows(value), at(session.origin, 1))
        session.close()
    take(8_000_000)
    session = log.open()
    session.commit(rows(large), at(session.origin, 1))
    assert committed(secured_kafka, topic) == {b"k": [large]}


def test_an_open_transaction_of_another_sink_hides_no_position(secured_kafka: Settings) -> None:
    topic = created(secured_kafka)
    log = sink(secured_kafka, topic)
    session = log.open()
    other = Producer(client_config(secured_kafka) | {"transactional.id": f"other-{topic}"})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(POSITIONS, b"{}", key=b"other", partition=0)
    assert other.flush(30) == 0
    session.commit(rows(b"a"), at(session.origin, 5))
    found: list[SinkPosition | None] = []
    opening = threading.Thread(target=lambda: found.append(log.open().position), daemon=True)
    opening.start()
    opening.join(1.0)  # long enough to open a session that does not wait
    assert opening.is_alive()
    other.abort_transaction(30)
    opening.join(60)
    assert found == [at(session.origin, 5)]


def test_a_cluster_is_checked_before_anything_is_written(secured_kafka: Settings) -> None:
    kafka = external(secured_kafka)
    with pytest.raises(ExternalKafkaUnusable, match="has no topic"):
        check_sink_topic(kafka, "no-such-topic")
    assert check_sink_topic(kafka, created(secured_kafka)).partitions == PARTITIONS
    wrong = ExternalKafka("out", kafka.bootstrap_servers, *LOGIN, "unknown", "wrong")
    with pytest.raises(ExternalKafkaUnusable, match="check its address"):
        check_sink_topic(wrong, "any")


def test_positions_that_would_be_deleted_are_refused(secured_kafka: Settings) -> None:
    topic, kafka = created(secured_kafka), external(secured_kafka)
    sink(secured_kafka, topic).open()
    admin = AdminClient(client_config(secured_kafka))

    def keep(policy: str) -> None:
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, POSITIONS, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)

    keep("delete")
    try:
        with pytest.raises(ExternalKafkaUnusable, match="would be deleted"):
            check_sink_topic(kafka, topic)
    finally:
        keep("compact")
    assert check_sink_topic(kafka, topic)


def test_the_copy_of_a_position_is_that_of_its_topic(secured_kafka: Settings) -> None:
    name = TopicName(created(secured_kafka))
    copy = KafkaPositionCopy(secured_kafka, name, TopicName("t.topic.a.1"))
    assert copy.read() is None
    copy.write(at("cluster/topic", 4))
    assert copy._producer is not None
    assert copy._producer.flush(30) == 0
    again = KafkaPositionCopy(secured_kafka, name, TopicName("t.topic.a.1"))
    assert again.read() == at("cluster/topic", 4)
    assert KafkaPositionCopy(secured_kafka, name, TopicName("t.topic.b.1")).read() is None


def test_rows_that_an_endpoint_refuses_are_dead_letters_with_their_place(
    secured_kafka: Settings,
) -> None:
    receiver = Receiver(lambda _, body: (422, {"text": "no"}) if b"bad" in body else None)
    with served(receiver) as port:
        url = f"http://127.0.0.1:{port}/rows"
        external = ExternalHttp("hooks/rows", url, url, (), "")
        allowed = AllowedHosts((), (f"127.0.0.1:{port}",))
        log = http_sink(secured_kafka, lambda: HttpEndpoint(external, allowed), time.monotonic)
        session = log.open()
        values = [f'{{"row":{n}}}'.encode() for n in range(5)] + [b'{"row":"bad"}']
        session.commit([SinkRecord(b"k", v, 1, 7) for v in values], at(session.origin, 1))
        session.close()
    assert [event["row"] for event in receiver.events()] == [0, 1, 2, 3, 4]
    deliveries = log._deliveries
    assert isinstance(deliveries, KafkaDeliveryLog)
    _, topic, _ = deliveries._letters
    consumer = Consumer(consumer_config(secured_kafka))
    consumer.assign([RdTopicPartition(topic, 1, 0)])
    letter = consumer.poll(30)
    consumer.close()
    assert letter is not None
    origin = origin_of([(name, bytes(value)) for name, value in letter.headers() or ()])
    assert origin.kind is DeadLetterKind.NOT_DELIVERED
    assert origin.subject == "Users"
    assert origin.reason == "it responds with status 422: no"
    assert origin.source == "partition 1, offset 7"
    assert origin.sink == "hooks/rows"
    rows = decode(letter.value() or b"")
    assert (rows[EVENT].to_list(), rows[NUMBER].to_list()) == (['{"row":"bad"}'], [5])


def test_refused_changes_of_any_size_together_are_dead_letters(secured_kafka: Settings) -> None:
    def unused() -> HttpEndpoint:
        raise AssertionError("nothing is sent")

    deliveries = http_sink(secured_kafka, unused, time.monotonic)._deliveries
    assert isinstance(deliveries, KafkaDeliveryLog)
    _, topic, _ = deliveries._letters
    entry = ConfigEntry(
        "max.message.bytes",
        str(FETCH_MAX_BYTES),
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient(client_config(secured_kafka))
    admin.incremental_alter_configs([resource])[resource].result(30)
    # Random text, which is not compressed to less than a message may have.
    texts = [b'"%s"' % base64.b64encode(os.urandom(3 * 1024 * 1024)) for _ in range(10)]
    session = deliveries.open()
    session.commit(
        SinkPosition("url"), [RefusedEvent(text, 0, 7, "no", n) for n, text in enumerate(texts)]
    )
    session.close()
    letters = [each for own in committed(secured_kafka, topic).values() for each in own]
    found = [text.encode() for each in letters for text in decode(each or b"")[EVENT].to_list()]
    assert found == texts
