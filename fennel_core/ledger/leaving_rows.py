"""Which rows leave history because of a commit, under the lock of its workspace.

Retention takes the same lock before it removes rows (`history.row_needs`), so what this returns is
true until the commit is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.commit_plan import BankFacts, CommitPlan, TopicAmounts
from fennel_core.blueprints.logical import Compiled
from fennel_core.blueprints.plan_entries import Notice
from fennel_core.blueprints.resolve import resolve_catalog, resolve_job
from fennel_core.blueprints.row_retention import retention_of
from fennel_core.blueprints.shortened_history import (
    ShortenedHistory,
    held_back,
    loss,
    shortened,
)
from fennel_core.blueprints.spec import Catalog
from fennel_core.ledger.store import LedgerTransaction
from fennel_core.vocab.ids import AssetId, BranchName, CommitId, JobId, TopicName, WorkspaceId


@dataclass(frozen=True, slots=True)
class LeavingRows:
    """The notices of a plan about rows that leave history. `losses`: those to be confirmed."""

    losses: tuple[Notice, ...] = ()
    others: tuple[Notice, ...] = ()

    def added_to(self, plan: CommitPlan) -> CommitPlan:
        """Return the plan with the notices."""
        return replace(plan, notices=(*plan.notices, *self.losses, *self.others))


async def leaving_rows(
    tx: LedgerTransaction,
    branch: BranchName,
    facts: BankFacts,
    compiled: Compiled,
    plan: CommitPlan,
    *,
    allow_data_loss: bool,
) -> LeavingRows:
    """Return which rows leave history by their age because of a commit of `compiled`."""
    before = await _versions(tx, facts.workspace)
    others = await _versions(tx, facts.workspace, without=branch)
    jobs = {job.id: job for job in await tx.running_jobs(facts.workspace)}
    was = retention_of(before.values(), jobs.values())
    new = resolve_catalog(compiled, facts.workspace, plan.ids())
    kept = {id_: job for id_, job in jobs.items() if _stays(facts, id_)}
    for each in compiled.jobs:
        job = resolve_job(each, facts.workspace, plan.ids())
        kept[job.id] = job
    needed = retention_of([*others.values(), new], kept.values())
    if await tx.keeps_old_rows(facts.workspace):
        every = await _with_rows(tx, shortened({}, needed))
        if not allow_data_loss:
            return LeavingRows(others=tuple(held_back(each, rows) for each, rows in every))
    else:
        every = await _with_rows(tx, shortened(was, needed))
    return LeavingRows(tuple(loss(each, rows, tx.destroy_grace_ms) for each, rows in every))


async def recounted(tx: LedgerTransaction, amounts: TopicAmounts) -> TopicAmounts:
    """Return amounts with the rows that have left history until now."""
    topics = {*amounts.messages, *amounts.removed_rows, *amounts.expired_rows}
    held = await tx.history_ranges(sorted(map(TopicName, topics)))
    removed, expired = dict.fromkeys(topics, 0), dict.fromkeys(topics, 0)
    for (topic, _), each in held.items():
        removed[AssetId(topic)] += each.removed_rows
        expired[AssetId(topic)] += each.expired_rows
    return replace(amounts, removed_rows=removed, expired_rows=expired)


async def _versions(
    tx: LedgerTransaction, workspace: WorkspaceId, *, without: BranchName | None = None
) -> Mapping[CommitId, Catalog]:
    """Return the versions that branches have and that running commits will give them."""
    wanted: set[CommitId | None] = set()
    for branch in await tx.branches(workspace):
        if branch.name != without:
            wanted |= {branch.target, branch.serving}
    wanted |= {c.id for c in await tx.open_commit_rows(workspace) if c.branch != without}
    found = {}
    for id_ in wanted - {None}:
        assert id_ is not None
        if (stored := await tx.catalog(id_)) is not None:
            found[id_] = stored_names.loads(stored, Catalog)
    return found


def _stays(facts: BankFacts, job: JobId) -> bool:
    return AssetId(job) not in facts.leaving or AssetId(job) in facts.shared


async def _with_rows(
    tx: LedgerTransaction, histories: Iterable[ShortenedHistory]
) -> list[tuple[ShortenedHistory, int]]:
    """Return those that lose rows now, and how many at most."""
    every = list(histories)
    rows = await tx.old_rows({each.topic: each.after_us for each in every})
    return [(each, rows[each.topic]) for each in every if rows.get(each.topic)]
