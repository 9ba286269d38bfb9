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
CONTROL_HEADER: Final = "c"
"""Messages with this header carry no rows: watermarks and markers."""


def client_config(settings: Settings) -> dict[str, Any]:
    """Return the configuration that all clients share."""
    return {"bootstrap.servers": settings.kafka_bootstrap, "log.connection.close": False}


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
