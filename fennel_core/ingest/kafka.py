"""Lanes on Kafka: transactional producers, one transaction at a time each.

Theory. librdkafka has no second half of KIP-890: after a time-out or an error whose outcome is open
a producer must be thrown away. A new one with the same transactional id fences the old one, whose
open transaction is then aborted by the broker, so the rows are either all there or not at all; only
the caller cannot be told which, and is answered so. Ids are a process's own, so nobody else ever
fences it; what a dead process left open ends after `transaction.timeout.ms`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import KafkaError, KafkaException, Producer

from fennel_core.connections.kafka import producer_config
from fennel_core.ingest.store import Away, NotWritten, OutcomeUnknown, ProducerRecord
from fennel_core.settings.model import Settings

NEW_TOPIC_MS = 2_000
"""How long a topic the broker does not know is waited for: commits make topics before anybody hears
of them.
"""


class KafkaTransactionalProducer:
    """See `store.Lane`. The producer is made at the first commit, and anew after an error whose
    outcome is open.
    """

    def __init__(
        self, settings: Settings, transactional_id: str, threads: ThreadPoolExecutor
    ) -> None:
        self._settings = settings
        self._id = transactional_id
        self._threads = threads
        self._timeout_s = settings.transaction_timeout_ms / 1000
        self._producer: Producer | None = None
        self._turn = (
            threading.Lock()
        )  # two producers of one id, made at once, would fence each other
        self.problem: str | None = "not opened yet"
        """Why the lane has no producer; None when it has one."""

    async def open(self) -> None:
        """Make the producer now, so that the first request need not wait for it. Raises `Away`."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._open)

    def _open(self) -> None:
        with self._turn:
            self._opened()

    async def commit(self, messages: Sequence[ProducerRecord]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._commit, messages)

    def _opened(self) -> Producer:
        if self._producer is None:
            producer = Producer(
                producer_config(self._settings, self._id)
                | {"topic.metadata.propagation.max.ms": NEW_TOPIC_MS}
            )
            try:
                producer.init_transactions(self._timeout_s)
            except KafkaException as failed:
                self.problem = f"the log cannot be reached now: {_text(failed)}"
                raise Away(self.problem) from failed
            self._producer, self.problem = producer, None
        return self._producer

    def _commit(self, messages: Sequence[ProducerRecord]) -> None:
        with self._turn:
            self._transact(self._opened(), messages)

    def _transact(self, producer: Producer, messages: Sequence[ProducerRecord]) -> None:
        refused: list[KafkaError] = []
        try:
            producer.begin_transaction()
            for message in messages:
                producer.produce(
                    message.topic,
                    message.value,
                    partition=message.partition,
                    headers=list(message.headers),
                    on_delivery=lambda error, _: (
                        refused.append(error) if error is not None else None
                    ),
                )
            missing = producer.flush(self._timeout_s)
        except (KafkaException, BufferError) as failed:
            raise self._not_written(producer, _text(failed)) from failed
        if missing or refused:
            raise self._not_written(
                producer,
                refused[0].str()
                if refused
                else f"{missing} messages were not taken in {self._timeout_s:g} s",
            )
        try:
            producer.commit_transaction(self._timeout_s)
        except KafkaException as failed:
            if failed.args[0].txn_requires_abort():
                raise self._not_written(producer, _text(failed)) from failed
            self._drop(producer)
            raise OutcomeUnknown(_text(failed)) from failed

    def _not_written(self, producer: Producer, text: str) -> NotWritten:
        """Nobody asked for a commit, or the broker refused it: whatever was sent is never seen."""
        self._drop(producer)
        return NotWritten(text)

    def _drop(self, producer: Producer) -> None:
        """Have nothing more to do with it: the next producer of this id fences it, and the broker
        aborts what it left open.
        """
        self._producer = None
        producer.purge(in_queue=True, in_flight=True, blocking=False)


def _text(failed: Exception) -> str:
    return str(failed.args[0].str()) if isinstance(failed, KafkaException) else str(failed)
