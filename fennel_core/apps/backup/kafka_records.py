"""The records of topics in a backup: read up to one cut, written again at the same offsets.

`KafkaWriter` carries out the steps of `offset_plan` and checks after each that the log has the end
that the plan expects, so a record never gets another offset unnoticed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, assert_never

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from fennel_core.apps.backup.offset_plan import (
    Abort,
    CloseFirst,
    Fill,
    OpenFirst,
    PlanStep,
    SavedRecord,
    Write,
)
from fennel_core.apps.errors import BackupFailed, RestoreFailed
from fennel_core.connections import offsets
from fennel_core.connections.kafka import client_config, consumer_config, producer_config
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition

REQUEST_S: Final = 30.0
SILENCE_S: Final = 60.0
"""A read or write without progress for so long fails."""
TRANSACTION_MS: Final = 60_000
"""Also how long a record may wait for its acknowledgement."""
POLL_S: Final = 0.2
BATCH: Final = 500
FILL_RECORDS: Final = 1_000_000
"""Records that are sent before their responses are awaited: bounds memory."""
MARGIN_S: Final = 5.0
Bounds = Mapping[TopicPartition, tuple[Offset, Offset]]


def read_bounds(settings: Settings, topics: Mapping[TopicName, int]) -> Bounds:
    """Return first and end offset of every partition of `topics`, given their partition counts.

    Transactions that stopped servers left open are waited for. Raises BackupFailed if one stays
    open, which means that a producer is still at work.
    """
    admin = AdminClient(client_config(settings))
    parts = [(t, PartitionIndex(n)) for t, count in topics.items() for n in range(count)]
    deadline_s = time.monotonic() + settings.transaction_timeout_ms / 1000 + MARGIN_S
    while True:
        stable = offsets.bounds(admin, parts, REQUEST_S)
        ends = offsets.high_watermarks(admin, parts, REQUEST_S)
        if not (unstable := [at for at in parts if stable[at][1] != ends[at]]):
            return stable
        if time.monotonic() > deadline_s:
            raise BackupFailed(
                f"`{unstable[0][0]}`[{unstable[0][1]}] has an open transaction: a server still "
                "writes; stop all servers and take the backup again"
            )
        time.sleep(POLL_S)


class KafkaReader:
    """Reads ranges of committed records; use it as a context manager.

    All ranges are assigned at once: a consumer that is assigned to one partition after another
    waits about half a second at each.
    """

    def __init__(self, settings: Settings) -> None:
        self._consumer: Any = Consumer(consumer_config(settings))

    def __enter__(self) -> KafkaReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self, ranges: Bounds) -> Iterator[tuple[TopicPartition, SavedRecord]]:
        """Yield the committed records of each range [start, end), in order within a partition.

        Raises BackupFailed if Kafka is silent.
        """
        waiting = {at: end for at, (start, end) in ranges.items() if start < end}
        self._consumer.assign([RdTopicPartition(*at, ranges[at][0]) for at in waiting])
        progress_s = time.monotonic()
        while waiting:
            # A batch waits for its last message until the time is over, so it does not wait.
            first: Message | None = self._consumer.poll(POLL_S)
            messages = [] if first is None else [first, *self._consumer.consume(BATCH, 0)]
            for message in messages:
                progress_s = time.monotonic()
                at, record = _received(message)
                if at not in waiting:
                    continue
                # At the end of the log, all below is committed or aborted: no record is left.
                if record is None or record.offset >= waiting[at]:
                    del waiting[at]
                else:
                    yield at, record
            if time.monotonic() > progress_s + SILENCE_S:
                at, end = min(waiting.items())
                raise BackupFailed(
                    f"Kafka sends no records of `{at[0]}`[{at[1]}] below {end}: check the broker, "
                    "and take the backup again"
                )


def _received(message: Message) -> tuple[TopicPartition, SavedRecord | None]:
    """Return what Kafka sent, None at the end of the log; raises BackupFailed for an error."""
    topic, part, error = message.topic(), message.partition(), message.error()
    if topic is None or part is None:
        assert error is not None, "a record has a topic"
        raise BackupFailed(f"Kafka: {error.str()}: check the broker, and take the backup again")
    at = TopicName(topic), PartitionIndex(part)
    if error is None:
        return at, _saved(message)
    if error.code() == KafkaError._PARTITION_EOF:
        return at, None
    raise BackupFailed(f"Kafka: `{topic}`[{part}]: {error.str()}")


def _saved(message: Message) -> SavedRecord:
    offset, headers = message.offset(), message.headers()
    assert offset is not None, "a message without error has an offset"
    listed = headers.items() if isinstance(headers, dict) else headers or ()
    return SavedRecord(
        Offset(offset),
        _bytes(message.key()),
        _bytes(message.value()),
        tuple((str(name), _bytes(value)) for name, value in listed),
    )


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


class KafkaWriter:
    """Writes one topic partition after another by plan; use it from one thread.

    Raises RestoreFailed, or KafkaException.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        # Only this program writes, so no open transaction delays a reader: time for a slow broker.
        config = producer_config(settings, f"restore.{name}") | {
            "transaction.timeout.ms": TRANSACTION_MS
        }
        plain = {k: v for k, v in config.items() if not k.startswith("transaction")}
        self._plain: Any = Producer(plain | {"linger.ms": 5, "compression.type": "lz4"})
        self._transactional: Any = Producer(config)
        self._transactional.init_transactions(REQUEST_S)
        # It stays open while the transactions after it are written.
        self._first: Any = Producer(config | {"transactional.id": f"restore.{name}.first"})
        self._first.init_transactions(REQUEST_S)
        # Committed or not: the next offset counts.
        watched = consumer_config(settings) | {"isolation.level": "read_uncommitted"}
        self._watcher: Any = Consumer(watched)

    def __enter__(self) -> KafkaWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher.close()

    def write(self, target: TopicPartition, steps: Iterator[PlanStep]) -> Offset:
        """Write an empty log by plan; return its end."""
        end = Offset(0)
        for step in steps:
            match step:
                case Fill(count):
                    for first in range(0, count, FILL_RECORDS):
                        portion = min(FILL_RECORDS, count - first)
                        self._produce(self._plain, target, [_filler(end)] * portion)
                    end = Offset(end + count)
                case Write(records, in_transaction):
                    assert records[0].offset == end, "the plan is contiguous"
                    if in_transaction:
                        self._transactional.begin_transaction()
                        self._produce(self._transactional, target, records)
                        self._transactional.commit_transaction(REQUEST_S)
                    else:
                        self._produce(self._plain, target, records)
                    end = Offset(end + len(records) + in_transaction)
                case Abort(count):
                    self._transactional.begin_transaction()
                    self._produce(self._transactional, target, [_filler(end)] * count)
                    self._transactional.abort_transaction(REQUEST_S)
                    end = Offset(end + count + 1)
                case OpenFirst():
                    self._first.begin_transaction()
                    self._produce(self._first, target, [_filler(end)])
                    end = Offset(end + 1)
                case CloseFirst():
                    self._first.abort_transaction(REQUEST_S)
                    end = Offset(end + 1)
                case unexpected:
                    assert_never(unexpected)
            self._await_end(target, end)
        return end

    def _produce(
        self, producer: Any, target: TopicPartition, records: Sequence[SavedRecord]
    ) -> None:
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        for record in records:
            while True:
                try:
                    producer.produce(
                        target[0],
                        record.value,
                        record.key,
                        target[1],
                        headers=list(record.headers),
                        on_delivery=delivered,
                    )
                    break
                except BufferError:
                    producer.poll(POLL_S)
        if producer.flush(SILENCE_S) or failures:
            reason = failures[0].str() if failures else f"no response within {SILENCE_S:g} s"
            raise RestoreFailed(f"Kafka: `{target[0]}`[{target[1]}] was not written: {reason}")

    def _await_end(self, target: TopicPartition, end: Offset) -> None:
        """Wait until the log ends at `end`.

        The broker acknowledges the end of a transaction before it writes its marker, and the next
        record must not overtake it.
        """
        deadline_s = time.monotonic() + SILENCE_S
        while True:
            _, found = self._watcher.get_watermark_offsets(
                RdTopicPartition(*target), timeout=REQUEST_S, cached=False
            )
            if found == end:
                return
            if found > end or time.monotonic() > deadline_s:
                raise RestoreFailed(
                    f"`{target[0]}`[{target[1]}] ends at {found} and not at {end}: another "
                    "program writes to it; stop it, and restore into a new installation"
                )
            time.sleep(0.002)


def _filler(at: Offset) -> SavedRecord:
    """Return a record that no reader sees. A compacted topic refuses records without a key."""
    return SavedRecord(at, b"", None, ())
