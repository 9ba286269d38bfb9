"""Plan a commit: collect what exists, and refuse a plan that its author has not agreed to.

The plan itself is computed by `blueprints.commit_plan`. A plan that will be executed is made under
the workspace's lock (`reservation.py`); a preview and the measurement of topics take no lock, so
that they delay no commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from fennel_core.blueprints.commit_plan import (
    BankFacts,
    CommitPlan,
    TopicAmounts,
    plan_commit,
    recomputed,
    with_replays,
)
from fennel_core.blueprints.logical import AssetKey, Compiled
from fennel_core.blueprints.plan_entries import Notice, PlanAction, PlanRecord
from fennel_core.blueprints.plan_text import entry_line
from fennel_core.blueprints.source_replays import all_keys
from fennel_core.blueprints.spec import Catalog
from fennel_core.ledger.content_choice import catalog_of, due_contents
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.errors import BackfillNeeded, DataLossNotConfirmed
from fennel_core.ledger.leaving_rows import leaving_rows
from fennel_core.ledger.store import Branch, Commit, LedgerTransaction
from fennel_core.ledger.topic_amounts import measure_topics
from fennel_core.ledger.transitions import open_branch
from fennel_core.vocab.ids import BranchName, DatasetName, WorkspaceId

UNNAMED_INCARNATION: Final = 0
"""Incarnation in the plan of a preview, which names no asset."""


async def preview(
    context: LedgerContext,
    workspace: WorkspaceId,
    name: BranchName,
    compiled: Compiled,
    *,
    backfill: bool,
    allow_data_loss: bool = True,
    notices: Sequence[Notice] = (),
) -> PlanRecord:
    """Return the plan of a commit, without changing anything.

    It takes neither the workspace's lock nor a number for names, so that previews delay no commit;
    a commit that runs at the same time may make the plan out of date.
    """

    facts = await context.ledger.run(lambda tx: draft_facts(tx, workspace, name, compiled))
    needed = with_replays(facts, compiled)
    facts = replace(facts, amounts=await measure_topics(context, facts, needed))
    commit_plan = plan_commit(
        facts,
        needed,
        notices,
        allow_data_loss=allow_data_loss,
        history_retention=context.history_retention,
    )
    if not backfill:
        check_backfill(commit_plan, compiled)
    if context.history_retention:
        leaving = await context.ledger.run(
            lambda tx: leaving_rows(
                tx, name, facts, needed, commit_plan, allow_data_loss=allow_data_loss
            )
        )
        return leaving.added_to(commit_plan).record
    return commit_plan.record


async def bank_facts(
    tx: LedgerTransaction,
    branch: Branch,
    before: Catalog | None,
    compiled: Compiled,
    incarnation: int,
    amounts: TopicAmounts,
) -> BankFacts:
    """Read the planner's input; a plan that will be executed needs the workspace's lock.

    `before` is the catalog of the branch.
    """
    mine = await tx.bank.references(branch.workspace, branch.name)
    unshared = await tx.bank.unheld(mine, ignoring=branch.name)
    alive = await tx.bank.alive(branch.workspace, all_keys(compiled))
    leaving = await tx.bank.assets(set(mine) - set(alive.values()))
    missing = [key for key in all_keys(compiled) if key not in alive]
    return BankFacts(
        workspace=branch.workspace,
        incarnation=incarnation,
        alive=alive,
        mine=frozenset(mine),
        leaving={asset.id: asset.blueprint for asset in leaving},
        shared=frozenset(mine) - frozenset(unshared),
        before=before,
        retained=await tx.retained(branch.workspace, missing) if missing else {},
        grace_ms=tx.destroy_grace_ms,
        amounts=amounts,
    )


async def draft_facts(
    tx: LedgerTransaction, workspace: WorkspaceId, name: BranchName, compiled: Compiled
) -> BankFacts:
    branch = await open_branch(tx, workspace, name)
    before = await catalog_of(tx, branch.target)
    return await bank_facts(tx, branch, before, compiled, UNNAMED_INCARNATION, TopicAmounts())


async def draft_contents(
    context: LedgerContext, workspace: WorkspaceId, name: BranchName, compiled: Compiled
) -> Mapping[DatasetName, AssetKey]:
    """Return the topic that each source dataset would have if the commit were planned now."""

    async def draft(tx: LedgerTransaction) -> Mapping[DatasetName, AssetKey]:
        branch = await open_branch(tx, workspace, name)
        return await due_contents(tx, branch, await catalog_of(tx, branch.target), compiled)

    return await context.ledger.run(draft)


def check_data_loss(row: Commit, commit_plan: CommitPlan, leaving: Sequence[Notice] = ()) -> None:
    """Refuse to destroy accepted rows, unless the author of the commit confirmed it.

    `leaving`: those that would leave history by their age, sooner than without the commit.
    """
    losing = [
        entry
        for entry in commit_plan.entries
        if entry.action is PlanAction.DESTROY and entry.loses_rows
    ]
    if (losing or leaving) and not row.options.allow_data_loss:
        ways = ["keep a source on the endpoint"] if losing else []
        ways += ["keep a longer `history`, or what needs the rows"] if leaving else []
        lines = [entry_line(entry) for entry in losing] + [notice.text for notice in leaving]
        raise DataLossNotConfirmed(lines, otherwise=" and ".join(ways))


def check_backfill(commit_plan: CommitPlan, compiled: Compiled) -> None:
    titles = recomputed(commit_plan, compiled)
    if titles:
        raise BackfillNeeded(titles)
