"""A consumer with its thread, which any number of subscriptions share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Final

import structlog
from confluent_kafka import KafkaException

from fennel_core.engine.kafka.client import ConsumerClient
from fennel_core.engine.kafka.consumer import ConsumerLimits, ConsumerThread
from fennel_core.engine.kafka.subscription import KafkaSubscription
from fennel_core.vocab.ids import Offset, TopicPartition

log = structlog.get_logger(__name__)

POLL_S: Final = 0.05
"""How long a turn waits for messages, and so how long a command waits for its turn."""


class SharedConsumer:
    """A consumer with its thread, for any number of subscriptions."""

    def __init__(
        self, client: ConsumerClient, loop: asyncio.AbstractEventLoop, limits: ConsumerLimits
    ) -> None:
        self._consumer = ConsumerThread(client, loop.call_soon_threadsafe, limits)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=_run_turns,
            args=(self._consumer, client, self._stopped),
            name="consumer",
            daemon=True,
        )
        self._thread.start()

    def subscribe(self, positions: Mapping[TopicPartition, Offset]) -> KafkaSubscription:
        """Read from these offsets on, which must lie within their logs."""
        return KafkaSubscription(self._consumer, positions)

    def stop(self) -> None:
        """Stop the thread and close the client; it blocks until both have ended."""
        self._stopped.set()
        self._thread.join()


def _run_turns(consumer: ConsumerThread, client: ConsumerClient, stopped: threading.Event) -> None:
    """Run turns until `stopped` is set; then close the client. The body of the thread."""
    while not stopped.is_set():
        try:
            try:
                consumer.turn(POLL_S)
            except KafkaException as lost:
                consumer.fail(lost)
            except Exception as wrong:  # last line of defence: all runners of the slot start again
                log.exception("the consumer failed")
                consumer.fail(wrong)
                stopped.wait(POLL_S)
        except RuntimeError:
            break  # the event loop is closed: the slot has ended
    client.close()
