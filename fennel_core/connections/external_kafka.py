"""A Kafka cluster of the user's own: how its clients authenticate, and whether it can be reached.

The connector of a definition names the cluster; its credentials are opened here and nowhere else.
Two clients read the cluster: librdkafka (checks and metadata) and Kafka's Java client (Spark).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.kafka import jaas_config
from fennel_core.wire.connectors import Credential, Kafka, PlainSecret, SealedSecret, SecretRef

REQUEST_S: Final = 10.0
"""How long a request to a cluster may take: a commit waits for it, and clients wait for a commit.
"""
PLAINTEXT: Final = "PLAINTEXT"
OpenSecret = Callable[[SealedSecret], str]
"""Returns the text of a sealed secret; raises `secrets.SecretUnreadable`."""


class ExternalKafkaUnusable(ConnectionsError):
    """A cluster of the user's own cannot be reached, refuses the credentials or lacks the topic.

    The text names the connector and what to change. A retry helps if the cluster was down.
    """

    code: ClassVar[str] = "source-unreachable"


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


def opened(connector: Kafka, open_secret: OpenSecret) -> ExternalKafka:
    """Return the cluster of a connector. Raises `SecretUnreadable`."""
    return ExternalKafka(
        connector.name,
        connector.bootstrap_servers,
        connector.security_protocol or PLAINTEXT,
        connector.sasl_mechanism,
        _text(connector.login.user, open_secret),
        _text(connector.login.password, open_secret),
    )


def _text(credential: Credential | None, open_secret: OpenSecret) -> str:
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
        self._failures.clear()
        try:
            metadata = client.list_topics(topic, timeout=REQUEST_S)
        except KafkaException as failed:
            # The call only says that it timed out; why is in the errors of its connections.
            client.poll(0)
            failures = self._failures
            reason = next(
                (e.str() for e in failures if e.code() == KafkaError._AUTHENTICATION),
                failures[0].str() if failures else failed.args[0].str(),
            )
            raise ExternalKafkaUnusable(
                f"connector `{kafka.name}`: Kafka at `{kafka.bootstrap_servers}` cannot be used: "
                f"{reason}; check its address, security protocol and credentials"
            ) from failed
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


def _no_topic(kafka: ExternalKafka, topic: str, reason: str) -> ExternalKafkaUnusable:
    return ExternalKafkaUnusable(
        f"connector `{kafka.name}`: Kafka at `{kafka.bootstrap_servers}` has no topic "
        f"`{topic}` that these credentials may read{reason}; create it or allow access"
    )
