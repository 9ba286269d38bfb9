"""Topics of a user's own cluster: made, reached, and read by a program that only knows Kafka."""

from __future__ import annotations

import uuid

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fennel_core.connections.external_kafka import ExternalKafka
from fennel_core.connections.kafka import client_config
from fennel_core.settings.model import Settings
from tests.support.kafka import ADMIN, PASSWORD

PARTITIONS = 3
LOGIN = ("SASL_PLAINTEXT", "SCRAM-SHA-512")


def external(cluster: Settings) -> ExternalKafka:
    """Return the cluster as a connector of its administrator reaches it."""
    address = cluster.kafka_bootstrap
    return ExternalKafka("out", address, *LOGIN, ADMIN, PASSWORD)


def created(cluster: Settings) -> str:
    """Return the name of a new topic."""
    topic = f"out-{uuid.uuid4().hex[:8]}"
    admin = AdminClient(client_config(cluster))
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    return topic


def committed(cluster: Settings, topic: str) -> dict[bytes | None, list[bytes | None]]:
    """Return the values of each key, as a reader sees them that only knows Kafka."""
    consumer = Consumer(
        client_config(cluster)
        | {
            "group.id": "independent",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    left, found = set(range(PARTITIONS)), {}
    consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for part in left])
    while left:
        message = consumer.poll(30)
        assert message is not None, "the topic can be read to its end"
        error = message.error()
        if error is None:
            found.setdefault(message.key(), []).append(message.value())
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            left.discard(message.partition())
    consumer.close()
    return found
