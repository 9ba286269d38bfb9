"""How far a log may be deleted, and when an alarm is raised."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.snapshots.log_retention import (
    LogKind,
    LogPartition,
    RequiredOffset,
    RetentionProblem,
    deletion_bound,
    retention_alarm,
)
from fennel_core.vocab.ids import JobId, Offset, PartitionIndex, TopicName

OFFSETS = st.integers(0, 20).map(Offset)


def a_log(kind: LogKind, start: int, warned: int, aged: int, end: int) -> LogPartition:
    return LogPartition(
        TopicName("t"),
        PartitionIndex(2),
        kind,
        Offset(start),
        Offset(end),
        Offset(aged),
        Offset(warned),
    )


def needing(offset: int, snapshots: int = 1) -> RequiredOffset:
    return RequiredOffset(
        JobId("w.job.a.1"), "Totals: aggregate", PartitionIndex(2), Offset(offset), snapshots
    )


LOG = a_log(LogKind.CONTENT, 10, 60, 50, 100)


def test_content_is_deleted_by_age_up_to_history_and_required_offsets() -> None:
    assert deletion_bound(LOG, [needing(80), needing(90)], Offset(70)) == 50
    assert deletion_bound(LOG, [needing(80), needing(40)], Offset(70)) == 40
    assert deletion_bound(LOG, [needing(80)], Offset(30)) == 30
    assert deletion_bound(LOG, [needing(80)], None) == 50, "without history there is only age"
    assert deletion_bound(LOG, [], Offset(0)) == 10, "history has not begun"


def test_passage_topics_do_not_wait_for_history() -> None:
    assert (
        deletion_bound(dataclasses.replace(LOG, kind=LogKind.PASSAGE), [needing(80)], Offset(0))
        == 50
    )


def test_a_replaylog_is_deleted_up_to_what_snapshots_need_at_any_age() -> None:
    replaylog = dataclasses.replace(LOG, kind=LogKind.REPLAYLOG)
    assert deletion_bound(replaylog, [needing(80)], Offset(0)) == 80
    assert deletion_bound(replaylog, [], None) == 10, (
        "a topic without a known reader may get one soon"
    )


@given(
    kind=st.sampled_from(LogKind),
    cuts=st.lists(OFFSETS, min_size=4, max_size=4).map(sorted),
    needs=st.lists(OFFSETS),
    history=OFFSETS,
)
def test_the_deletion_bound_is_within_the_log_and_below_required_offsets(
    kind: LogKind, cuts: list[int], needs: list[int], history: int
) -> None:
    start, aged, warned, end = cuts
    found = deletion_bound(
        a_log(kind, start, warned, aged, end), [needing(n) for n in needs], Offset(history)
    )
    assert start <= found <= end
    assert found == start or all(found <= n for n in needs)


def test_an_alarm_is_raised_for_expiring_and_for_lost_records() -> None:
    assert retention_alarm(LOG, needing(60)) is None
    old = retention_alarm(LOG, needing(59))
    assert old is not None
    assert (old.problem, old.job, old.part) == (RetentionProblem.OLD, "w.job.a.1", 2)
    assert "Totals: aggregate (w.job.a.1[2]) holds back t[2] at 59" in old.message
    lost = retention_alarm(LOG, needing(9, snapshots=0))
    assert lost is not None
    assert lost.problem is RetentionProblem.LOST
    assert "records 9 to 9 of t[2]" in lost.message


def test_backfilled_records_are_not_lost_until_there_is_a_snapshot() -> None:
    log = a_log(LogKind.CONTENT, 40, 40, 40, 100)
    assert (
        retention_alarm(log, dataclasses.replace(needing(0, snapshots=0), backfilled=True)) is None
    )
    lost = retention_alarm(log, dataclasses.replace(needing(9, snapshots=1), backfilled=True))
    assert lost is not None
    assert lost.problem is RetentionProblem.LOST


def test_a_fully_read_log_raises_no_alarm() -> None:
    assert retention_alarm(a_log(LogKind.CONTENT, 0, 100, 100, 100), needing(100)) is None
    assert retention_alarm(a_log(LogKind.CONTENT, 0, 0, 0, 0), needing(0, snapshots=0)) is None
