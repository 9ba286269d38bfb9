"""What a runner needs of the log; `kafka.py` is the real one, `memory_broker.py` its twin, one
contract suite holds both to it.

Theory. A runner reads committed records of its input partitions in order, and commits outputs and a
marker in one transaction under a stable transactional id. Opening a producer fences every earlier
one of that id. A failed commit has one of three meanings and each has its own error:
`ProducerFenced` (somebody newer owns this id: stop), `TransactionAborted` (nothing was written: try
again), `TransactionOutcomeUnknown` (it may or may not have been written: throw the producer away,
open a new one, look at the replaylog). A log loses its oldest records in time; a reader that still
needs them is told (`OffsetTruncated`), never set to where the log begins now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fennel_core.engine.errors import OffsetBeyondEnd, OffsetTruncated
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition


@dataclass(frozen=True, slots=True)
class Record:
    offset: Offset
    value: bytes
    control: str | None
    """Kind of a control record of ours (header `c`: a frontier), None for data."""


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """Consecutive committed records of one partition. Offsets [records' first, next) hold nothing
    else: gaps are transaction markers.
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
    """Raise Gone or Beyond unless a reader may begin at `position` of a log that holds [start,
    end).
    """
    if position < start:
        raise OffsetTruncated(source, position, start)
    if position > end:
        raise OffsetBeyondEnd(source, position, end)


class Producer(Protocol):
    async def commit(self, records: Sequence[OutgoingRecord]) -> Mapping[TopicPartition, Offset]:
        """Write all records in one transaction; the offset after the last one written to each
        partition. Raises as the module says.

        Nothing takes it back from here on, but readers may see it a moment later.
        """
        ...

    async def close(self) -> None: ...


class Subscription(Protocol):
    """A fair, buffered reader of some partitions for one runner."""

    async def next(self, max_bytes: int) -> FetchedRecords:
        """Wait for the next records of any partition (in turn), at most `max_bytes` unless one
        record is larger.

        An answer without records says only that nothing lies below its `next`. Raises Unavailable.
        """
        ...

    def lag(self) -> int | None:
        """Records between what was handed out and the ends as last seen; None before the ends are
        known.
        """
        ...

    async def close(self) -> None: ...


class Broker(Protocol):
    async def starts(self, sources: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        """Where these logs begin: what lies below is gone. Raises Unavailable."""
        ...

    async def subscribe(self, positions: Mapping[TopicPartition, Offset]) -> Subscription:
        """Read on from these positions. Raises Gone, Beyond, Unavailable."""
        ...

    async def producer(self, transactional_id: str) -> Producer:
        """A producer of this id, fencing every earlier one and settling their open transactions.
        Raises Unavailable.
        """
        ...

    async def read(
        self, source: TopicPartition, first: Offset, stop: Offset | None = None
    ) -> list[Record]:
        """Committed records with first <= offset < stop (None: the end as of now). Raises Gone,
        Unavailable.
        """
        ...
