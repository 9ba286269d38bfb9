"""The counts of dead letters, and where counting goes on.

Theory. Ingest and jobs write dead letters in the transactions of the rows that they do accept, so
the dead-letter topics hold each of them exactly once, across crashes and replays. Counters in those
processes could not say that: they forget with the process, and a slot has no port to export them.
So the topics are counted. A count and the offset up to which it counts are changed together, and
only by the counter that read on from the offset that is stored: any number of servers may count.

Example. The stored offset of partition 0 is 40. Two servers read 40 to 44 and want to store 45. The
second finds 45 in place of 40, changes nothing, and reads on from 45 in its next pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fennel_core.vocab.dead_letters import DeadLetterKind, DeadLetterOrigin, SettledLetter
from fennel_core.vocab.ids import Millis, Offset, TopicName, TopicPartition, WorkspaceId

REASON_CHARACTERS = 500
"""Characters that are kept of the newest reason: enough to recognise it."""


@dataclass(frozen=True, slots=True)
class DeadLetterMessage:
    """One message of a dead-letter topic."""

    offset: Offset
    rows: int
    origin: DeadLetterOrigin
    written_ms: Millis
    settled: tuple[SettledLetter, ...] | None = None
    """Of a message that is no letter: what became of letters of its partition."""


@dataclass(frozen=True, slots=True, order=True)
class CountKey:
    """What one count is about."""

    writer: str
    subject: str
    kind: DeadLetterKind


@dataclass(frozen=True, slots=True)
class LetterCount:
    """How many rows, with time and reason of the newest."""

    rows: int
    """Rows of letters, whatever became of them."""
    newest_ms: Millis
    newest_reason: str
    replayed: int = 0
    dropped: int = 0
    refused: int = 0
    """Rows that a replay refused again: they are rows of another letter."""
    superseded: int = 0
    """Changes that a sink did not send again, because a later one of their key followed."""

    @property
    def open(self) -> int:
        """Rows that still wait for a replay, or to be dropped."""
        return self.rows - self.replayed - self.dropped - self.refused - self.superseded


@dataclass(frozen=True, slots=True)
class CountedRange:
    """What the offsets [first, next_offset) of a partition add to the counts of its topic."""

    source: TopicPartition
    first: Offset
    next_offset: Offset
    counts: Mapping[CountKey, LetterCount]


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """A count as it is reported."""

    workspace: WorkspaceId
    key: CountKey
    count: LetterCount


class DeadLetterCounts(Protocol):
    """The stored counts. Every method raises SystemUnavailable if the database cannot be used."""

    async def topics(self) -> Mapping[TopicName, int]:
        """Return every dead-letter topic that is not being destroyed, with its partitions."""
        ...

    async def positions(self) -> Mapping[TopicPartition, Offset]:
        """Return the next offset to count of each partition; it is 0 where it is absent."""
        ...

    async def add(self, counted: CountedRange) -> bool:
        """Add a range that begins where counting stopped.

        Returns False, and changes nothing, if another server has counted its first offset.
        """
        ...

    async def read(self) -> Sequence[DeadLetterCount]:
        """Return all counts of topics that are not being destroyed."""
        ...


def count_messages(messages: Iterable[DeadLetterMessage]) -> dict[CountKey, LetterCount]:
    """Return the counts of messages in the order of their offsets."""
    found: dict[CountKey, LetterCount] = {}
    for message in messages:
        for letter in message.settled or ():
            key = CountKey(letter.writer, letter.subject, letter.kind)
            outcomes = (letter.replayed, letter.dropped, letter.refused, letter.superseded)
            change = LetterCount(0, Millis(0), "", *outcomes)
            found[key] = added(found[key], change) if key in found else change
        if message.settled is not None:
            continue
        origin = message.origin
        key = CountKey(origin.writer, origin.subject, origin.kind)
        reason = origin.reason[:REASON_CHARACTERS]
        counted = LetterCount(message.rows, message.written_ms, reason)
        found[key] = added(found[key], counted) if key in found else counted
    return found


def added(left: LetterCount, right: LetterCount) -> LetterCount:
    """Return the sum of two counts, with the reason of the newer one; of equals, the right one."""
    last = left if left.newest_ms > right.newest_ms else right
    return LetterCount(
        left.rows + right.rows,
        last.newest_ms,
        last.newest_reason,
        left.replayed + right.replayed,
        left.dropped + right.dropped,
        left.refused + right.refused,
        left.superseded + right.superseded,
    )
