"""What a backup must contain of a log."""

from __future__ import annotations

import pytest

from fennel_core.apps.backup.take import RECENT_OFFSETS, first_needed
from fennel_core.definition.kafka_retention import RetentionSurvey
from fennel_core.snapshots.log_retention import LogKind, LogPartition, RequiredOffset
from fennel_core.vocab.ids import JobId, Offset, PartitionIndex, TopicName

AT = (TopicName("w.topic.a.1"), PartitionIndex(0))
FIRST, END = Offset(5_000), Offset(20_000)


def survey(kind: LogKind, needed: int | None, history: int | None) -> RetentionSurvey:
    log = LogPartition(*AT, kind, FIRST, END, aged=FIRST, warned=FIRST)
    need = RequiredOffset(JobId("j"), "a job", AT[1], Offset(needed or 0), snapshots=1)
    ends = None if history is None else {AT: Offset(history)}
    return RetentionSurvey({AT: log}, {} if needed is None else {AT: (need,)}, ends)


@pytest.mark.parametrize(
    ("kind", "needed", "history", "expected"),
    [
        (LogKind.CONTENT, 9_000, 12_000, 9_000),
        (LogKind.CONTENT, 15_000, 12_000, 12_000),
        (LogKind.CONTENT, None, 20_000, END - RECENT_OFFSETS),
        (LogKind.CONTENT, 19_999, 19_999, END - RECENT_OFFSETS),
        (LogKind.CONTENT, 15_000, None, FIRST),
        (LogKind.CONTENT, 15_000, 0, FIRST),
        (LogKind.REPLAYLOG, 19_000, 12_000, 19_000),
        (LogKind.REPLAYLOG, None, None, FIRST),
        (LogKind.PASSAGE, 19_000, 20_000, FIRST),
    ],
    ids=[
        "a-reader",
        "history",
        "inspect",
        "inspect-with-a-reader",
        "no-history",
        "nothing-in-history",
        "replaylog",
        "replaylog-of-a-new-job",
        "passage",
    ],
)
def test_records_that_nothing_else_has_are_saved(
    kind: LogKind, needed: int | None, history: int | None, expected: int
) -> None:
    assert first_needed(survey(kind, needed, history), AT, FIRST) == expected


def test_a_topic_that_no_rule_covers_is_saved_as_a_whole() -> None:
    nothing = RetentionSurvey({}, {}, None)
    assert first_needed(nothing, AT, FIRST) == FIRST
