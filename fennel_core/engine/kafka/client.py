"""What the consumer needs of a Kafka client, and the records of its messages.

The simulation implements these protocols over a model of the log; one suite checks the model and
librdkafka alike (`tests/contract/engine/test_consumer_client.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from confluent_kafka import KafkaError

from fennel_core.connections.kafka import CONTROL_HEADER
from fennel_core.engine.broker import Record
from fennel_core.vocab.ids import Offset


class ClientMessage(Protocol):
    """A message, the end of a partition, or an error (`confluent_kafka.Message`)."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Any: ...
    def error(self) -> KafkaError | None: ...


class ConsumerClient(Protocol):
    """A consumer of committed records that is assigned by hand (`confluent_kafka.Consumer`).

    - After `incremental_assign` at offset n, the first message has an offset of n or more.
    - After `incremental_unassign` or `pause` has returned, no message or end of that partition is
      delivered any more, also if the client had fetched it before.
    - After `resume`, delivery goes on after the last message delivered.
    - The end of a partition is reported at most once until more is delivered, with the offset that
      the next record will have or exceed.
    """

    def incremental_assign(self, partitions: list[Any]) -> None: ...
    def incremental_unassign(self, partitions: list[Any]) -> None: ...
    def pause(self, partitions: list[Any]) -> None: ...
    def resume(self, partitions: list[Any]) -> None: ...
    def poll(self, timeout: float) -> Any: ...
    def consume(self, num_messages: int, timeout: float) -> Sequence[Any]: ...
    def get_watermark_offsets(self, partition: Any, *, cached: bool) -> Any: ...
    def close(self) -> None: ...


def to_record(message: ClientMessage) -> Record:
    """Copy a message that the client delivered."""
    headers, offset, value = message.headers(), message.offset(), message.value()
    assert offset is not None, "a message without error has an offset"
    assert value is not None, "no writer of ours sends empty messages"
    control = (
        next((content.decode() for name, content in headers if name == CONTROL_HEADER), None)
        if headers
        else None
    )
    return Record(Offset(offset), value, control)
