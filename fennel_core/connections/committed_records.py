"""Read logs of the platform's Kafka up to their end, and miss nothing that was committed before.

The end of a log may be behind a transaction that is open, and behind that one may be records that
another transaction has committed: consumers of committed records do not see them yet. So the end
is the one that includes open transactions, and the reader waits until it is reached.

    ends = log_ends(settings, [("shop.dead.x.1", 0)])
    for at, message in committed_records(settings, ends): ...
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.kafka import client_config, consumer_config
from fennel_core.connections.offsets import high_watermarks
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition

REQUEST_S: Final = 15.0
POLL_S: Final = 0.1
BATCH: Final = 1000


def log_ends(
    settings: Settings, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Offset]:
    """Return the end of each log, including open transactions; blocks.

    Raises `SystemUnavailable`.
    """
    try:
        return high_watermarks(AdminClient(client_config(settings)), list(partitions), REQUEST_S)
    except KafkaException as failed:
        raise SystemUnavailable(f"Kafka: {failed}") from failed


def committed_records(
    settings: Settings, ends: Mapping[TopicPartition, Offset], batch: int = BATCH
) -> Iterator[tuple[TopicPartition, Message]]:
    """Yield the committed records before `ends`, those of each partition in order; blocks.

    Raises `SystemUnavailable`, also if for some time nothing arrives, as while a transaction that a
    dead process left open has not ended.
    """
    patience_s = REQUEST_S + 2 * settings.transaction_timeout_ms / 1000
    return records_before(consumer_config(settings), ends, patience_s, batch)


def records_before(
    config: Mapping[str, Any],
    ends: Mapping[TopicPartition, Offset],
    patience_s: float,
    batch: int = BATCH,
) -> Iterator[tuple[TopicPartition, Message]]:
    """Yield the same of any cluster, with a consumer of `config`, which reports ends of partitions.

    `patience_s`: for how long nothing may arrive.
    """
    left = {at: 0 for at, end in ends.items() if end > 0}
    if not left:
        return
    consumer: Any = Consumer(dict(config))
    try:
        consumer.assign([RdTopicPartition(*at, OFFSET_BEGINNING) for at in left])
        deadline_s = time.monotonic() + patience_s
        while left:
            if time.monotonic() > deadline_s:
                (topic, partition), reached = next(iter(left.items()))
                raise SystemUnavailable(
                    f"`{topic}`[{partition}] could not be read to its end: Kafka sends no records "
                    f"from {reached} to {ends[topic, partition]}"
                )
            for message in consumer.consume(batch, POLL_S):
                at = (TopicName(message.topic()), PartitionIndex(message.partition()))
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise SystemUnavailable(f"`{at[0]}`[{at[1]}]: {error.str()}")
                if error is None and message.offset() < ends[at]:
                    deadline_s = time.monotonic() + patience_s
                    yield at, message
                if at in left:
                    left[at] = max(left[at], message.offset() + (error is None))
                    if left[at] >= ends[at]:
                        del left[at]
    except KafkaException as failed:
        raise SystemUnavailable(f"Kafka: {failed}") from failed
    finally:
        consumer.close()
