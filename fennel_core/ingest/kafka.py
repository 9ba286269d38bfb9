"""The transactional producer on Kafka.

librdkafka has no second half of KIP-890: after a time-out, or an error that leaves the outcome of a
commit open, a producer must be discarded. A new producer with the same transactional id fences the
old one and the broker aborts its open transaction, so all rows were written or none; the caller
gets `TransactionOutcomeUnknown`. Transactional ids belong to one process and nothing else fences
them. A transaction that a dead process left open ends after `transaction.timeout.ms`.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import KafkaError, KafkaException, Producer

from fennel_core.connections.errors import (
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.connections.kafka import producer_config
from fennel_core.ingest.store import ProducerRecord, require_in_time
from fennel_core.settings.model import Settings

NEW_TOPIC_MS = 2_000
"""How long the producer waits for a topic that the broker does not know. A commit creates topics
before clients learn of them, so a topic that stays unknown was deleted.
"""


class KafkaTransactionalProducer:
    """See `store.TransactionalProducer`.

    The librdkafka producer is created by `open` or the first commit, and again after each error
    that leaves the outcome of a transaction open.
    """

    def __init__(
        self, settings: Settings, transactional_id: str, threads: ThreadPoolExecutor
    ) -> None:
        self._settings = settings
        self._id = transactional_id
        self._threads = threads
        self._timeout_s = settings.transaction_timeout_ms / 1000
        self._producer: Producer | None = None
        # Two producers of one transactional id, created at once, would fence each other.
        self._lock = threading.Lock()
        self.problem: str | None = "not opened yet"
        """Why there is no librdkafka producer; None when there is one."""

    async def open(self) -> None:
        """Create the producer before the first request needs it. Raises `SystemUnavailable`."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._open)

    def _open(self) -> None:
        with self._lock:
            self._ensure_open()

    async def commit(
        self, messages: Sequence[ProducerRecord], deadline_s: float = math.inf
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(
            self._threads, self._commit, messages, deadline_s
        )

    def close(self) -> None:
        """Forget the producer; the broker aborts a transaction that it has open."""
        with self._lock:
            if self._producer is not None:
                self._drop(self._producer)

    def _ensure_open(self) -> Producer:
        if self._producer is None:
            producer = Producer(
                producer_config(self._settings, self._id)
                | {"topic.metadata.propagation.max.ms": NEW_TOPIC_MS}
            )
            try:
                producer.init_transactions(self._timeout_s)
            except KafkaException as failed:
                self.problem = f"Kafka cannot be reached: {_text(failed)}"
                raise SystemUnavailable(self.problem) from failed
            self._producer, self.problem = producer, None
        return self._producer

    def _commit(self, messages: Sequence[ProducerRecord], deadline_s: float) -> None:
        with self._lock:
            producer = self._ensure_open()
            require_in_time(deadline_s)
            self._transact(producer, messages, deadline_s)

    def _transact(
        self, producer: Producer, messages: Sequence[ProducerRecord], deadline_s: float
    ) -> None:
        refused: list[KafkaError] = []
        try:
            producer.begin_transaction()
            for message in messages:
                producer.produce(
                    message.topic,
                    message.value,
                    key=message.key,
                    partition=message.partition,
                    headers=list(message.headers),
                    on_delivery=lambda error, _: (
                        refused.append(error) if error is not None else None
                    ),
                )
            missing = producer.flush(self._timeout_s)
        except (KafkaException, BufferError) as failed:
            raise self._aborted(producer, _text(failed)) from failed
        except SystemError as failed:
            # The client calls `on_delivery` with the error that it was fenced already raised.
            raise self._aborted(producer, str(failed.__cause__ or failed)) from failed
        if missing or refused:
            raise self._aborted(
                producer,
                refused[0].str()
                if refused
                else f"{missing} records were not acknowledged in {self._timeout_s:g} s",
            )
        try:
            # A process that is stopped after this check began its transaction before the deadline,
            # so the broker aborts it in time.
            require_in_time(deadline_s)
        except TransactionAborted as late:
            raise self._aborted(producer, str(late)) from late
        try:
            producer.commit_transaction(self._timeout_s)
        except KafkaException as failed:
            if failed.args[0].txn_requires_abort():
                raise self._aborted(producer, _text(failed)) from failed
            self._drop(producer)
            raise TransactionOutcomeUnknown(_text(failed)) from failed

    def _aborted(self, producer: Producer, text: str) -> TransactionAborted:
        """Discard a producer without a commit: consumers never see its records."""
        self._drop(producer)
        return TransactionAborted(text)

    def _drop(self, producer: Producer) -> None:
        """Forget a producer: the next one fences it, and the broker aborts its transaction."""
        self._producer = None
        producer.purge(in_queue=True, in_flight=True, blocking=False)


def _text(failed: Exception) -> str:
    return str(failed.args[0].str()) if isinstance(failed, KafkaException) else str(failed)
