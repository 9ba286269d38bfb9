"""T2, the commit point: the branch's target becomes the commit.

References of the new version replace the reservations, and its new jobs are registered. Reads move
later (`warming.py`), so the previous version stays referenced until then.
"""

from __future__ import annotations

from fennel_core.bank.store import Asset, AssetState
from fennel_core.blueprints.logical import AssetKind, LogicalJob
from fennel_core.blueprints.resolve import resolve_job
from fennel_core.blueprints.shortened_history import CONFIRMED
from fennel_core.ledger.audit_log import AssetAction, log_steps
from fennel_core.ledger.commit_failure import fail_commit
from fennel_core.ledger.content_choice import check_contents_are_fed, check_contents_at_switch
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.errors import CommitConflict, CommitOutOfOrder
from fennel_core.ledger.lifecycle import UNDONE, AssetEvent, CommitEvent, CommitState
from fennel_core.ledger.store import Branch, Commit, LedgerTransaction
from fennel_core.ledger.transitions import (
    apply_asset_event,
    apply_commit_event,
    commit_row,
    locked_branch,
    locked_commit_row,
    retain_or_condemn,
    stored_error,
    supersede_stale_commits,
)
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import AssetId, CommitId


async def switch(context: LedgerContext, id_: CommitId) -> Commit:
    """Run T2, the commit point: the branch's target becomes this commit.

    Raises CommitConflict, BranchNotFound or WorkspaceNotFound if the branch has changed, and
    CommitConflict if it was cloned while its content got other sources, or if a content that it
    shares was dropped by the others; the commit is then undoing.
    """

    async def move_target(tx: LedgerTransaction) -> tuple[Commit, list[Asset]]:
        row = await locked_commit_row(tx, id_)
        if row.state is not CommitState.CREATED:
            return row, []
        await tx.extend_lease(id_, context.timings.lease_ms)
        branch = await locked_branch(tx, row.workspace, row.branch)
        if row.base != branch.target:
            # The branch was deleted and created again: T1 excludes other commits.
            raise CommitConflict(row.branch)
        await check_contents_are_fed(tx, row)
        new_jobs = await _reference_reserved(tx, row)
        await check_contents_at_switch(tx, row)
        released = await _release_unserved_target(tx, branch)
        await tx.update_branch(Branch(branch.workspace, branch.name, id_, branch.serving))
        await apply_commit_event(tx, row, CommitEvent.SWITCH)
        await supersede_stale_commits(tx, row.workspace)
        await retain_or_condemn(tx, row.workspace, id_, released)
        if row.options.allow_data_loss:
            await tx.confirm_losses(row.workspace)
            if await _confirms_retention(tx, id_):
                await tx.let_old_rows_leave(row.workspace)
        return await commit_row(tx, id_), new_jobs

    began = context.now()
    try:
        row, new_jobs = await context.ledger.run(move_target)
    except ApiError as error:
        await fail_commit(context, id_, error)
        raise
    if row.state in UNDONE:
        raise stored_error(row)
    if row.state in (CommitState.RECEIVED, CommitState.RESERVED):
        raise CommitOutOfOrder(id_, row.state)
    log_steps(AssetAction.REGISTER, new_jobs, context.now() - began)
    return row


async def _confirms_retention(tx: LedgerTransaction, id_: CommitId) -> bool:
    """Return whether the plan of T1, which may be of an earlier release, named it."""
    plan = await tx.plan(id_)
    return plan is not None and CONFIRMED.code in {notice.code for notice in plan.notices}


async def _reference_reserved(tx: LedgerTransaction, row: Commit) -> list[Asset]:
    """Turn reservations into references, register the new jobs and return them."""
    reserved = await tx.bank.summaries(await tx.bank.reserved(row.id))
    await tx.end_grace([h.id for h in reserved if h.state is AssetState.RETAINED])
    names = {h.key: h.id for h in reserved}
    new_jobs = await tx.bank.assets(
        h.id for h in reserved if h.key.kind is AssetKind.JOB and h.state is AssetState.CREATED
    )
    await apply_asset_event(tx, reserved, AssetEvent.SWITCHED)
    await tx.add_jobs(
        [
            resolve_job(a.blueprint, row.workspace, names)
            for a in new_jobs
            if isinstance(a.blueprint, LogicalJob)
        ]
    )
    await tx.bank.add_references(row.id, row.branch, [h.id for h in reserved])
    await tx.bank.release_reservations(row.id)
    return new_jobs


async def _release_unserved_target(tx: LedgerTransaction, branch: Branch) -> list[AssetId]:
    """Drop the references of a previous target that never served reads and now never will."""
    if branch.target is None or branch.target == branch.serving:
        return []
    return await tx.bank.remove_references(branch.workspace, branch.name, branch.target)
