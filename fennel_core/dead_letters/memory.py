"""Counts of dead letters in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fennel_core.dead_letters.counts import (
    CountedRange,
    CountKey,
    DeadLetterCount,
    LetterCount,
    added,
)
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition, WorkspaceId


@dataclass
class MemoryDeadLetterCounts:
    """`DeadLetterCounts`; `living` are the topics with workspace and partitions."""

    living: dict[TopicName, tuple[WorkspaceId, int]] = field(default_factory=dict)
    _counts: dict[tuple[TopicName, CountKey], LetterCount] = field(default_factory=dict)
    _positions: dict[TopicPartition, Offset] = field(default_factory=dict)

    async def topics(self) -> Mapping[TopicName, int]:
        return {topic: partitions for topic, (_, partitions) in self.living.items()}

    async def positions(self) -> Mapping[TopicPartition, Offset]:
        return dict(self._positions)

    async def add(self, counted: CountedRange) -> bool:
        if self._positions.get(counted.source, 0) != counted.first:
            return False
        self._positions[counted.source] = counted.next_offset
        for key, count in counted.counts.items():
            at = counted.source[0], key
            before = self._counts.get(at)
            self._counts[at] = count if before is None else added(before, count)
        return True

    async def read(self) -> Sequence[DeadLetterCount]:
        return [
            DeadLetterCount(self.living[topic][0], key, count)
            for (topic, key), count in sorted(self._counts.items(), key=lambda each: each[0])
            if topic in self.living
        ]
