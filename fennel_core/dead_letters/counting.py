"""Count dead letters, pass by pass.

Theory. A pass reads each partition from the stored offset to the end that it had when the pass
began, at most `MESSAGES_PER_PASS` of them, so a pass is bounded and the next one continues. A pass
that fails or dies in between has stored complete ranges only. Messages that Kafka deleted before
they were counted are reported as an error: nothing else could have counted them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

import structlog

from fennel_core.dead_letters.counts import (
    CountedRange,
    DeadLetterCounts,
    DeadLetterMessage,
    count_messages,
)
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition

log = structlog.get_logger(__name__)

MESSAGES_PER_PASS: Final = 5_000
"""Of one partition: bounds how long a pass takes after an outage."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets [first, end) of a partition; all transactions below `end` have ended."""

    first: Offset
    end: Offset


class DeadLetterLog(Protocol):
    """The dead-letter topics. Its methods block, and raise SystemUnavailable."""

    def bounds(self, topics: Mapping[TopicName, int]) -> Mapping[TopicPartition, LogRange]:
        """Return the range of each partition of those topics that exist."""
        ...

    def read(self, source: TopicPartition, wanted: LogRange) -> Iterator[DeadLetterMessage]:
        """Yield the committed messages of a range in order."""
        ...


async def count_new_letters(counts: DeadLetterCounts, letters: DeadLetterLog) -> int:
    """Add what is not counted yet; return how many rows. Raises SystemUnavailable."""
    topics = await counts.topics()
    if not topics:
        return 0
    positions = await counts.positions()
    bounds = await asyncio.to_thread(letters.bounds, topics)
    rows = 0
    for source, available in sorted(bounds.items()):
        position = positions.get(source, Offset(0))
        if position >= available.end:
            continue
        counted = await asyncio.to_thread(_count_range, letters, source, position, available)
        if await counts.add(counted):
            rows += sum(count.rows for count in counted.counts.values())
    return rows


def _count_range(
    letters: DeadLetterLog, source: TopicPartition, position: Offset, available: LogRange
) -> CountedRange:
    """Count from the stored offset on. Blocks."""
    first = max(position, available.first)
    if first > position:
        log.error(
            "dead letters were deleted before they were counted",
            topic=source[0],
            part=source[1],
            first=position,
            next=first,
        )
    if first >= available.end:
        return CountedRange(source, position, available.end, {})
    found = letters.read(source, LogRange(first, available.end))
    messages = list(islice(found, MESSAGES_PER_PASS))
    complete = len(messages) < MESSAGES_PER_PASS
    end = available.end if complete else Offset(messages[-1].offset + 1)
    return CountedRange(source, position, end, count_messages(messages))
