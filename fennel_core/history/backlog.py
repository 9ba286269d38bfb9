"""Decide which partitions to roll into history now. Pure.

Theory. Small files cost every later reader; late files cost nothing, because records that are not
in history are read from the topic. So a partition waits until it has enough records for a file, or
has waited long enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fennel_core.vocab.ids import Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class RollRule:
    """When to roll a partition.

    `enough_records`: messages that are worth a file. `wait_s`: the longest wait of a partition with
    fewer.
    """

    enough_records: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """The offsets [start, end) that history lacks of a partition, since `since_s` (monotonic)."""

    start: Offset
    end: Offset
    since_s: float

    @property
    def records(self) -> int:
        return self.end - self.start


def backlogs(
    starts: Mapping[TopicPartition, Offset],
    ends: Mapping[TopicPartition, Offset],
    before: Mapping[TopicPartition, Backlog],
    now_s: float,
) -> dict[TopicPartition, Backlog]:
    """Return the partitions that are behind; one whose start has not moved keeps its age.

    `starts` defaults to 0; `before` is the previous result.
    """
    found = {}
    for partition, end in ends.items():
        start = starts.get(partition, Offset(0))
        if start < end:
            known = before.get(partition)
            unmoved = known is not None and known.start == start
            found[partition] = Backlog(start, end, known.since_s if known and unmoved else now_s)
    return found


def due_partitions(
    behind: Mapping[TopicPartition, Backlog], rule: RollRule, now_s: float
) -> dict[TopicPartition, Backlog]:
    """Return the partitions to roll now."""
    return {
        partition: each
        for partition, each in behind.items()
        if each.records >= rule.enough_records or now_s - each.since_s >= rule.wait_s
    }
