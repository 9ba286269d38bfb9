"""What history holds and lacks: by topic, by group, and when it is late."""

from __future__ import annotations

from fennel_core.history import topic_counts
from fennel_core.history.backlog import Backlog, RollRule
from fennel_core.history.store import HistoryTotals
from fennel_core.history.topic_counts import TopicGroup, count_groups, count_topics
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName

RIDES, USERS = TopicName("w.topic.rides.1"), TopicName("w.topic.users.2")
RAW, DELETED = TopicName("w.raw.hook.3"), TopicName("gone.topic.x.4")
TOTALS = {RIDES: HistoryTotals(2, 20, 200), DELETED: HistoryTotals(1, 5, 50)}


def test_topics_are_counted_with_and_without_files_and_with_the_longest_wait() -> None:
    waiting = {
        (RIDES, PartitionIndex(0)): Backlog(Offset(7), Offset(9), 990.0),
        (RIDES, PartitionIndex(1)): Backlog(Offset(0), Offset(3), 400.0),
        (RAW, PartitionIndex(0)): Backlog(Offset(0), Offset(1), 1000.0),
    }
    found = count_topics(TOTALS, {RIDES, USERS, RAW}, waiting, {}, RollRule(1, 200.0), 1000.0)
    assert set(found) == {RIDES, USERS, RAW, DELETED}
    assert (found[RIDES].totals.rows, found[RIDES].lag_records, found[RIDES].waiting_s) == (
        20,
        5,
        600.0,
    )
    assert (found[USERS].lag_records, found[DELETED].totals.files) == (0, 1)
    assert not any(each.late for each in found.values()), "600 s is three times 200 s"
    late = count_topics(TOTALS, {RIDES}, waiting, {}, RollRule(1, 199.0), 1000.0)
    assert [topic for topic, each in late.items() if each.late] == [RIDES]


def test_a_short_wait_is_never_late() -> None:
    waiting = {(RIDES, PartitionIndex(0)): Backlog(Offset(0), Offset(1), 0.0)}
    for now_s, late in ((topic_counts.SHORTEST_LATE_S, False), (121.0, True)):
        found = count_topics({}, {RIDES}, waiting, {}, RollRule(1, 0.0), now_s)
        assert found[RIDES].late == late


def test_groups_are_sums_by_workspace_and_kind() -> None:
    waiting = {
        (RIDES, PartitionIndex(0)): Backlog(Offset(0), Offset(2), 10.0),
        (USERS, PartitionIndex(0)): Backlog(Offset(0), Offset(3), 700.0),
    }
    topics = count_topics(TOTALS, {RIDES, USERS, RAW}, waiting, {}, RollRule(1, 1.0), 1000.0)
    groups = count_groups(topics)
    assert set(groups) == {
        TopicGroup("w", "topic"),
        TopicGroup("w", "raw"),
        TopicGroup("gone", "topic"),
    }
    datasets = groups[TopicGroup("w", "topic")]
    assert (datasets.totals, datasets.lag_records, datasets.waiting_s, datasets.late) == (
        HistoryTotals(2, 20, 200),
        5,
        990.0,
        True,
    )
    assert not groups[TopicGroup("w", "raw")].late
