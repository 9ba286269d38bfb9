"""T1: plan a commit under its workspace's lock, and reserve every asset of the plan.

What was validated is what is committed: T1 accepts definitions only on the version of the branch
that they were validated against. Commits of one branch pass from T1 to T2 one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fennel_core.bank.store import Asset, AssetState
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.commit_plan import (
    BankFacts,
    CommitPlan,
    TopicAmounts,
    plan_commit,
    with_replays,
)
from fennel_core.blueprints.logical import AssetKey, Compiled
from fennel_core.blueprints.plan_entries import Notice
from fennel_core.blueprints.resolve import resolve_catalog
from fennel_core.ledger.content_choice import catalog_of, due_contents, mark_changed_contents
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.leaving_rows import LeavingRows, leaving_rows, recounted
from fennel_core.ledger.lifecycle import BETWEEN_T1_AND_T2, CommitEvent, CommitState
from fennel_core.ledger.planning import bank_facts, check_backfill, check_data_loss, draft_facts
from fennel_core.ledger.store import Commit, LedgerKind, LedgerTransaction
from fennel_core.ledger.topic_amounts import measure_topics
from fennel_core.ledger.transitions import (
    apply_commit_event,
    commit_row,
    locked_branch,
    locked_commit_row,
)
from fennel_core.vocab.ids import CommitId, DatasetName


@dataclass(frozen=True, slots=True)
class BranchMoved:
    """T1 was not run: the branch's target is not the version the definitions were checked with."""

    target: CommitId | None


@dataclass(frozen=True, slots=True)
class BranchBusy:
    """T1 was not run: another commit of the branch is between T1 and T2. Wait for it."""

    commit: CommitId


@dataclass(frozen=True, slots=True)
class ContentsMoved:
    """T1 was not run: the definitions must be compiled with these topics of source datasets."""

    source_contents: Mapping[DatasetName, AssetKey]


async def reserve(
    context: LedgerContext,
    id_: CommitId,
    compiled: Compiled,
    merged: bytes,
    *,
    base: CommitId | None,
    notices: Sequence[Notice] = (),
) -> Commit | BranchMoved | BranchBusy | ContentsMoved:
    """Run T1: plan under the lock, add the assets to create, and reserve every asset of the plan.

    `merged` is the SyncRequest of the new version, `base` the version of the branch that it was
    validated against, and `notices` what its author should know. Raises ApiError; nothing has
    changed then.
    """
    amounts = await _measured(context, id_, compiled)

    async def plan_and_reserve(
        tx: LedgerTransaction,
    ) -> Commit | BranchMoved | BranchBusy | ContentsMoved:
        row = await locked_commit_row(tx, id_)
        if row.state is not CommitState.RECEIVED:
            return row
        await tx.extend_lease(id_, context.timings.lease_ms)
        branch = await locked_branch(tx, row.workspace, row.branch)
        if branch.target != base:
            return BranchMoved(branch.target)
        occupant = await branch_occupant(tx, row)
        if occupant is not None:
            return BranchBusy(occupant)
        before = await catalog_of(tx, base)
        due = await due_contents(tx, branch, before, compiled)
        if due != compiled.source_contents:
            return ContentsMoved(due)
        incarnation = await tx.bank.next_incarnation()
        counted = await recounted(tx, amounts)
        facts = await bank_facts(tx, branch, before, compiled, incarnation, counted)
        needed = with_replays(facts, compiled)
        commit_plan = plan_commit(
            facts,
            needed,
            notices,
            allow_data_loss=row.options.allow_data_loss,
            history_retention=context.history_retention,
        )
        leaving = LeavingRows()
        if context.history_retention:
            allowed = row.options.allow_data_loss
            leaving = await leaving_rows(
                tx, branch.name, facts, needed, commit_plan, allow_data_loss=allowed
            )
        commit_plan = leaving.added_to(commit_plan)
        check_data_loss(row, commit_plan, leaving.losses)
        if not row.options.backfill:
            check_backfill(commit_plan, compiled)
        await _reserve_assets(tx, row, facts, commit_plan)
        await mark_changed_contents(tx, before, compiled, commit_plan.ids())
        catalog = resolve_catalog(needed, row.workspace, commit_plan.ids())
        await tx.set_compiled(id_, base, merged, stored_names.dumps(catalog), commit_plan.record)
        await apply_commit_event(tx, row, CommitEvent.RESERVE)
        return await commit_row(tx, id_)

    return await context.ledger.run(plan_and_reserve)


async def _measured(context: LedgerContext, id_: CommitId, compiled: Compiled) -> TopicAmounts:
    """Count the rows that the plan reports, before the lock is taken: Kafka may take seconds."""
    row = await context.ledger.run(lambda tx: commit_row(tx, id_))
    if row.state is not CommitState.RECEIVED:
        return TopicAmounts()
    draft = await context.ledger.run(
        lambda tx: draft_facts(tx, row.workspace, row.branch, compiled)
    )
    return await measure_topics(context, draft, with_replays(draft, compiled))


async def _reserve_assets(
    tx: LedgerTransaction, row: Commit, facts: BankFacts, commit_plan: CommitPlan
) -> None:
    """Add the assets to create to the bank, reserve all, and write the creation ledger."""
    await tx.bank.add(
        [
            Asset(p.id, row.workspace, facts.incarnation, AssetState.PENDING, p.blueprint)
            for p in commit_plan.create
        ]
    )
    wanted = [p.id for p in commit_plan.wanted]
    await tx.bank.reserve(row.id, wanted)
    # An adopted asset may still be pending in another commit: this commit creates it too.
    pending = [h.id for h in await tx.bank.summaries(wanted) if h.state is AssetState.PENDING]
    await tx.add_entries(LedgerKind.CREATION, row.workspace, row.id, pending)


async def branch_occupant(tx: LedgerTransaction, row: Commit) -> CommitId | None:
    """Return the commit of the row's branch that is between T1 and T2, if there is one."""
    for other in await tx.open_commit_rows(row.workspace):
        if other.branch == row.branch and other.state in BETWEEN_T1_AND_T2:
            return other.id
    return None
