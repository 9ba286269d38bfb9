"""A component of the platform can do with Kafka's topics what its rules say, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.errors import TopicAccessDenied
from fennel_core.connections.kafka import client_config, consumer_config, producer_config
from fennel_core.history.kafka import LogBounds, TopicReader
from fennel_core.ledger.kafka import KafkaTopicAdmin
from fennel_core.ledger.kafka_access import ACCESS, rules_of, user_of, write_access
from fennel_core.ledger.topics import TopicSpec
from fennel_core.query.errors import KafkaAccessDenied, ViewOutdated
from fennel_core.query.kafka import KafkaEnds, KafkaTails
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition, WorkspaceId
from tests.support.kafka import secured_kafka, settings_of

__all__ = ["secured_kafka"]  # the fixture
pytestmark = pytest.mark.timeout(300)
WITHIN_S = 30.0
SHOP, OTHER = WorkspaceId("shop"), WorkspaceId("other")
KINDS = [kind for kind in AssetKind if kind is not AssetKind.JOB]
PASSWORDS = {component: f"password-of-{component}" for component in ACCESS}
REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}


def client(admin: Settings, component: str) -> Settings:
    port = int(admin.kafka_bootstrap.rpartition(":")[2])
    return settings_of(port, user_of(component), PASSWORDS[component])


@pytest.fixture(scope="module")
def cluster(secured_kafka: Settings) -> Settings:
    """A cluster with the rules of a workspace, and with topics of it and of another one."""
    for _ in range(2):  # It may be repeated.
        asyncio.run(write_access(secured_kafka, rules_of([SHOP]), PASSWORDS))
    topics = [NewTopic(f"{name}.{kind}.a.1", 1) for name in (SHOP, OTHER) for kind in KINDS]
    # They stay empty.
    topics += [NewTopic(f"{SHOP}.{kind}.empty.1", 1) for kind in (AssetKind.RAW, AssetKind.TOPIC)]
    admin = AdminClient(client_config(secured_kafka))
    for created in admin.create_topics(topics).values():
        created.result(WITHIN_S)
    return secured_kafka


def allowed(action: Callable[[Settings, str], None], settings: Settings, name: str) -> bool:
    """Return whether the broker allows an action; any other failure propagates."""
    try:
        action(settings, name)
    except KafkaException as failed:
        if failed.args[0].code() in REFUSED:
            return False
        raise
    return True


def write(settings: Settings, topic: str) -> None:
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(client_config(settings) | {"enable.idempotence": True, "log_level": 0})
    producer.produce(topic, b"row", on_delivery=delivered)
    assert producer.flush(WITHIN_S) == 0, "the broker responds"
    if failures:
        raise KafkaException(failures[0])


def read(settings: Settings, topic: str) -> None:
    consumer = Consumer(consumer_config(settings) | {"log_level": 0})
    try:
        # The library reports no error for a topic that it may not even describe.
        described = consumer.list_topics(topic, timeout=WITHIN_S).topics[topic]
        if described.error is not None:
            raise KafkaException(described.error)
        consumer.assign([RdTopicPartition(topic, 0, 0)])
        found = consumer.poll(WITHIN_S)
        assert found is not None, "a row, the end of the partition, or a refusal"
        if found.error() and found.error().code() != KafkaError._PARTITION_EOF:
            raise KafkaException(found.error())
    finally:
        consumer.close()


def begin(settings: Settings, transactional_id: str) -> None:
    config = producer_config(settings, transactional_id) | {"log_level": 0}
    Producer(config).init_transactions(WITHIN_S)


def create(settings: Settings, topic: str) -> None:
    admin = AdminClient(client_config(settings) | {"log_level": 0})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(WITHIN_S)


def delete(settings: Settings, topic: str) -> None:
    admin = AdminClient(client_config(settings) | {"log_level": 0})
    admin.delete_topics([topic])[topic].result(WITHIN_S)


def test_components_read_and_write_their_topics_only(cluster: Settings) -> None:
    may = {"reads": read, "writes": write}
    found = {
        (component, word, f"{workspace}.{kind}")
        for component in ("ingest", "engine", "query", "history", "sources")
        for word, action in may.items()
        for workspace in (SHOP, OTHER)
        for kind in KINDS
        if allowed(action, client(cluster, component), f"{workspace}.{kind}.a.1")
    }
    assert found == {
        ("ingest", "writes", "shop.raw"),
        ("ingest", "writes", "shop.topic"),
        ("ingest", "writes", "shop.dead"),
        ("engine", "reads", "shop.raw"),
        ("engine", "reads", "shop.topic"),
        ("engine", "writes", "shop.topic"),
        ("engine", "reads", "shop.replaylog"),
        ("engine", "writes", "shop.replaylog"),
        ("engine", "writes", "shop.dead"),
        ("query", "reads", "shop.topic"),
        ("query", "writes", "shop.querylog"),
        ("history", "reads", "shop.raw"),
        ("history", "reads", "shop.topic"),
        ("history", "reads", "shop.querylog"),
        ("sources", "writes", "shop.raw"),
        ("sources", "writes", "shop.topic"),
        ("sources", "writes", "shop.dead"),
        ("sources", "reads", "shop.topic"),
        ("sources", "reads", "shop.dead"),
        ("sources", "reads", "shop.sink"),
        ("sources", "writes", "shop.sink"),
        ("sources", "reads", "shop.positions"),
        ("sources", "writes", "shop.positions"),
    }


async def ends_of(settings: Settings, *places: TopicPartition) -> Mapping[TopicPartition, int]:
    return await KafkaEnds(settings).ends(places)


def test_a_query_server_gets_the_ends_that_barriers_wait_for(cluster: Settings) -> None:
    # What a source replay reads, and what every other job reads.
    places = [(TopicName(f"shop.{kind}.empty.1"), 0) for kind in (AssetKind.RAW, AssetKind.TOPIC)]
    found = asyncio.run(ends_of(client(cluster, "query"), *places))
    assert found == dict.fromkeys(places, 0)


@pytest.mark.parametrize("topic", ["other.topic.a.1", "shop.replaylog.a.1"])
def test_a_topic_that_a_query_server_may_not_describe_is_not_called_deleted(
    cluster: Settings, topic: str
) -> None:
    settings = client(cluster, "query")
    command = f"fennel-core kafka-access {topic.partition('.')[0]}"
    expected = f"`fennel-query` has no right to .* `{topic}`: run `{command}`"
    with pytest.raises(KafkaAccessDenied, match=expected):
        asyncio.run(ends_of(settings, (TopicName(topic), 0)))
    with pytest.raises(KafkaAccessDenied, match=expected):
        asyncio.run(KafkaTails(settings).tail(TopicName(topic), 1, 1))


def test_a_topic_that_does_not_exist_is_called_deleted(cluster: Settings) -> None:
    with pytest.raises(ViewOutdated, match="deleted"):
        asyncio.run(ends_of(client(cluster, "query"), (TopicName("shop.topic.gone.1"), 0)))


def test_a_reader_of_history_is_refused_instead_of_reading_nothing(cluster: Settings) -> None:
    reader = TopicReader(client(cluster, "history"))
    readable, foreign = TopicName("shop.topic.empty.1"), TopicName("other.topic.a.1")
    bounds = reader.bounds([readable, TopicName("shop.topic.gone.1")])
    assert bounds == {(readable, 0): LogBounds(Offset(0), Offset(0))}
    with pytest.raises(TopicAccessDenied, match=r"`fennel-history` .*kafka-access other`"):
        reader.bounds([readable, foreign])
    assert reader.permitted_bounds([readable, foreign]) == bounds


def test_only_definition_creates_and_deletes_topics(cluster: Settings) -> None:
    for component in ("ingest", "engine", "query", "history", "sources"):
        settings = client(cluster, component)
        assert not allowed(create, settings, "shop.topic.b.1")
        assert not allowed(delete, settings, "shop.topic.a.1")
    definition = client(cluster, "definition")
    assert allowed(create, definition, "shop.topic.b.1")
    assert allowed(read, definition, "shop.topic.b.1"), "dead letters are counted"
    assert allowed(delete, definition, "shop.topic.b.1")
    assert not allowed(create, definition, "other.topic.b.1"), "before its rules"
    assert not allowed(write, definition, "shop.raw.a.1")
    assert allowed(create, definition, "fennel-audit-1")
    assert allowed(write, definition, "fennel-audit-1")


def test_a_commit_to_a_workspace_without_rules_names_the_command(cluster: Settings) -> None:
    topic = TopicSpec(TopicName("other.topic.b.1"), AssetKind.TOPIC, 1)
    refused = KafkaTopicAdmin(client(cluster, "definition")).create_now([topic])
    assert "run `fennel-core kafka-access other`" in refused[topic.name]


def test_transactions_belong_to_their_component(cluster: Settings) -> None:
    ingest, engine = client(cluster, "ingest"), client(cluster, "engine")
    assert allowed(begin, ingest, "ingest.process.0")
    assert allowed(begin, engine, "shop.job.a.1-0")
    sources = client(cluster, "sources")
    assert allowed(begin, sources, "shop.raw.a.1.0")
    assert allowed(begin, sources, "shop.dead.a.1.0"), "it settles dead letters of sinks"
    assert not allowed(begin, sources, "ingest.process.0"), "it would fence ingest"
    assert not allowed(begin, sources, "shop.job.a.1-0"), "it would fence a job partition"
    assert not allowed(begin, engine, "ingest.process.0"), "it would fence ingest"
    assert not allowed(begin, ingest, "shop.job.a.1-0"), "it would fence a job partition"
    assert not allowed(begin, engine, "other.job.a.1-0")
