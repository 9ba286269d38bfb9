"""The interface of the log that a runner uses.

`kafka.py` implements it with Kafka, `memory_broker.py` in memory; one contract suite tests both.

Theory. A runner reads committed records of its input partitions in order, and commits outputs and a
marker in one transaction under a stable transactional id. Opening a producer fences every earlier
producer with that id. A commit fails in one of three ways:

- `ProducerFenced`: a newer owner has opened this id. Stop.
- `TransactionAborted`: nothing was written. Commit again.
- `TransactionOutcomeUnknown`: the records may or may not be written. Close the producer, open a new
  one and read the outcome from the replaylog.

Kafka deletes the oldest records of a log with time. A reader that still needs them gets
`OffsetTruncated`; it is never moved to the log's new beginning.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fennel_core.engine.errors import OffsetBeyondEnd, OffsetTruncated
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition


@dataclass(frozen=True, slots=True)
class Record:
    offset: Offset
    value: bytes
    control: str | None
    """Kind of a control record of ours (header `c`, for example `watermark`); None for rows."""


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """Consecutive committed records of one partition.

    The offsets up to `next` hold nothing else; gaps are Kafka's transaction markers.
    """

    source: TopicPartition
    records: tuple[Record, ...]
    next: Offset


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    topic: TopicName
    partition: int
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


def require_within_log(
    source: TopicPartition, position: Offset, start: Offset, end: Offset
) -> None:
    """Check that a reader may begin at `position` of a log that holds [start, end).

    Raises OffsetTruncated or OffsetBeyondEnd.
    """
    if position < start:
        raise OffsetTruncated(source, position, start)
    if position > end:
        raise OffsetBeyondEnd(source, position, end)


class Producer(Protocol):
    async def commit(self, records: Sequence[OutgoingRecord]) -> Mapping[TopicPartition, Offset]:
        """Write all records in one transaction; return the next offset of each partition written.

        Readers may see the records a moment after it returns. Raises ProducerFenced,
        TransactionAborted, TransactionOutcomeUnknown.
        """
        ...

    async def close(self) -> None: ...


class Subscription(Protocol):
    """A fair, buffered reader of some partitions for one runner."""

    async def next(self, max_bytes: int) -> FetchedRecords:
        """Wait for the next records of any partition, round robin.

        At most `max_bytes`, unless a single record is larger. A result without records means that
        nothing lies below its `next`. Raises SystemUnavailable.
        """
        ...

    def ends(self) -> Mapping[TopicPartition, Offset] | None:
        """Return the last known ends of the logs; None until all are known."""
        ...

    async def close(self) -> None: ...


class RangeReader(Protocol):
    """Reads ranges of logs one after the other; ranges that adjoin cost the least."""

    def read(
        self, source: TopicPartition, first: Offset, stop: Offset | None = None
    ) -> AsyncIterator[tuple[Record, ...]]:
        """Yield the committed records with first <= offset < stop, in portions.

        `stop` None: the current end of the log. Raises OffsetTruncated, SystemUnavailable. Read one
        range of a partition to its end before you read the next one.
        """
        ...

    async def close(self) -> None: ...


class Broker(Protocol):
    async def starts(self, sources: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        """Return the first retained offset of each log. Raises SystemUnavailable."""
        ...

    async def subscribe(self, positions: Mapping[TopicPartition, Offset]) -> Subscription:
        """Read from these positions on.

        Raises OffsetTruncated, OffsetBeyondEnd, SystemUnavailable.
        """
        ...

    async def producer(self, transactional_id: str) -> Producer:
        """Open a producer, fence all earlier ones and end their open transactions.

        Raises SystemUnavailable.
        """
        ...

    async def range_reader(self) -> RangeReader:
        """Open a reader of ranges, for one replay. Raises SystemUnavailable."""
        ...
