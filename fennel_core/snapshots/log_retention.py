"""Decide how far a log may be deleted, and which deletion would lose needed records. Pure.

Theory. Records are deleted by age, but never beyond the oldest position from which a job partition
may have to restart. That is the position of its oldest kept snapshot, because newer ones may turn
out to be corrupt; a partition without a snapshot needs every record. So Kafka's own retention is
off for these topics, and the platform deletes records only after this check. What holds a log back
is reported while it can still be fixed. A replaylog has no retention time: its records are deleted
as soon as no kept snapshot needs them. Snapshots are pruned late, so this is late too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fennel_core.vocab.ids import JobId, Offset, PartitionIndex, TopicName


class LogKind(StrEnum):
    """What limits the deletion of a log.

    `CONTENT`: age, and how far history has it. `PASSAGE` (rows on their way to another partition):
    age alone. `REPLAYLOG`: neither.
    """

    CONTENT = "content"
    PASSAGE = "passage"
    REPLAYLOG = "replaylog"


class RetentionProblem(StrEnum):
    """Why a retention alarm is raised."""

    LOST = "lost"
    """Needed records are deleted."""
    OLD = "old"
    """Needed records are, or soon will be, older than the retention time."""


@dataclass(frozen=True, slots=True)
class LogPartition:
    """One partition of a topic.

    `aged`: the first record younger than the retention time. `warned`: the first record younger
    than the age at which an alarm is raised.
    """

    topic: TopicName
    part: PartitionIndex
    kind: LogKind
    start: Offset
    end: Offset
    aged: Offset
    warned: Offset


@dataclass(frozen=True, slots=True)
class RequiredOffset:
    """The records that one job partition may have to read again: everything from `offset` on."""

    job: JobId
    title: str
    """The title of the job, for operators."""
    part: PartitionIndex
    offset: Offset
    snapshots: int
    """How many snapshots it may start from; with none it needs every record."""
    backfilled: bool = False
    """Whether history or a backfill on S3 replaces the deleted records (`engine.backfill`)."""


@dataclass(frozen=True, slots=True)
class RetentionAlarm:
    """A job partition whose needed records are lost or hold a log back."""

    job: JobId
    part: PartitionIndex
    topic: TopicName
    problem: RetentionProblem
    message: str
    """For operators, with the next action."""


def deletion_bound(
    log: LogPartition, required: Sequence[RequiredOffset], history_end: Offset | None
) -> Offset:
    """Return the offset below which `log` may be deleted now; its start if nothing may be deleted.

    `history_end`: the first offset that history lacks; None: do not wait for history.
    """
    bounds = [log.end, *(each.offset for each in required)]
    if log.kind is not LogKind.REPLAYLOG:
        bounds.append(log.aged)
    elif not required:
        # No reader is known yet, so the job is being created: keep everything.
        bounds.append(log.start)
    if log.kind is LogKind.CONTENT and history_end is not None:
        bounds.append(history_end)
    return max(log.start, min(bounds))


def retention_alarm(log: LogPartition, required: RequiredOffset) -> RetentionAlarm | None:
    """Return the alarm that `required` causes, if any.

    A replaylog may hold records of any age as long as snapshots are taken, so it is never too old.
    """
    partition = f"{required.title} ({required.job}[{required.part}])"
    replaced = required.backfilled and required.snapshots == 0
    if required.offset < log.start and not replaced:
        message = (
            f"{partition} needs records {required.offset} to {log.start - 1} of "
            f"{log.topic}[{log.part}] to restart, and they are deleted; "
            "take a snapshot while it runs (`fennel-core snapshot`, DAG snapshot)"
        )
        return RetentionAlarm(
            required.job, required.part, log.topic, RetentionProblem.LOST, message
        )
    held = max(required.offset, log.start)
    if log.kind is not LogKind.REPLAYLOG and held < min(log.warned, log.end):
        reason = (
            "it has no snapshot" if required.snapshots == 0 else "its oldest kept snapshot is old"
        )
        message = (
            f"{partition} holds back {log.topic}[{log.part}] at {held} (log end: {log.end}) "
            f"because {reason}; check that the DAG snapshot, or "
            "`fennel-core snapshot --every 10`, is running"
        )
        return RetentionAlarm(required.job, required.part, log.topic, RetentionProblem.OLD, message)
    return None
