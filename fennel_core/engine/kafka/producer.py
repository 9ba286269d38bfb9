"""One transactional producer per runner.

librdkafka does not implement the second half of KIP-890: after a time-out, or an error that leaves
the outcome open, a producer cannot be used again. The caller opens a new one and reads the outcome
from the replaylog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as RdProducer

from fennel_core.connections.errors import TransactionAborted, TransactionOutcomeUnknown
from fennel_core.connections.kafka import FETCH_MAX_BYTES, producer_config
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.errors import OutputTooLarge, OutputTopicMissing, ProducerFenced
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, TopicPartition

FENCED_CODES: Final = (
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
)


UNKNOWN_TOPIC_CODES: Final = (
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)
NEW_TOPIC_MS: Final = 500
"""How long an unknown topic may be a new one. The default, 30 s, exceeds a transaction, which then
ends without a known outcome.
"""
TRANSACTION_LOG: Final = "__transaction_state"
"""Topic that every broker with transactions has."""
COMMIT_CALLS: Final = 3
"""A commit whose error is retriable is resumed up to this often: librdkafka continues where it
was, and the outcome stays known.
"""
RECORD_OVERHEAD_BYTES: Final = 1024
"""Upper bound of what Kafka adds to value and headers of a record that is alone in its batch."""


def open_producer(settings: Settings, transactional_id: str, timeout_s: float) -> RdProducer:
    """Open a client, fence all earlier ones of this id and end their open transactions.

    Blocks until the broker has confirmed. Raises KafkaException.
    """
    producer = RdProducer(
        producer_config(settings, transactional_id)
        | {"topic.metadata.propagation.max.ms": NEW_TOPIC_MS}
    )
    try:
        # A new client has no connection yet, and `init_transactions` looks for one only every 500
        # ms. A request for metadata is sent as soon as there is one.
        producer.list_topics(TRANSACTION_LOG, timeout_s)
        producer.init_transactions(timeout_s)
    except KafkaException:
        # The error's traceback would keep the client and its threads until it is collected.
        del producer
        raise
    return producer


class KafkaProducer:
    """See `engine.broker.Producer`; one transaction at a time."""

    def __init__(self, producer: RdProducer, threads: ThreadPoolExecutor, timeout_s: float) -> None:
        self._producer: RdProducer | None = producer
        self._threads = threads
        self._timeout_s = timeout_s

    async def commit(self, records: Sequence[OutgoingRecord]) -> Mapping[TopicPartition, Offset]:
        for record in records:
            _require_sendable(record)
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._commit, records
        )

    def _commit(self, records: Sequence[OutgoingRecord]) -> dict[TopicPartition, Offset]:
        producer = self._producer
        assert producer is not None, "a closed producer commits nothing"
        written: dict[TopicPartition, Offset] = {}
        missing: set[str] = set()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                written[(message.topic(), message.partition())] = Offset(message.offset() + 1)
            elif error.code() in UNKNOWN_TOPIC_CODES:
                missing.add(f"{message.topic()}[{message.partition()}]")

        try:
            producer.begin_transaction()
            for record in records:
                headers = list(record.headers)
                producer.produce(
                    record.topic,
                    record.value,
                    partition=record.partition,
                    headers=headers,
                    on_delivery=delivered,
                )
            self._commit_transaction(producer)
        except KafkaException as failed:
            if failed.args[0].code() in UNKNOWN_TOPIC_CODES and not missing:
                missing.add("of one of the job's outputs")
            outcome = self._classified(producer, failed)
        except BufferError as full:
            outcome = self._classified(
                producer, KafkaException(KafkaError(KafkaError._QUEUE_FULL, str(full)))
            )
        else:
            return written
        finally:
            del producer  # as in `open_producer`
        if missing and type(outcome) is TransactionAborted:
            outcome = OutputTopicMissing(
                f"Kafka has no partition {', '.join(sorted(missing))}: it was deleted from outside "
                "the platform. Commit the dataset under a new version"
            )
        raise outcome

    def _commit_transaction(self, producer: RdProducer) -> None:
        for call in range(1, COMMIT_CALLS + 1):
            try:
                producer.commit_transaction(self._timeout_s)
                return
            except KafkaException as failed:
                if call == COMMIT_CALLS or not failed.args[0].retriable():
                    raise

    def _classified(self, producer: RdProducer, failed: KafkaException) -> Exception:
        error: KafkaError = failed.args[0]
        if error.code() in FENCED_CODES:
            return ProducerFenced(error.str())
        if not error.txn_requires_abort() and error.code() not in UNKNOWN_TOPIC_CODES:
            return TransactionOutcomeUnknown(error.str())
        try:
            producer.abort_transaction(self._timeout_s)
        except KafkaException as worse:
            return (
                ProducerFenced(worse.args[0].str())
                if worse.args[0].code() in FENCED_CODES
                else TransactionOutcomeUnknown(worse.args[0].str())
            )
        return TransactionAborted(error.str())

    async def close(self) -> None:
        """Drop what is queued and end the client: its threads, connections and descriptors.

        All records are sent in transactions, so nothing needs a flush. The client ends with its
        last reference, which is dropped on a commit thread, because that blocks; a caller that is
        cancelled does not prevent it.
        """
        await asyncio.shield(asyncio.wrap_future(self._threads.submit(self._close)))

    def _close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge(in_queue=True, in_flight=True, blocking=False)


def _require_sendable(record: OutgoingRecord) -> None:
    """Raise OutputTooLarge before anything is sent: librdkafka could not say what became of it."""
    size_bytes = len(record.value) + sum(len(name) + len(value) for name, value in record.headers)
    if size_bytes + RECORD_OVERHEAD_BYTES > FETCH_MAX_BYTES:
        raise OutputTooLarge(
            f"a record of {size_bytes} bytes for {record.topic}[{record.partition}] exceeds "
            f"{FETCH_MAX_BYTES - RECORD_OVERHEAD_BYTES}: one row is too large. Commit a pipeline "
            "that emits smaller values"
        )
