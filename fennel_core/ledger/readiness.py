"""Decide whether the new jobs of a commit are ready to serve reads.

Pure functions over what the engines reported. A job is ready when each of its partitions has been
at the end of its inputs once since T2. Reads must wait for *required* jobs only: those that have a
backlog, because an input existed before the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fennel_core.blueprints.logical import AssetKey, LogicalJob
from fennel_core.ledger.store import PartitionProgress
from fennel_core.vocab.ids import JobId, JobPartition

RUNNING = "running"
PARKED = "parked"


@dataclass(frozen=True, slots=True)
class Ready:
    """Every new job has caught up."""


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """Job partitions that have not caught up. `required`: reads must wait for one of them."""

    behind: frozenset[JobPartition]
    required: bool


@dataclass(frozen=True, slots=True)
class BlockedByParkedJob:
    """A parked job, which will not catch up by itself, with its error.

    `required`: reads must wait for it.
    """

    errors: tuple[tuple[JobId, str], ...]
    required: bool


Readiness = Ready | CatchingUp | BlockedByParkedJob


def caught_up(progress: Iterable[PartitionProgress]) -> frozenset[JobPartition]:
    """Return the partitions that are at the end of their inputs now.

    Being there once since T2 is enough, because the end offsets of that moment were passed. Under
    load a lag of exactly 0 is observed only now and then.
    """
    return frozenset((p.job, p.partition) for p in progress if p.status == RUNNING and p.lag == 0)


def jobs_with_backlog(
    jobs: Iterable[LogicalJob], new_assets: Collection[AssetKey]
) -> frozenset[AssetKey]:
    """Return those of `jobs` that have a backlog.

    A job has a backlog if one of its inputs is not in `new_assets`, or is written by another job
    with a backlog. The other jobs read topics that did not exist before the commit, so they have
    not missed a record.
    """
    remaining = {job.key: job for job in jobs}
    found: set[AssetKey] = set()
    outputs: set[AssetKey] = set()
    while True:
        more = [
            job
            for job in remaining.values()
            if any(i not in new_assets or i in outputs for i in job.inputs)
        ]
        if not more:
            return frozenset(found)
        for job in more:
            del remaining[job.key]
            found.add(job.key)
            outputs |= {o.topic for o in job.outputs}


def judge_readiness(
    progress: Collection[PartitionProgress],
    caught_up_before: frozenset[JobPartition],
    required: Collection[JobId],
) -> Readiness:
    """Judge the new jobs by their reported progress and by earlier observations.

    Reads must wait for the jobs in `required`. If one of them is parked, that is reported before
    any job that still catches up.
    """
    done = caught_up_before | caught_up(progress)
    behind = frozenset((p.job, p.partition) for p in progress) - done
    if not behind:
        return Ready()
    parked = {
        p.job: p.error or "no error was reported"
        for p in progress
        if p.status == PARKED and (p.job, p.partition) in behind
    }
    reads_wait = any(job in required for job, _ in behind)
    if parked and (not reads_wait or any(job in required for job in parked)):
        return BlockedByParkedJob(tuple(sorted(parked.items())), reads_wait)
    return CatchingUp(behind, reads_wait)
