"""Warm a commit after T2: wait until its new jobs have caught up, then move reads to it.

Reads wait for the *required* jobs: new jobs with a backlog, in a branch that serves reads already.
For other new jobs the wait is short (`first_warm_seconds`), because no read can miss data of
theirs. A required job that is parked blocks the commit: reads stay on the previous version until
the job is repaired, and the commit names it for as long as it is parked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from fennel_core.blueprints.logical import AssetKind, LogicalJob
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.lifecycle import CommitEvent, CommitState
from fennel_core.ledger.readiness import (
    BlockedByParkedJob,
    CatchingUp,
    Readiness,
    Ready,
    caught_up,
    jobs_with_backlog,
    judge_readiness,
)
from fennel_core.ledger.store import Branch, Commit, LedgerKind, LedgerTransaction, StuckJob
from fennel_core.ledger.transitions import (
    apply_commit_event,
    commit_row,
    condemn,
    locked_commit_row,
)
from fennel_core.vocab.ids import AssetId, CommitId, JobId, JobPartition


@dataclass(frozen=True, slots=True)
class WarmingJobs:
    """The new jobs of a warming commit, and those of them that reads must wait for."""

    jobs: tuple[JobId, ...]
    required: frozenset[JobId]


async def wait_and_serve(context: LedgerContext, id_: CommitId, *, seconds: float) -> Readiness:
    """Wait up to `seconds` for the new jobs, then move reads if they may move.

    Reconcile finishes a commit whose jobs need longer.
    """
    warming = await context.ledger.run(lambda tx: _warming_jobs(tx, id_))
    caught_up_before: frozenset[JobPartition] = frozenset()
    began = context.now()
    while True:
        waited = context.now() - began
        patient = waited < min(seconds, context.timings.first_warm_seconds)
        readiness, caught_up_now = await _check_and_serve(
            context, id_, warming, caught_up_before, patient=patient
        )
        if not isinstance(readiness, CatchingUp) or waited >= seconds:
            return readiness
        caught_up_before |= caught_up_now
        await context.sleep(context.timings.warm_poll_seconds)


async def serve_if_ready(context: LedgerContext, id_: CommitId) -> Readiness:
    """Check the new jobs once and move reads if they may move."""
    warming = await context.ledger.run(lambda tx: _warming_jobs(tx, id_))
    readiness, _ = await _check_and_serve(context, id_, warming, frozenset(), patient=False)
    return readiness


def is_blocked_by_parked_job(row: Commit) -> bool:
    """Return whether reads cannot move to the commit because of a parked job."""
    return row.state is CommitState.WARMING and bool(row.stuck)


async def _check_and_serve(
    context: LedgerContext,
    id_: CommitId,
    warming: WarmingJobs,
    caught_up_before: frozenset[JobPartition],
    *,
    patient: bool,
) -> tuple[Readiness, frozenset[JobPartition]]:
    """Judge the new jobs, move reads if they may move, and return what has caught up.

    `patient`: also wait for jobs that reads do not require.
    """

    async def check(tx: LedgerTransaction) -> tuple[Readiness, frozenset[JobPartition]]:
        row = await commit_row(tx, id_)
        if row.state is not CommitState.WARMING:
            return Ready(), frozenset()
        await tx.extend_lease(id_, context.timings.lease_ms)
        progress = await tx.partition_progress(warming.jobs)
        readiness = judge_readiness(progress, caught_up_before, warming.required)
        return readiness, caught_up(progress)

    readiness, caught_up_now = await context.ledger.run(check)
    parked = readiness.errors if isinstance(readiness, BlockedByParkedJob) else ()
    await context.ledger.run(partial(_record_stuck, id_=id_, parked=parked))
    match readiness:
        case Ready() | BlockedByParkedJob(required=False):
            serve = True
        case CatchingUp(required=False):
            serve = not patient
        case CatchingUp() | BlockedByParkedJob():
            serve = False
        case unreachable:
            assert_never(unreachable)
    if serve:
        await context.ledger.run(lambda tx: _serve(tx, id_))
        if not isinstance(readiness, BlockedByParkedJob):
            readiness = Ready()
    return readiness, caught_up_now


async def _warming_jobs(tx: LedgerTransaction, id_: CommitId) -> WarmingJobs:
    """Return the jobs of a warming commit that the serving versions of its branches do not have."""
    row = await commit_row(tx, id_)
    new: set[AssetId] = set()
    new_in_serving_branch: set[AssetId] = set()
    for branch in await tx.branches(row.workspace):
        if branch.target != id_ or branch.serving == id_:
            continue
        added = set(await tx.bank.references(branch.workspace, branch.name, id_))
        if branch.serving is not None:
            added -= set(await tx.bank.references(branch.workspace, branch.name, branch.serving))
            new_in_serving_branch |= added
        new |= added
    assets = await tx.bank.assets(new)
    jobs = {a.key: JobId(a.id) for a in assets if a.key.kind is AssetKind.JOB}
    entries = await tx.entries(LedgerKind.CREATION, commit=id_, only_open=False)
    created_here = {e.asset for e in entries}
    required = jobs_with_backlog(
        [
            a.blueprint
            for a in assets
            if isinstance(a.blueprint, LogicalJob) and a.id in new_in_serving_branch
        ],
        {a.key for a in assets if a.id in created_here},
    )
    return WarmingJobs(tuple(sorted(jobs.values())), frozenset(jobs[key] for key in required))


async def _record_stuck(
    tx: LedgerTransaction, id_: CommitId, parked: Sequence[tuple[JobId, str]]
) -> None:
    """Set which jobs keep reads from moving; a job that has recovered is not listed any more."""
    row = await commit_row(tx, id_)
    titles = {h.id: h.title for h in await tx.bank.summaries(AssetId(job) for job, _ in parked)}
    stuck = tuple(StuckJob(job, titles[AssetId(job)], error) for job, error in parked)
    if stuck != row.stuck:
        await tx.set_stuck(id_, stuck)


async def _serve(tx: LedgerTransaction, id_: CommitId) -> None:
    """Move reads to the new version and condemn what only the previous one held."""
    row = await locked_commit_row(tx, id_)
    if row.state is not CommitState.WARMING:
        return
    released: list[AssetId] = []
    for branch in await tx.branches(row.workspace):
        if branch.target == id_ and branch.serving != id_:
            await tx.update_branch(Branch(branch.workspace, branch.name, id_, id_))
            if branch.serving is not None:
                released += await tx.bank.remove_references(
                    branch.workspace, branch.name, branch.serving
                )
    await apply_commit_event(tx, row, CommitEvent.SERVE)
    await condemn(tx, row.workspace, id_, released)
