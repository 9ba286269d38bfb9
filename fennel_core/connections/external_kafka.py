"""A Kafka cluster of the user's own: how its clients authenticate, and whether it can be reached.

The connector of a definition names the cluster; its credentials are opened here and nowhere else.
Two clients read the cluster: librdkafka (checks and metadata) and Kafka's Java client (Spark).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata

from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.kafka import jaas_config
from fennel_core.wire.connectors import Credential, Kafka, PlainSecret, SealedSecret, SecretRef

REQUEST_S: Final = 10.0
"""How long a request to a cluster may take: a commit waits for it, and clients wait for a commit.
"""
ORDER_S: Final = 30.0
"""How long the requests about all partitions of a topic may take together."""
POLL_S: Final = 0.5
PLAINTEXT: Final = "PLAINTEXT"
LOOKED_BACK: Final = 20
"""Offsets of a partition in which the newest messages are looked for: few, as they may be large."""
TRIAL_GROUP: Final = "spark-kafka-fennel-trial"
"""A name that the rights of the connector's user cover; librdkafka requires one."""
OpenSecret = Callable[[SealedSecret], str]
"""Returns the text of a sealed secret; raises `secrets.SecretUnreadable`."""


class ExternalKafkaUnusable(ConnectionsError):
    """A cluster of the user's own cannot be reached, refuses the credentials or lacks the topic.

    The text names the connector and what to change. A retry helps if the cluster was down.
    """

    code: ClassVar[str] = "source-unreachable"


class ExternalKafkaAway(ExternalKafkaUnusable):
    """The cluster does not respond, or refuses the credentials, whatever the topic is."""


@dataclass(frozen=True, slots=True)
class ExternalKafka:
    """An external cluster with opened credentials."""

    name: str
    """Of the connector."""
    bootstrap_servers: str
    security_protocol: str
    sasl_mechanism: str
    user: str
    password: str = field(repr=False)

    def client_config(self) -> dict[str, Any]:
        """Return the configuration of a client of librdkafka."""
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "log.connection.close": False,
            "allow.auto.create.topics": False,
            "socket.connection.setup.timeout.ms": int(REQUEST_S * 1000),
            "reconnect.backoff.max.ms": 500,
            "security.protocol": self.security_protocol,
        }
        if self.security_protocol == PLAINTEXT:
            return config
        return config | {
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
        }

    def spark_options(self) -> dict[str, str]:
        """Return the options of Spark's `kafka` source that connect to the cluster."""
        options = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "kafka.security.protocol": self.security_protocol,
        }
        if self.security_protocol == PLAINTEXT:
            return options
        return options | {
            "kafka.sasl.mechanism": self.sasl_mechanism,
            "kafka.sasl.jaas.config": jaas_config(self.sasl_mechanism, self.user, self.password),
        }


@dataclass(frozen=True, slots=True)
class ExternalTopic:
    """What a cluster says about one of its topics."""

    origin: str
    """The ids of the cluster and of the topic: one that is created again has another."""
    partitions: int


@dataclass(frozen=True, slots=True)
class ExternalMessage:
    """A message of an external topic; `value` is None without a body."""

    partition: int
    offset: int
    value: bytes | None


def opened(connector: Kafka, open_secret: OpenSecret) -> ExternalKafka:
    """Return the cluster of a connector. Raises `SecretUnreadable`."""
    return ExternalKafka(
        connector.name,
        connector.bootstrap_servers,
        connector.security_protocol or PLAINTEXT,
        connector.sasl_mechanism,
        secret_text(connector.login.user, open_secret),
        secret_text(connector.login.password, open_secret),
    )


def secret_text(credential: Credential | None, open_secret: OpenSecret) -> str:
    """Return the text of a credential, empty if there is none. Raises `SecretUnreadable`."""
    match credential:
        case None:
            return ""
        case PlainSecret(value):
            return value
        case SealedSecret():
            return open_secret(credential)
        case SecretRef():
            raise AssertionError("validation refuses references to other stores of secrets")


def describe_topic(kafka: ExternalKafka, topic: str) -> ExternalTopic:
    """Return what the cluster says about a topic; blocks for at most `REQUEST_S`.

    Raises `ExternalKafkaUnusable`.
    """
    return TopicInspector(kafka, topic).describe()


