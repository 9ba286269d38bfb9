"""What the ledgers decide, without touching anything: whether new jobs are warm, and what recovery
owes a commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fennel_core.blueprints.logical import AssetKey, LogicalJob
from fennel_core.ledger.lifecycle import CommitState
from fennel_core.ledger.store import PartitionProgress
from fennel_core.vocab.ids import JobId

JobPartition = tuple[JobId, int]
RUNNING = "running"
PARKED = "parked"


@dataclass(frozen=True, slots=True)
class Ready:
    """Every new job has caught up."""


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """These have not yet. `must`: reads may not move before they have."""

    behind: frozenset[JobPartition]
    must: bool


@dataclass(frozen=True, slots=True)
class BlockedByParkedJob:
    """A parked job will not catch up by itself; `errors` says why, per job. `must` as above."""

    errors: tuple[tuple[JobId, str], ...]
    must: bool


Readiness = Ready | CatchingUp | BlockedByParkedJob


def caught_up(progress: Iterable[PartitionProgress]) -> frozenset[JobPartition]:
    """Partitions that stand at the ends of their inputs now. Having stood there once since the
    switch is enough to be warm, because the ends of that moment were passed; under load a lag of
    exactly 0 is seen only now and then.
    """
    return frozenset((p.job, p.part) for p in progress if p.status == RUNNING and p.lag == 0)


def jobs_with_backlog(jobs: Iterable[LogicalJob], new: Collection[AssetKey]) -> frozenset[AssetKey]:
    """Those of `jobs` that have something to catch up with: an input that is not `new`, or that
    such a job writes.

    The others read topics that did not exist before the commit, so what they have not read yet
    nobody has written yet.
    """
    left = {job.key: job for job in jobs}
    found: set[AssetKey] = set()
    written: set[AssetKey] = set()
    while True:
        more = [
            job for job in left.values() if any(i not in new or i in written for i in job.inputs)
        ]
        if not more:
            return frozenset(found)
        for job in more:
            del left[job.key]
            found.add(job.key)
            written |= {o.topic for o in job.outputs}


def judge_readiness(
    progress: Collection[PartitionProgress],
    before: frozenset[JobPartition],
    must: Collection[JobId],
) -> Readiness:
    """Judge new jobs by what their engines report and by which of them were seen caught up
    `before`.

    Reads may not move before the jobs in `must` have caught up. A parked one among them is told
    before any that is on its way.
    """
    done = before | caught_up(progress)
    behind = frozenset((p.job, p.part) for p in progress) - done
    if not behind:
        return Ready()
    parked = {
        p.job: p.error or "no error was reported"
        for p in progress
        if p.status == PARKED and (p.job, p.part) in behind
    }
    bound = any(job in must for job, _ in behind)
    if parked and (not bound or any(job in must for job in parked)):
        return BlockedByParkedJob(tuple(sorted(parked.items())), bound)
    return CatchingUp(behind, bound)


@dataclass(frozen=True, slots=True)
class AbandonCommit:
    """Nothing has happened yet and nobody is at work: say so."""


@dataclass(frozen=True, slots=True)
class UndoCommit:
    """Before the commit point, whoever asked has been told nothing or an error: take everything
    back.
    """


@dataclass(frozen=True, slots=True)
class ServeIfReady:
    """After the commit point there is only forward."""


@dataclass(frozen=True, slots=True)
class DestroyCondemned:
    """Only old things are left to be removed."""


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """Nothing is owed."""


ReconcileAction = AbandonCommit | UndoCommit | ServeIfReady | DestroyCondemned | NothingToDo


def reconcile_action(state: CommitState) -> ReconcileAction:
    """What recovery does about a commit whose lease has lapsed."""
    match state:
        case CommitState.RECEIVED:
            return AbandonCommit()
        case CommitState.RESERVED | CommitState.CREATED:
            return UndoCommit()
        case CommitState.WARMING:
            return ServeIfReady()
        case CommitState.UNDOING | CommitState.SERVING:
            return DestroyCondemned()
        case (
            CommitState.SUPERSEDED
            | CommitState.FINISHED
            | CommitState.REJECTED
            | CommitState.ROLLED_BACK
        ):
            return NothingToDo()
