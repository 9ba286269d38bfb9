"""The producer of query logs on Kafka.

It is idempotent and not transactional: a message that is sent again is stored once, and a
transaction would add a round trip and a coordinator to rows that depend on nothing else. After
`MESSAGE_TIMEOUT_MS` a message is given up, with an unknown outcome if the connection broke: it is
counted as not written and may still be there. It is never sent by another producer, so no row is
stored twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from fennel_core.connections.kafka import FETCH_MAX_BYTES, client_config
from fennel_core.query.query_log import NotDelivered, OnDelivery
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import TopicName
from fennel_core.vocab.query_log_blocks import HEADERS

MESSAGE_TIMEOUT_MS: Final = 120_000
"""Longer than a restart of a broker. The queue of the query log bounds what waits."""
NEW_TOPIC_MS: Final = 5_000
"""How long the producer waits for a topic that the broker does not know."""
QUEUE_KBYTES: Final = 2 * 1024 * 1024
"""More than `query_log_bytes` allows, so that only that setting decides what is dropped."""
PURGE_S: Final = 1.0
"""Purged messages are reported at once; this only bounds the call."""
LIBRARY_LOG: Final = logging.getLogger("librdkafka")
_UNKNOWN_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)


class KafkaLogProducer:
    """Implements `query_log.LogProducer`. A fatal error of the library costs one producer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: Producer | None = None
        self._fatal = False

    def produce(self, topic: TopicName, value: bytes, on_delivery: OnDelivery) -> None:
        try:
            if self._producer is None:
                self._producer = Producer(producer_config(self._settings), logger=LIBRARY_LOG)
            self._producer.produce(
                topic, value, headers=list(HEADERS), on_delivery=self._reporting(on_delivery)
            )
        except (KafkaException, BufferError) as refused:
            if isinstance(refused, KafkaException):
                self._fatal |= refused.args[0].code() == KafkaError._FATAL
            on_delivery(NotDelivered(str(refused), unknown_topic=False))

    def poll(self) -> None:
        if self._producer is not None:
            self._producer.poll(0)
            if self._fatal:
                self._discard()

    def flush(self, seconds: float) -> None:
        if self._producer is not None:
            self._producer.flush(seconds)
            self._discard()

    def _reporting(self, on_delivery: OnDelivery) -> Callable[[KafkaError | None, object], None]:
        def report(error: KafkaError | None, _message: object) -> None:
            if error is None:
                on_delivery(None)
                return
            on_delivery(NotDelivered(error.str(), error.code() in _UNKNOWN_TOPIC))
            # The producer is discarded by `poll`, not from inside of its own callback.
            # After a fatal error all its messages have this code; `fatal()` is False for them.
            self._fatal |= error.code() == KafkaError._FATAL

        return report

    def _discard(self) -> None:
        """Forget the producer; the callbacks of its messages report them as not delivered."""
        discarded, self._producer, self._fatal = self._producer, None, False
        if discarded is not None:
            discarded.purge(in_queue=True, in_flight=True, blocking=False)
            discarded.flush(PURGE_S)


def producer_config(settings: Settings) -> dict[str, object]:
    """Return the configuration of the producer."""
    return client_config(settings) | {
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 5,
        "compression.type": "none",  # blocks are compressed already
        "message.max.bytes": FETCH_MAX_BYTES,
        "message.timeout.ms": MESSAGE_TIMEOUT_MS,
        "queue.buffering.max.messages": 100_000,
        "queue.buffering.max.kbytes": QUEUE_KBYTES,
        "topic.metadata.propagation.max.ms": NEW_TOPIC_MS,
        "allow.auto.create.topics": False,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
    }
