"""What a sink needs on a Kafka cluster of the user's own: its topic, transactions, and a place for
its positions.

How far a sink got is stored on the cluster that it writes to, in the transaction of what it wrote,
as Kafka Connect stores the offsets of exactly-once source connectors. The topic of positions is one
for all sinks of a cluster. It must be compacted: if old records were deleted, a sink that had been
silent would begin again and write everything twice.
"""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic

from fennel_core.connections.external_kafka import (
    REQUEST_S,
    ExternalKafka,
    ExternalKafkaUnusable,
    ExternalTopic,
    describe_topic,
)
from fennel_core.connections.kafka import FETCH_MAX_BYTES

POSITIONS: Final = "fennel-sink-positions"
"""The topic of positions. One partition: its records are few, small and compacted."""
IDS: Final = "fennel-sink-"
"""How the transactional ids of sinks begin."""
TRANSACTION_S: Final = 60.0
"""After this time the cluster ends the transaction of a sink that died or froze."""
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(1024 * 1024),
}
"""A reader reads it as a whole, and the last segment is not compacted: so segments are small."""
CLUSTER_DEFAULT: Final = -1


def producer_config(kafka: ExternalKafka, transactional_id: str) -> dict[str, Any]:
    """Return the configuration of a transactional producer, with Java's partitioning of keys."""
    return kafka.client_config() | {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": int(TRANSACTION_S * 1000),
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 5,
        "compression.type": "zstd",
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 200_000,
        # The broker decides what is too large.
        "message.max.bytes": FETCH_MAX_BYTES,
        "log_level": 0,
    }


def check_sink_topic(kafka: ExternalKafka, topic: str) -> ExternalTopic:
    """Return what the cluster says about a topic that a sink may write to, exactly once.

    Nothing is created but the entry of a transactional id. Blocks for a few times `REQUEST_S`;
    raises `ExternalKafkaUnusable`.
    """
    described = describe_topic(kafka, topic)
    admin = AdminClient(kafka.client_config() | {"log_level": 0})
    _require_writable(kafka, admin, topic)
    _require_positions(kafka, admin, create=False)
    producer = Producer(producer_config(kafka, f"{IDS}check"))
    try:
        producer.init_transactions(REQUEST_S)
    except KafkaException as failed:
        raise ExternalKafkaUnusable(
            f"connector `{kafka.name}`: the cluster begins no transaction for this user: "
            f"{_text(failed)}; sinks write in transactions, so allow transactional ids that begin "
            f"with `{IDS}`"
        ) from failed
    return described


def ensure_positions_topic(kafka: ExternalKafka) -> None:
    """Create the topic of positions unless it exists; raises `ExternalKafkaUnusable`."""
    _require_positions(kafka, AdminClient(kafka.client_config() | {"log_level": 0}), create=True)


def _require_writable(kafka: ExternalKafka, admin: AdminClient, topic: str) -> None:
    """Raise unless the cluster says that the user may write to the topic."""
    request: Any = admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=REQUEST_S
    )
    try:
        allowed = request[topic].result(REQUEST_S).authorized_operations
    except (KafkaException, TimeoutError) as failed:
        raise ExternalKafkaUnusable(
            f"connector `{kafka.name}`: topic `{topic}` cannot be described: {_text(failed)}"
        ) from failed
    if allowed and AclOperation.WRITE not in allowed and AclOperation.ALL not in allowed:
        raise ExternalKafkaUnusable(
            f"connector `{kafka.name}`: its user may not write to topic `{topic}`; allow it"
        )


def _require_positions(kafka: ExternalKafka, admin: AdminClient, *, create: bool) -> None:
    """Raise unless the topic of positions exists and is compacted, or could be created.

    `create`: create it if it is missing.
    """
    try:
        found = admin.list_topics(POSITIONS, timeout=REQUEST_S).topics.get(POSITIONS)
        if found is None or found.error is not None:
            _create(admin, only_check=not create)
            return
        resource = ConfigResource(ResourceType.TOPIC, POSITIONS)
        (described,) = admin.describe_configs([resource], request_timeout=REQUEST_S).values()
        policy = described.result(REQUEST_S)["cleanup.policy"].value
    except (KafkaException, TimeoutError) as failed:
        raise ExternalKafkaUnusable(
            f"connector `{kafka.name}`: sinks keep their positions in topic `{POSITIONS}` of the "
            f"cluster, which cannot be used: {_text(failed)}; create it with one partition and "
            "cleanup.policy=compact, and allow to describe it and its configuration"
        ) from failed
    if policy != "compact":
        raise ExternalKafkaUnusable(
            f"connector `{kafka.name}`: topic `{POSITIONS}` has cleanup.policy={policy}, so the "
            "positions of sinks would be deleted; set cleanup.policy=compact"
        )


def _create(admin: AdminClient, *, only_check: bool) -> None:
    """Create the topic of positions. Raises KafkaException."""
    topic = NewTopic(POSITIONS, 1, CLUSTER_DEFAULT, config=COMPACTED)
    futures = admin.create_topics([topic], request_timeout=REQUEST_S, validate_only=only_check)
    try:
        futures[POSITIONS].result(REQUEST_S)
    except KafkaException as failed:
        if failed.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def _text(failed: Exception) -> str:
    return str(failed.args[0].str()) if isinstance(failed, KafkaException) else str(failed)
