"""Warm a commit after T2: wait until its new jobs have caught up, then move reads to it.

`readiness.py` decides; this module collects the facts, stores what was decided and moves reads.
What the jobs must have applied is stored with the commit, so that any process can continue where
another stopped.

For new jobs without a backlog the wait is short (`first_warm_seconds`), because no read can miss
data of theirs. A required job that is parked blocks the commit: reads stay on the previous version
until the job is repaired, and the commit names it for as long as it is parked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from fennel_core.blueprints.job_layers import layers
from fennel_core.blueprints.logical import AssetKind, LogicalJob
from fennel_core.blueprints.resolve import resolve_job
from fennel_core.blueprints.spec import Job
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.lifecycle import CommitEvent, CommitState
from fennel_core.ledger.readiness import (
    BlockedByParkedJob,
    CatchingUp,
    Judgement,
    NextRound,
    ReadEnds,
    Readiness,
    Ready,
    WarmingJobs,
    jobs_with_backlog,
    judge_readiness,
    with_ends,
)
from fennel_core.ledger.store import (
    Branch,
    CatchUp,
    Commit,
    LedgerKind,
    LedgerTransaction,
    PartitionProgress,
    StuckJob,
)
from fennel_core.ledger.transitions import (
    apply_commit_event,
    commit_row,
    locked_commit_row,
    retain_or_condemn,
)
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import AssetId, CommitId, JobId

log = logger(__name__)
LEASE_RENEWALS: Final = 3
"""Renewals of the commit's lease per lease, so that one may fail."""
PAUSE_PER_WAITED: Final = 0.05
"""Pause between two checks as a part of the time waited so far, up to `longest_warm_poll_seconds`:
a commit that waits long is checked rarely.
"""


@dataclass(frozen=True, slots=True)
class _Check:
    """The facts of one check and its outcome."""

    row: Commit
    catch_up: CatchUp
    progress: tuple[PartitionProgress, ...]
    judgement: Judgement


async def wait_and_serve(context: LedgerContext, id_: CommitId, *, seconds: float) -> Readiness:
    """Wait up to `seconds` for the new jobs, then move reads if they may move.

    Reconcile finishes a commit whose jobs need longer.
    """
    timings = context.timings
    warming = await context.ledger.run(lambda tx: _warming_jobs(tx, id_))
    began = context.now()
    renewed = float("-inf")
    while True:
        waited = context.now() - began
        if waited - renewed >= timings.lease_ms / 1000 / LEASE_RENEWALS:
            await context.ledger.run(lambda tx: tx.extend_lease(id_, timings.lease_ms))
            renewed = waited
        patient = waited < min(seconds, timings.first_warm_seconds)
        readiness = await _check_and_serve(context, id_, warming, patient=patient)
        if not isinstance(readiness, CatchingUp) or waited >= seconds:
            return readiness
        pause = max(timings.warm_poll_seconds, waited * PAUSE_PER_WAITED)
        await context.sleep(min(pause, timings.longest_warm_poll_seconds))


async def serve_if_ready(context: LedgerContext, id_: CommitId) -> Readiness:
    """Check the new jobs once and move reads if they may move."""
    warming = await context.ledger.run(lambda tx: _warming_jobs(tx, id_))
    return await _check_and_serve(context, id_, warming, patient=False)


def is_blocked_by_parked_job(row: Commit) -> bool:
    """Return whether reads cannot move to the commit because of a parked job."""
    return row.state is CommitState.WARMING and bool(row.stuck)


async def _check_and_serve(
    context: LedgerContext, id_: CommitId, warming: WarmingJobs, *, patient: bool
) -> Readiness:
    """Judge the new jobs, move reads if they may move, and return the judgement.

    `patient`: also wait for jobs that reads do not require.
    """
    readiness = await _judge(context, id_, warming)
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
    return readiness


