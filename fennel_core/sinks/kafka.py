"""Sinks of Kafka: sessions on the user's cluster, and the copy of positions on the platform's.

The transactional id of a sink is made of the installation and the sink's name, which is never used
twice. Opening the producer fences every earlier one and ends its transaction. Then the topic of
positions is read up to the end that it has at that moment, waiting for transactions of other sinks
that are open there, because a committed record of this sink may be hidden behind one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from fennel_core.connections.committed_records import committed_records, log_ends, records_before
from fennel_core.connections.errors import (
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.connections.external_kafka import (
    TRIAL_GROUP,
    ExternalKafka,
    ExternalTopic,
    describe_topic,
)
from fennel_core.connections.external_sinks import (
    IDS,
    POSITIONS,
    TRANSACTION_S,
    ensure_positions_topic,
    producer_config,
)
from fennel_core.connections.kafka import client_config
from fennel_core.connections.offsets import high_watermarks
from fennel_core.settings.model import Settings
from fennel_core.sinks.debezium import SinkRecord
from fennel_core.sinks.errors import SinkMessageTooLarge
from fennel_core.sinks.positions import SinkPosition, decode, encode
from fennel_core.vocab.ids import PartitionIndex, TopicName, TopicPartition

REQUEST_S: Final = 15.0
ABORT_S: Final = 5.0
"""How long a session that failed tries to end its transaction; otherwise the next one does."""
COPY_EVERY_S: Final = 10.0
DESCRIBED_S: Final = 30.0
"""How long a session writes without asking whether its topic still is the one that it opened."""
POSITIONS_PARTITION: Final[TopicPartition] = (TopicName(POSITIONS), PartitionIndex(0))


class KafkaSinkLog:
    """See `store.SinkLog`. `name`: of the sink, unique in the installation and never used twice;
    `of`: the topic whose offsets the position has.
    """

    def __init__(
        self, kafka: ExternalKafka, topic: str, installation: str, name: TopicName, of: TopicName
    ) -> None:
        self._kafka, self._topic = kafka, topic
        self._key = f"{installation}/{name}/{of}".encode()
        self._id = f"{IDS}{installation}-{name}"

    def open(self, *, first: bool = True) -> KafkaSinkSession:
        del first  # the topic is the user's
        described = self._described()
        ensure_positions_topic(self._kafka)
        producer = Producer(producer_config(self._kafka, self._id))
        try:
            producer.init_transactions(TRANSACTION_S)
            position = self._position()
        except KafkaException as failed:
            raise SystemUnavailable(
                f"connector `{self._kafka.name}`: Kafka: {_text(failed)}"
            ) from failed
        return KafkaSinkSession(
            producer, self._topic, self._described, described, self._key, position
        )

    def _described(self) -> ExternalTopic:
        return describe_topic(self._kafka, self._topic)

    def _position(self) -> SinkPosition | None:
        """Return the last committed position; nothing that was committed before is missing."""
        config = self._kafka.client_config() | {"log_level": 0}
        ends = high_watermarks(AdminClient(config), [POSITIONS_PARTITION], REQUEST_S)
        reading = config | {
            "group.id": TRIAL_GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        found: SinkPosition | None = None
        for _, record in records_before(reading, ends, REQUEST_S + 2 * TRANSACTION_S):
            if record.key() == self._key:
                value = record.value()
                assert value is not None, "positions are not deleted"
                found = decode(value)
        return found


class KafkaSinkSession:
    """See `store.SinkSession`."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        describe: Callable[[], ExternalTopic],
        described: ExternalTopic,
        key: bytes,
        position: SinkPosition | None,
    ) -> None:
        self._producer, self._topic, self._describe = producer, topic, describe
        self._partitions, self._described_s = described.partitions, time.monotonic()
        self._key, self._over = key, False
        self._begun = False
        """A transaction was begun that was neither committed nor is it unknown whether it was."""
        self.origin, self.position = described.origin, position

    def _require_same_topic(self) -> None:
        """Raise `TransactionAborted` if the topic was created again, which no producer says."""
        if time.monotonic() - self._described_s < DESCRIBED_S:
            return
        if (now := self._describe().origin) != self.origin:
            raise TransactionAborted(f"topic `{self._topic}` was created again, as `{now}`")
        self._described_s = time.monotonic()

    def commit(self, batch: Sequence[SinkRecord] | None, position: SinkPosition) -> None:
        assert not self._over, "a session whose transaction failed is over"
        self._over = True
        self._require_same_topic()
        producer = self._producer
        refused: list[tuple[KafkaError, Message]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                refused.append((error, message))

        try:
            producer.begin_transaction()
            self._begun = True
            for record in batch or ():
                self._produce(record, delivered)
            producer.produce(
                POSITIONS, encode(position), key=self._key, partition=0, on_delivery=delivered
            )
            missing = producer.flush(TRANSACTION_S)
        except (KafkaException, BufferError) as failed:
            raise TransactionAborted(_text(failed)) from failed
        for error, message in refused:
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise SinkMessageTooLarge(str(message.topic()), len(message))
        if missing or refused:
            raise TransactionAborted(
                refused[0][0].str() if refused else f"{missing} records were not acknowledged"
            )
        try:
            producer.commit_transaction(TRANSACTION_S)
        except KafkaException as failed:
            if failed.args[0].txn_requires_abort():
                raise TransactionAborted(_text(failed)) from failed
            self._begun = False
            raise TransactionOutcomeUnknown(_text(failed)) from failed
        self.position, self._over, self._begun = position, False, False

    def _produce(self, record: SinkRecord, delivered: Any) -> None:
        """Queue a record; wait while the queue is full."""
        deadline_s = time.monotonic() + TRANSACTION_S
        # Keys choose the partition as in Java's clients; without, order is that of a partition.
        place = {} if record.key is not None else {"partition": record.part % self._partitions}
        while True:
            try:
                self._producer.produce(
                    self._topic, record.value, key=record.key, on_delivery=delivered, **place
                )
            except BufferError:
                if time.monotonic() > deadline_s:
                    raise
                self._producer.poll(0.1)
            except KafkaException as failed:
                if failed.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise
                size_bytes = len(record.key or b"") + len(record.value or b"")
                raise SinkMessageTooLarge(self._topic, size_bytes) from failed
            else:
                self._producer.poll(0)
                return

    def close(self) -> None:
        """End the session and its open transaction, which holds back the readers of the topics.

        If that fails, the next session or the cluster ends it.
        """
        self._over = True
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        if self._begun:
            self._begun = False
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(ABORT_S)


class KafkaPositionCopy:
    """See `store.PositionCopy`: on the platform's topic `topic`, at most once in `COPY_EVERY_S`.

    `of`: the topic whose offsets the position has.
    """

    def __init__(self, settings: Settings, topic: TopicName, of: TopicName) -> None:
        self._settings, self._at = settings, (topic, PartitionIndex(0))
        self._key = of.encode()
        self._producer: Producer | None = None
        self._written_s = float("-inf")

    def read(self) -> SinkPosition | None:
        found: SinkPosition | None = None
        for _, record in committed_records(self._settings, log_ends(self._settings, [self._at])):
            value = record.value()
            assert value is not None, "positions are not deleted"
            if record.key() == self._key:
                found = decode(value)
        return found

    def write(self, position: SinkPosition) -> None:
        if time.monotonic() - self._written_s < COPY_EVERY_S:
            return
        if self._producer is None:
            self._producer = Producer(client_config(self._settings) | {"log_level": 0})
        topic, partition = self._at
        self._producer.produce(topic, encode(position), key=self._key, partition=partition)
        self._producer.poll(0)
        self._written_s = time.monotonic()


def _text(failed: Exception) -> str:
    return str(failed.args[0].str()) if isinstance(failed, KafkaException) else str(failed)
