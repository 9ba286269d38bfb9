"""What a cluster says about a topic that is a source."""

import uuid

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fennel_core.connections.external_kafka import (
    ExternalKafka,
    ExternalKafkaUnusable,
    ExternalTopic,
    describe_topic,
)
from fennel_core.settings.model import Settings
from tests.support.polling import eventually_sync

pytestmark = [pytest.mark.platform, pytest.mark.usefixtures("infra")]


def described(kafka: ExternalKafka, topic: str) -> ExternalTopic | None:
    """Return what the cluster says once it knows the topic."""
    try:
        return describe_topic(kafka, topic)
    except ExternalKafkaUnusable:
        return None


def test_a_topic_that_is_created_again_is_another_stream() -> None:
    address, topic = Settings().kafka_bootstrap, f"orders-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": address})
    kafka = ExternalKafka("shop", address, "PLAINTEXT", "", "", "")
    with pytest.raises(ExternalKafkaUnusable, match="has no topic"):
        describe_topic(kafka, topic)
    found = []
    for partitions in (2, 3):
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
        found.append(eventually_sync(lambda: described(kafka, topic)))
        admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
    first, second = found
    assert (first.partitions, second.partitions) == (2, 3)
    assert first.origin.partition("/")[0] == second.origin.partition("/")[0]
    assert first.origin != second.origin