async def _judge(context: LedgerContext, id_: CommitId, warming: WarmingJobs) -> Readiness:
    """Judge the new jobs, layer by layer and round by round as far as possible without waiting."""
    while True:
        check = await context.ledger.run(lambda tx: _check(tx, id_, warming))
        match check.judgement:
            case ReadEnds(layer, partitions):
                try:
                    ends = await context.topics.ends(partitions)
                except SystemUnavailable as unavailable:
                    log.warning("ends of inputs unknown", commit=id_, error=str(unavailable))
                    return CatchingUp(frozenset(), required=True)
                known = with_ends(check.catch_up, layer, ends, check.progress)
                await _replace_catch_up(context, id_, check.catch_up, known)
            case NextRound(catch_up):
                await _replace_catch_up(context, id_, check.catch_up, catch_up)
            case Ready() | CatchingUp() | BlockedByParkedJob():
                await _record_stuck(context, check)
                return check.judgement
            case unreachable:
                assert_never(unreachable)


async def _check(tx: LedgerTransaction, id_: CommitId, warming: WarmingJobs) -> _Check:
    row = await commit_row(tx, id_)
    if row.state is not CommitState.WARMING:
        return _Check(row, CatchUp(), (), Ready())
    catch_up = await tx.catch_up(id_)
    progress = tuple(await tx.partition_progress(warming.ids))
    return _Check(row, catch_up, progress, judge_readiness(warming, catch_up, progress))


async def _replace_catch_up(
    context: LedgerContext, id_: CommitId, seen: CatchUp, after: CatchUp
) -> None:
    """Store `after`, unless another process that judges the same commit was faster."""

    async def replace(tx: LedgerTransaction) -> None:
        row = await locked_commit_row(tx, id_)
        if row.state is CommitState.WARMING and await tx.catch_up(id_) == seen:
            await tx.set_catch_up(id_, after)

    await context.ledger.run(replace)


async def _warming_jobs(tx: LedgerTransaction, id_: CommitId) -> WarmingJobs:
    """Return the jobs of a warming commit that the serving versions of its branches do not have."""
    row = await commit_row(tx, id_)
    new: set[AssetId] = set()
    references: set[AssetId] = set()
    for branch in await tx.branches(row.workspace):
        if branch.target != id_ or branch.serving == id_:
            continue
        added = set(await tx.bank.references(branch.workspace, branch.name, id_))
        references |= added
        if branch.serving is not None:
            added -= set(await tx.bank.references(branch.workspace, branch.name, branch.serving))
        new |= added
    names = {each.key: each.id for each in await tx.bank.summaries(references)}
    assets = await tx.bank.assets(id_ for key, id_ in names.items() if key.kind is AssetKind.JOB)
    logical = {
        a.key: a.blueprint for a in assets if isinstance(a.blueprint, LogicalJob) and a.id in new
    }
    entries = await tx.entries(LedgerKind.CREATION, commit=id_, only_open=False)
    created = {entry.asset for entry in entries}
    required = jobs_with_backlog(
        logical.values(), {key for key, asset in names.items() if asset in created}
    )
    jobs: list[Job] = [resolve_job(logical[key], row.workspace, names) for key in required]
    optional = frozenset(JobId(names[key]) for key in logical.keys() - required)
    ordered = layers(sorted(jobs, key=lambda job: job.id))
    return WarmingJobs(tuple(tuple(layer) for layer in ordered), optional)


async def _record_stuck(context: LedgerContext, check: _Check) -> None:
    """Set which jobs keep reads from moving; a job that has recovered is not listed any more."""
    judgement = check.judgement
    parked = judgement.errors if isinstance(judgement, BlockedByParkedJob) else ()
    if not parked and not check.row.stuck:
        return

    async def record(tx: LedgerTransaction) -> None:
        row = await commit_row(tx, check.row.id)
        titles = {h.id: h.title for h in await tx.bank.summaries(AssetId(job) for job, _ in parked)}
        stuck = tuple(StuckJob(job, titles[AssetId(job)], error) for job, error in parked)
        if stuck != row.stuck:
            await tx.set_stuck(row.id, stuck)

    await context.ledger.run(record)


async def _serve(tx: LedgerTransaction, id_: CommitId) -> None:
    """Move reads to the new version and release what only the previous one held."""
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
    await retain_or_condemn(tx, row.workspace, id_, released)
