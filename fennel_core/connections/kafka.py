"""Configuration of Kafka clients.

Consumers read committed records only and are assigned by hand: no consumer group stores offsets, so
none can disagree with state.
"""

from __future__ import annotations

from typing import Any, Final

from fennel_core.settings.model import Settings

FETCH_WAIT_MS: Final = 100
"""How long the broker holds an empty fetch. It bounds how late a consumer learns that it is at the
end of a partition, which the barrier needs, and costs an idle slot 10 requests per second: engine
and broker idle at 6.3% of a core with 120 job partitions, with 50 ms at 8.6%.
"""
FETCH_MAX_BYTES: Final = 32 * 1024 * 1024
QUEUE_KBYTES: Final = 65_536
_SCRAM_MODULE: Final = "scram.ScramLoginModule"
CONTROL_HEADER: Final = "c"
"""Messages with this header carry no rows: watermarks and markers."""

COMMIT_WITHIN_TRANSACTIONS: Final = 3
"""Time-outs of a transaction after which ingest does not commit a request any more, counted from
the moment at which it asked for the request's stamp. An honest transaction needs up to two: to
open its producer and to send its records.
"""
LATE_REQUEST_TRANSACTIONS: Final = 6
"""Time-outs of a transaction until every request that ingest stamped is accepted or has failed.

The broker aborts what was begun before the limit above and not committed one time-out later, and at
most 10 s after that, because it looks for such transactions so often: these are two time-outs, as
one has at least 5 s.
"""


def client_config(settings: Settings) -> dict[str, Any]:
    """Return the configuration that all clients share."""
    return {
        "bootstrap.servers": settings.kafka_bootstrap,
        "log.connection.close": False,
        **security_config(settings),
    }


def security_config(settings: Settings) -> dict[str, str]:
    """Return what a client of librdkafka needs to authenticate; empty for a plain connection."""
    if settings.kafka_security == "PLAINTEXT":
        return {}
    config: dict[str, str] = {"security.protocol": settings.kafka_security}
    if settings.kafka_ca_file is not None:
        config["ssl.ca.location"] = str(settings.kafka_ca_file)
    if settings.kafka_security.startswith("SASL"):
        config |= {
            "sasl.mechanism": settings.kafka_sasl,
            "sasl.username": settings.kafka_user,
            "sasl.password": settings.kafka_password.get_secret_value(),
        }
    return config


def jvm_security_options(settings: Settings) -> dict[str, str]:
    """Return the same for Kafka's Java client, as options of Spark's `kafka` source."""
    if settings.kafka_security == "PLAINTEXT":
        return {}
    options: dict[str, str] = {"kafka.security.protocol": settings.kafka_security}
    if settings.kafka_ca_file is not None:
        options |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(settings.kafka_ca_file),
        }
    if settings.kafka_security.startswith("SASL"):
        options |= {
            "kafka.sasl.mechanism": settings.kafka_sasl,
            "kafka.sasl.jaas.config": jaas_config(
                settings.kafka_sasl, settings.kafka_user, settings.kafka_password.get_secret_value()
            ),
        }
    return options


def access_command(topic: str) -> str:
    """Return the command that gives the platform's users their rights on a topic."""
    return f"`fennel-core kafka-access {topic.partition('.')[0]}` with the user of an administrator"


def jaas_config(mechanism: str, user: str, password: str) -> str:
    """Return the credentials of Kafka's Java client."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else _SCRAM_MODULE
    return (
        f"org.apache.kafka.common.security.{module} required "
        f"username={_quoted(user)} password={_quoted(password)};"
    )


def _quoted(text: str) -> str:
    """Return a value of a JAAS configuration in quotation marks."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def consumer_config(settings: Settings, *, fetch_wait_ms: int = FETCH_WAIT_MS) -> dict[str, Any]:
    """Return the configuration of a consumer of committed records, assigned by hand.

    It reports when it reaches the end of a partition.
    """
    return client_config(settings) | {
        "group.id": "fennel-core",  # required by librdkafka; no offset is committed to it
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": fetch_wait_ms,
        "fetch.min.bytes": 1,
        "fetch.max.bytes": FETCH_MAX_BYTES,
        "queued.max.messages.kbytes": QUEUE_KBYTES,
        "fetch.error.backoff.ms": 50,
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": 300_000,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 500,
    }


def producer_config(settings: Settings, transactional_id: str) -> dict[str, Any]:
    """Return the configuration of a transactional producer that sends without delay.

    A transaction that a frozen process left open ends after `transaction_timeout_ms`.
    """
    return client_config(settings) | {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": settings.transaction_timeout_ms,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 0,
        "compression.type": "none",  # batches are compressed Arrow already
        "message.max.bytes": FETCH_MAX_BYTES,
        "socket.nagle.disable": True,
        "retry.backoff.ms": 20,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 500,
        "queue.buffering.max.messages": 100_000,
    }
