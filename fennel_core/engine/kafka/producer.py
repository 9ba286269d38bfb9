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
from fennel_core.connections.kafka import producer_config
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.engine.errors import ProducerFenced
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, TopicPartition

FENCED_CODES: Final = (
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
)


def open_producer(settings: Settings, transactional_id: str, timeout_s: float) -> RdProducer:
    """Open a client, fence all earlier ones of this id and end their open transactions.

    Blocks until the broker has confirmed. Raises KafkaException.
    """
    producer = RdProducer(producer_config(settings, transactional_id))
    producer.init_transactions(timeout_s)
    return producer


class KafkaProducer:
    """See `engine.broker.Producer`; one transaction at a time."""

    def __init__(self, producer: RdProducer, threads: ThreadPoolExecutor, timeout_s: float) -> None:
        self._producer = producer
        self._threads = threads
        self._timeout_s = timeout_s

    async def commit(self, records: Sequence[OutgoingRecord]) -> Mapping[TopicPartition, Offset]:
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._commit, records
        )

    def _commit(self, records: Sequence[OutgoingRecord]) -> dict[TopicPartition, Offset]:
        written: dict[TopicPartition, Offset] = {}

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                written[(message.topic(), message.partition())] = Offset(message.offset() + 1)

        try:
            self._producer.begin_transaction()
            for record in records:
                headers = list(record.headers)
                self._producer.produce(
                    record.topic,
                    record.value,
                    partition=record.partition,
                    headers=headers,
                    on_delivery=delivered,
                )
            self._producer.commit_transaction(self._timeout_s)
        except KafkaException as failed:
            raise self._classified(failed) from failed
        except BufferError as full:
            raise self._classified(
                KafkaException(KafkaError(KafkaError._QUEUE_FULL, str(full)))
            ) from full
        return written

    def _classified(self, failed: KafkaException) -> Exception:
        error: KafkaError = failed.args[0]
        if error.code() in FENCED_CODES:
            return ProducerFenced(error.str())
        if not error.txn_requires_abort():
            return TransactionOutcomeUnknown(error.str())
        try:
            self._producer.abort_transaction(self._timeout_s)
        except KafkaException as worse:
            return (
                ProducerFenced(worse.args[0].str())
                if worse.args[0].code() in FENCED_CODES
                else TransactionOutcomeUnknown(worse.args[0].str())
            )
        return TransactionAborted(error.str())

    async def close(self) -> None:
        """Drop what is queued; all records are sent in transactions, so nothing needs a flush.

        The client itself ends when it is garbage collected.
        """
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
