"""Below which records rows may leave history."""

from __future__ import annotations

import pytest

from fennel_core.definition.kafka_retention import RetentionSurvey
from fennel_core.snapshots.log_retention import LogKind, LogPartition, RequiredOffset
from fennel_core.vocab.ids import JobId, Offset, PartitionIndex, TopicName

AT = (TopicName("w.topic.a.1"), PartitionIndex(0))
UNKNOWN = (TopicName("w.topic.b.2"), PartitionIndex(0))


def needs(*offsets: int) -> tuple[RequiredOffset, ...]:
    return tuple(
        RequiredOffset(JobId(f"j{n}"), "a job", AT[1], Offset(offset), snapshots=1)
        for n, offset in enumerate(offsets)
    )


@pytest.mark.parametrize(
    ("start", "needed", "expected"),
    [(50, (), 50), (50, (90, 60), 50), (50, (90, 20), 20), (50, (90, 0), 0), (0, (90,), 0)],
    ids=["the-log", "the-log-before-readers", "a-reader", "a-new-reader", "a-whole-log"],
)
def test_neither_a_reader_nor_the_log_may_have_a_record_that_is_removed(
    start: int, needed: tuple[int, ...], expected: int
) -> None:
    log = LogPartition(
        *AT, LogKind.CONTENT, Offset(start), Offset(99), aged=Offset(99), warned=Offset(99)
    )
    survey = RetentionSurvey({AT: log}, {AT: needs(*needed), UNKNOWN: needs(5)}, {})
    assert survey.removable() == {AT: expected}
