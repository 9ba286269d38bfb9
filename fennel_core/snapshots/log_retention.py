"""How far a log may be deleted, and who needs what lies near its beginning.

Theory. A log's records go by age, but never past the oldest position that somebody may have to
start from: that of any kept snapshot of any job partition that reads it, not only of the newest,
because the newest may turn out to be damaged. A partition without a snapshot needs everything. So
Kafka's own deletion by age is off for these topics and deleting is an act of ours that asks first;
what stands in its way is told while it is a nuisance, not when it is a loss. A replaylog has no
age: it goes as soon as no kept snapshot needs it. Snapshots are pruned late, so this is late too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fennel_core.vocab.ids import JobId, Offset, PartitionIndex, TopicName


class LogKind(StrEnum):
    """What decides how far a log may go. `CONTENT`: age, and how far history has it; `PASSAGE`:
    rows on their way, age alone.
    """

    CONTENT = "content"
    PASSAGE = "passage"
    REPLAYLOG = "replaylog"


class RetentionProblem(StrEnum):
    LOST = "lost"
    """What is needed is not there any more."""
    OLD = "old"
    """What is needed is so old that it should have gone, or soon should."""


@dataclass(frozen=True, slots=True)
class LogPartition:
    """One partition of a topic. `aged`: the first record younger than the retention; `warned`: than
    the age at which somebody is told.
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
    """What one job partition may have to read again: everything from `offset` on. `title`: of the
    job, for people.
    """

    job: JobId
    title: str
    part: PartitionIndex
    offset: Offset
    snapshots: int
    """How many it may start from; with none it needs everything."""
    loaded: bool = False
    """What is gone from the log stands for it in a load on S3 (`engine.backfill`)."""


@dataclass(frozen=True, slots=True)
class RetentionAlarm:
    job: JobId
    part: PartitionIndex
    topic: TopicName
    trouble: RetentionProblem
    told: str
    """The sentence for people, with what to do."""


def deletion_bound(
    log: LogPartition, needs: Sequence[RequiredOffset], history: Offset | None
) -> Offset:
    """Below which offset `log` may be deleted now; its start when nothing may. `history`: where
    that ends, None: do not wait for it.
    """
    bounds = [log.end, *(need.offset for need in needs)]
    if log.kind is not LogKind.REPLAYLOG:
        bounds.append(log.aged)
    elif not needs:
        bounds.append(log.start)  # nobody is known to read it: somebody is about to
    if log.kind is LogKind.CONTENT and history is not None:
        bounds.append(history)
    return max(log.start, min(bounds))


def retention_alarm(log: LogPartition, need: RequiredOffset) -> RetentionAlarm | None:
    """What somebody should be told about this need. A replaylog holds records of any age without
    harm while snapshots are taken.
    """
    where = f"{need.title} ({need.job}[{need.part}])"
    if need.offset < log.start and not (need.loaded and need.snapshots == 0):
        told = (
            f"{where} would need records {need.offset} to {log.start - 1} of "
            f"{log.topic}[{log.part}] to start again, and they are gone: "
            "take a snapshot while it runs (`fennel-core snapshot`, DAG snapshot)"
        )
        return RetentionAlarm(need.job, need.part, log.topic, RetentionProblem.LOST, told)
    if log.kind is not LogKind.REPLAYLOG and max(need.offset, log.start) < min(log.warned, log.end):
        held = max(need.offset, log.start)
        why = "it has no snapshot" if need.snapshots == 0 else "its oldest kept snapshot is old"
        told = (
            f"{where} holds back {log.topic}[{log.part}] at {held} (it ends at "
            f"{log.end}): {why}; does the DAG snapshot, or "
            "`fennel-core snapshot --every 10`, run?"
        )
        return RetentionAlarm(need.job, need.part, log.topic, RetentionProblem.OLD, told)
    return None