def newest_messages(
    kafka: ExternalKafka, topic: str, partitions: int, count: int
) -> list[ExternalMessage]:
    """Return up to `count` of the newest messages, of the first partitions that have so many.

    Nothing is committed, so no consumer reads on elsewhere. Of a partition the last `LOOKED_BACK`
    offsets are looked at, because markers of transactions take offsets, too. Blocks for at most
    `ORDER_S`; raises `ExternalKafkaUnusable`.
    """
    within = _Within(kafka, topic)
    consumer = Consumer(
        kafka.client_config()
        | {
            "group.id": TRIAL_GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    found: list[ExternalMessage] = []
    try:
        for partition in range(partitions):
            left = count - len(found)
            if left == 0:
                break
            at = RdTopicPartition(topic, partition)
            first, end = consumer.get_watermark_offsets(at, timeout=within.left_s())
            start = max(first, end - LOOKED_BACK)
            found += _last(consumer, at, start, end, within.left_s())[-left:]
    except KafkaException as failed:
        raise ExternalKafkaUnusable(
            f"connector `{kafka.name}`: topic `{topic}` cannot be read: {failed.args[0].str()}; "
            "check that its user may read the topic"
        ) from failed
    finally:
        consumer.close()
    return found


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """What a topic has: the first and the next offset of each partition, and those at a time."""

    origin: str
    first: Mapping[int, int]
    end: Mapping[int, int]
    at_time: Mapping[int, int]


def stream_bounds(kafka: ExternalKafka, topic: str, time_ms: int | None) -> StreamBounds:
    """Return the offsets of a topic; `at_time`: of the first messages since `time_ms`.

    Blocks for at most `ORDER_S`, behind `describe_topic`; raises `ExternalKafkaUnusable`.
    """
    described = describe_topic(kafka, topic)
    within = _Within(kafka, topic)
    consumer = Consumer(kafka.client_config() | {"group.id": TRIAL_GROUP, "log_level": 0})
    try:
        bounds = {
            number: consumer.get_watermark_offsets(
                RdTopicPartition(topic, number), timeout=within.left_s()
            )
            for number in range(described.partitions)
        }
        found = (
            []
            if time_ms is None
            else consumer.offsets_for_times(
                [RdTopicPartition(topic, number, time_ms) for number in bounds],
                timeout=within.left_s(),
            )
        )
    except KafkaException as failed:
        raise ExternalKafkaUnusable(
            f"connector `{kafka.name}`: the offsets of topic `{topic}` cannot be read: "
            f"{failed.args[0].str()}"
        ) from failed
    finally:
        consumer.close()
    return StreamBounds(
        described.origin,
        {number: first for number, (first, _) in bounds.items()},
        {number: end for number, (_, end) in bounds.items()},
        # A negative offset says that no message is so new.
        {at.partition: at.offset if at.offset >= 0 else bounds[at.partition][1] for at in found},
    )


class _Within:
    """The time that the requests about one topic have together."""

    def __init__(self, kafka: ExternalKafka, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self._deadline_s = time.monotonic() + ORDER_S

    def left_s(self) -> float:
        """Return the time that the next request has. Raises `ExternalKafkaUnusable` at the end."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise ExternalKafkaUnusable(
                f"connector `{self._kafka.name}`: Kafka at `{self._kafka.bootstrap_servers}` did "
                f"not answer about all partitions of topic `{self._topic}` in {ORDER_S:.0f} s; "
                "look at the load of its brokers, and repeat the order"
            )
        return min(REQUEST_S, left_s)


def _last(
    consumer: Consumer, at: RdTopicPartition, first: int, end: int, within_s: float
) -> list[ExternalMessage]:
    """Return the messages from `first` to `end`; fewer if they do not arrive in time."""
    found: list[ExternalMessage] = []
    if first >= end:
        return found
    consumer.assign([RdTopicPartition(at.topic, at.partition, first)])
    deadline_s = time.monotonic() + within_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        message = consumer.poll(min(POLL_S, left_s))
        if message is None:
            continue
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            break
        if error is not None:
            raise KafkaException(error)
        offset = message.offset()
        assert offset is not None, "a message without an error has an offset"
        found.append(ExternalMessage(at.partition, offset, message.value()))
        if offset + 1 >= end:
            break
    return found


class TopicInspector:
    """Asks a cluster about one topic, as often as you like over the same connections."""

    def __init__(self, kafka: ExternalKafka, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self._failures: list[KafkaError] = []
        self._client: AdminClient | None = AdminClient(
            kafka.client_config() | {"error_cb": self._failures.append, "log_level": 0}
        )

    def close(self) -> None:
        """Close the connections; a later call of `describe` raises `ExternalKafkaUnusable`."""
        self._client = None

    def describe(self) -> ExternalTopic:
        """Return what the cluster says now; as `describe_topic`."""
        kafka, topic, client = self._kafka, self._topic, self._client
        if client is None:
            raise ExternalKafkaUnusable(f"connector `{kafka.name}`: `{topic}` is not read any more")
        metadata = self._metadata(client, topic)
        found = metadata.topics.get(topic)
        if found is None or found.error is not None:
            reason = "" if found is None or found.error is None else f" ({found.error.str()})"
            raise _no_topic(kafka, topic, reason)
        request = client.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_S)[topic]
        try:
            described = request.result(REQUEST_S)
        except (KafkaException, TimeoutError) as failed:
            raise _no_topic(kafka, topic, f" ({failed})") from failed
        return ExternalTopic(f"{metadata.cluster_id}/{described.topic_id}", len(found.partitions))

    def reach(self) -> None:
        """Return if the cluster accepts the credentials, whatever topics it has.

        Raises `ExternalKafkaUnusable`; blocks for at most `REQUEST_S`.
        """
        assert self._client is not None, "asked before it is closed"
        self._metadata(self._client, self._topic)

    def _metadata(self, client: AdminClient, topic: str) -> ClusterMetadata:
        kafka = self._kafka
        self._failures.clear()
        try:
            return client.list_topics(topic, timeout=REQUEST_S)
        except KafkaException as failed:
            # The call only says that it timed out; why is in the errors of its connections.
            client.poll(0)
            failures = self._failures
            reason = next(
                (e.str() for e in failures if e.code() == KafkaError._AUTHENTICATION),
                failures[0].str() if failures else failed.args[0].str(),
            )
            raise ExternalKafkaAway(
                f"connector `{kafka.name}`: Kafka at `{kafka.bootstrap_servers}` cannot be used: "
                f"{reason}; check its address, security protocol and credentials"
            ) from failed


def check_cluster(kafka: ExternalKafka) -> None:
    """Return if a cluster accepts the credentials. Raises `ExternalKafkaUnusable`; blocks."""
    # The name of no topic: the cluster says that it has none, which is enough.
    TopicInspector(kafka, "fennel-reached").reach()


def _no_topic(kafka: ExternalKafka, topic: str, reason: str) -> ExternalKafkaUnusable:
    return ExternalKafkaUnusable(
        f"connector `{kafka.name}`: Kafka at `{kafka.bootstrap_servers}` has no topic "
        f"`{topic}` that these credentials may read{reason}; create it or allow access"
    )
