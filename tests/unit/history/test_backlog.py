"""Which partitions are rolled now."""

from __future__ import annotations

from fennel_core.history.backlog import Backlog, RollRule, backlogs, due_partitions
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition

A: TopicPartition = (TopicName("a"), PartitionIndex(0))
B: TopicPartition = (TopicName("a"), PartitionIndex(1))


def behind(start: int, end: int, since_s: float) -> Backlog:
    return Backlog(Offset(start), Offset(end), since_s)


def test_a_partition_is_due_when_it_has_enough_or_has_waited_long_enough() -> None:
    rule = RollRule(enough_records=10, wait_s=60)
    waiting = {A: behind(0, 9, 100.0), B: behind(5, 15, 100.0)}
    assert set(due_partitions(waiting, rule, 100.0)) == {B}
    assert set(due_partitions(waiting, rule, 159.9)) == {B}
    assert set(due_partitions(waiting, rule, 160.0)) == {A, B}


def test_a_partition_ages_from_the_time_its_start_was_first_behind() -> None:
    first = backlogs({}, {A: Offset(3), B: Offset(0)}, {}, 10.0)
    assert first == {A: behind(0, 3, 10.0)}
    assert backlogs({}, {A: Offset(7)}, first, 20.0) == {A: behind(0, 7, 10.0)}, "it only grew"
    assert backlogs({A: Offset(3)}, {A: Offset(7)}, first, 20.0) == {A: behind(3, 7, 20.0)}, (
        "it was rolled in between"
    )
    assert backlogs({A: Offset(7)}, {A: Offset(7)}, first, 20.0) == {}
