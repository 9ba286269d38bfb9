"""Read a range of one partition with a consumer of its own."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as RdTopicPartition

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.kafka import CONTROL_HEADER, consumer_config
from fennel_core.engine.broker import Record
from fennel_core.engine.errors import OffsetTruncated
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, TopicPartition


def to_record(message: Message) -> Record:
    """Copy a message that the client delivered."""
    headers = message.headers()
    control = (
        next((value.decode() for name, value in headers if name == CONTROL_HEADER), None)
        if headers
        else None
    )
    return Record(Offset(message.offset()), message.value(), control)


def read_range(
    settings: Settings,
    source: TopicPartition,
    first: Offset,
    stop: Offset | None,
    timeout_s: float,
) -> list[Record]:
    """Return the committed records with first <= offset < stop; see `engine.broker.Broker.read`."""
    consumer = Consumer(consumer_config(settings, fetch_wait_ms=1))
    records: list[Record] = []
    try:
        end = (
            stop
            if stop is not None
            else Offset(consumer.get_watermark_offsets(RdTopicPartition(*source), timeout_s)[1])
        )
        if first >= end:
            return []
        consumer.assign([RdTopicPartition(*source, offset=first)])
        while True:
            message = consumer.poll(timeout_s)
            if message is None:
                raise SystemUnavailable(
                    f"the broker did not respond while {source[0]}[{source[1]}] was read"
                )
            error = message.error()
            if error is None and message.offset() < end:
                records.append(to_record(message))
            elif error is None or (
                error.code() == KafkaError._PARTITION_EOF and message.offset() >= end
            ):
                return records
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                start = Offset(
                    consumer.get_watermark_offsets(RdTopicPartition(*source), timeout_s)[0]
                )
                raise OffsetTruncated(source, first, start)
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if records and records[-1].offset + 1 >= end:
                return records
    finally:
        consumer.close()
