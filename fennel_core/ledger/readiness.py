"""Decide whether the new jobs of a commit are ready to serve reads.

Pure functions over three facts: the new jobs in layers, what they must have applied (`CatchUp`),
and what the owners of their partitions report to have applied.

Theory. Reads must wait for the *required* jobs: those with a backlog, because an input existed
before the commit, and the jobs downstream of them. A job over an empty topic is not ready when it
has read that topic to its end, because its upstream may not have written it yet. So jobs are judged
in layers, as the query barrier does: the ends of the inputs of a layer are read *after* the layer
before has passed its own, and they are fixed, so a log that grows without end is no obstacle. When
the last layer has passed, lookups of the new jobs see everything that was accepted before the first
ends were read, and that jobs which reads use already had processed by then: those are not judged.

Rows that arrived later are not. After an hour of catching up that is an hour of rows, which
reads of the previous version have seen. So the round is repeated with new ends until a round starts
without a backlog, or with one that is no longer less than half of the previous: then the new jobs
are as close to their inputs as they get.

Only reports under a live lease count, for earlier layers as well: the owner of a partition that
passed may have died since.

Example. Job A reads `orders` (10 records) and writes `totals`; job B reads `totals`. Round 1: A
must have applied 10 of `orders`; then `totals` has 7 records, which B must have applied. By then
2 records were added to `orders`, so round 2 requires 12 of `orders`, then 8 of `totals`. Round 3
starts with nothing to apply: ready.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fennel_core.blueprints.job_layers import input_partitions
from fennel_core.blueprints.logical import AssetKey, LogicalJob
from fennel_core.blueprints.spec import Job
from fennel_core.ledger.store import CatchUp, PartitionProgress
from fennel_core.vocab.ids import (
    JobId,
    JobPartition,
    Offset,
    TopicName,
    TopicPartition,
    partition_indexes,
)

RUNNING = "running"
PARKED = "parked"


@dataclass(frozen=True, slots=True)
class WarmingJobs:
    """The new jobs of a commit: the required ones in layers, and the others."""

    layers: tuple[tuple[Job, ...], ...]
    optional: frozenset[JobId]

    @property
    def required(self) -> frozenset[JobId]:
        return frozenset(job.id for layer in self.layers for job in layer)

    @property
    def ids(self) -> tuple[JobId, ...]:
        """All of them."""
        return tuple(sorted(self.required | self.optional))


@dataclass(frozen=True, slots=True)
class Ready:
    """Every new job has caught up."""


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """Job partitions that have not caught up.

    `required`: reads must wait for one of them. `records`: how many they still have to apply, as
    far as that is known.
    """

    behind: frozenset[JobPartition]
    required: bool
    records: int = 0


@dataclass(frozen=True, slots=True)
class BlockedByParkedJob:
    """A parked job, which will not catch up by itself, with its error.

    `required`: reads must wait for it.
    """

    errors: tuple[tuple[JobId, str], ...]
    required: bool


@dataclass(frozen=True, slots=True)
class ReadEnds:
    """All earlier layers have passed: read the ends of these inputs of `layer` and judge again."""

    layer: tuple[Job, ...]
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class NextRound:
    """All layers have passed, but rows have arrived since: judge again from `catch_up`."""

    catch_up: CatchUp


Readiness = Ready | CatchingUp | BlockedByParkedJob
Judgement = Readiness | ReadEnds | NextRound


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
    jobs: WarmingJobs, catch_up: CatchUp, progress: Collection[PartitionProgress]
) -> Judgement:
    """Judge the new jobs by what their owners report.

    A parked job that reads must wait for is reported before any job that still catches up.
    """
    parked = {p.job: p.error or "no error was reported" for p in progress if p.status == PARKED}
    if errors := {job: error for job, error in parked.items() if job in jobs.required}:
        return BlockedByParkedJob(tuple(sorted(errors.items())), required=True)
    applied = {(p.job, p.partition): p.applied for p in progress if p.status == RUNNING}
    behind: dict[JobPartition, int] = {}
    for layer in jobs.layers:
        unread = input_partitions(layer) - catch_up.ends.keys()
        if unread and not behind:
            return ReadEnds(layer, frozenset(unread))
        if unread:
            break
        behind |= _behind(layer, catch_up.ends, applied)
    if behind:
        return CatchingUp(frozenset(behind), required=True, records=sum(behind.values()))
    if _must_repeat(catch_up):
        return NextRound(CatchUp(previous_backlog=catch_up.backlog))
    if errors := {job: error for job, error in parked.items() if job in jobs.optional}:
        return BlockedByParkedJob(tuple(sorted(errors.items())), required=False)
    idle = frozenset((p.job, p.partition) for p in progress) - applied.keys()
    return CatchingUp(idle, required=False) if idle else Ready()


def with_ends(
    catch_up: CatchUp,
    layer: Sequence[Job],
    ends: Mapping[TopicPartition, Offset],
    progress: Iterable[PartitionProgress],
) -> CatchUp:
    """Return `catch_up` with the ends of the inputs of the next layer, which were just read."""
    known = {**catch_up.ends, **ends}
    applied = {(p.job, p.partition): p.applied for p in progress if p.status == RUNNING}
    backlog = sum(_behind(layer, known, applied).values())
    return replace(catch_up, ends=known, backlog=catch_up.backlog + backlog)


def _behind(
    layer: Iterable[Job],
    ends: Mapping[TopicPartition, Offset],
    applied: Mapping[JobPartition, Mapping[TopicName, Offset]],
) -> dict[JobPartition, int]:
    """Return the job partitions that do not run or have not passed the ends, with the distance."""
    behind: dict[JobPartition, int] = {}
    for job in layer:
        for part in partition_indexes(job.partitions):
            reached = applied.get((job.id, part), {})
            records = sum(max(0, ends[t, part] - reached.get(t, Offset(0))) for t in job.inputs)
            if records or (job.id, part) not in applied:
                behind[job.id, part] = records
    return behind


def _must_repeat(catch_up: CatchUp) -> bool:
    previous = catch_up.previous_backlog
    return catch_up.backlog > 0 and (previous is None or 2 * catch_up.backlog < previous)
