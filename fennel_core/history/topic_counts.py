"""What history holds and lacks, by topic for `fennel-core status` and by group for metrics. Pure.

Theory. There are as many topics as datasets in all workspaces, so a metric of each would have no
bound. Metrics are summed by workspace and kind of topic (`topic`, `raw`, `querylog`), and the time
that a group waits is that of the partition that waits longest. Status asks for each topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fennel_core.history.backlog import Backlog, RollRule
from fennel_core.history.store import HistoryTotals
from fennel_core.vocab.ids import TopicName, TopicPartition

LATE_FACTOR: Final = 3
SHORTEST_LATE_S: Final = 120.0
"""A partition that waits this many times as long as it should, and at least this long, is late: a
pass may fail, and one that is under way may take a while.
"""
NO_TOTALS: Final = HistoryTotals(0, 0, 0)


@dataclass(frozen=True, slots=True)
class TopicGroup:
    """Topics of one kind in one workspace."""

    workspace: str
    kind: str


@dataclass(frozen=True, slots=True)
class TopicCounts:
    """What history holds of a topic or a group, and what it lacks.

    `lag_records`: offsets that it lacks. `waiting_s`: since when it lacks the oldest of them, or
    since when the end of the topic is unknown, and the lag with it. `late`: whether that is longer
    than a working writer needs.
    """

    totals: HistoryTotals
    lag_records: int
    waiting_s: float
    late: bool


def group_of(topic: TopicName) -> TopicGroup:
    """Return the group of a topic, from its name."""
    workspace, kind, *_ = topic.split(".")
    return TopicGroup(workspace, kind)


def count_topics(
    totals: Mapping[TopicName, HistoryTotals],
    topics: Iterable[TopicName],
    behind: Mapping[TopicPartition, Backlog],
    unknown: Mapping[TopicName, float],
    rule: RollRule,
    now_s: float,
) -> dict[TopicName, TopicCounts]:
    """Return the counts of `topics` and of those that have files.

    `unknown`: topics whose ends cannot be read, and since when.
    """
    late_after_s = max(LATE_FACTOR * rule.wait_s, SHORTEST_LATE_S)
    lag: dict[TopicName, int] = {}
    waiting_s = {topic: now_s - since_s for topic, since_s in unknown.items()}
    for (topic, _), backlog in behind.items():
        lag[topic] = lag.get(topic, 0) + backlog.records
        waiting_s[topic] = max(waiting_s.get(topic, 0.0), now_s - backlog.since_s)
    return {
        topic: TopicCounts(
            totals.get(topic, NO_TOTALS),
            lag.get(topic, 0),
            waiting_s.get(topic, 0.0),
            waiting_s.get(topic, 0.0) > late_after_s,
        )
        for topic in sorted({*totals, *topics})
    }


def count_groups(topics: Mapping[TopicName, TopicCounts]) -> dict[TopicGroup, TopicCounts]:
    """Return the sums of the counts by group; the longest time; late if one of them is."""
    found: dict[TopicGroup, TopicCounts] = {}
    for topic, counts in topics.items():
        group = group_of(topic)
        before = found.get(group, TopicCounts(NO_TOTALS, 0, 0.0, False))
        found[group] = TopicCounts(
            HistoryTotals(
                before.totals.files + counts.totals.files,
                before.totals.rows + counts.totals.rows,
                before.totals.size_bytes + counts.totals.size_bytes,
                before.totals.lost_records + counts.totals.lost_records,
                before.totals.expired_rows + counts.totals.expired_rows,
            ),
            before.lag_records + counts.lag_records,
            max(before.waiting_s, counts.waiting_s),
            before.late or counts.late,
        )
    return found
