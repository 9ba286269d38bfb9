"""Which rows leave history because of a commit, under the lock of its workspace.

Retention takes the same lock before it removes rows (`history.row_needs`), so what this returns is
true until the commit is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.commit_plan import BankFacts, CommitPlan, TopicAmounts
from fennel_core.blueprints.logical import Compiled
from fennel_core.blueprints.plan_entries import Notice
from fennel_core.blueprints.resolve import resolve_catalog, resolve_job
from fennel_core.blueprints.row_retention import RowRetention, retention_of
from fennel_core.blueprints.shortened_history import (
    CONFIRMED,
    ShortenedHistory,
    held_back,
    loss,
    shortened,
)
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.ledger.lifecycle import BETWEEN_T1_AND_T2
from fennel_core.ledger.store import LedgerTransaction
from fennel_core.vocab.ids import AssetId, BranchName, CommitId, JobId, TopicName, WorkspaceId

MOST_OPEN: Final = 4
"""Branches with a commit between T1 and T2 whose outcomes are combined."""


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
    workspace = facts.workspace
    versions = await _versions(tx, workspace, branch)
    jobs = {job.id: job for job in await tx.kept_jobs(workspace)}
    for each in compiled.jobs:
        job = resolve_job(each, workspace, plan.ids())
        jobs[job.id] = job
    new = resolve_catalog(compiled, workspace, plan.ids())
    keeps = await tx.keeps_old_rows(workspace) and not versions.confirmed
    known = _needs([*versions.former, *versions.own], jobs)
    found: dict[TopicName, ShortenedHistory] = {}
    for others in product(*versions.others):
        stay = [each for each in others if each is not None]
        was = {**known, **_needs([*versions.own, *stay], jobs)}
        for one in shortened({} if keeps else was, _needs([new, *stay], jobs)):
            if one.topic not in found or one.after_us < found[one.topic].after_us:
                found[one.topic] = one
    every = await _with_rows(tx, found.values())
    if keeps and not allow_data_loss:
        return LeavingRows(others=tuple(held_back(each, rows) for each, rows in every))
    confirmed = (CONFIRMED,) if keeps else ()
    losses = tuple(loss(each, rows, tx.destroy_grace_ms) for each, rows in every)
    return LeavingRows(losses, confirmed)


async def recounted(tx: LedgerTransaction, amounts: TopicAmounts) -> TopicAmounts:
    """Return amounts with the rows that have left history until now."""
    topics = {*amounts.messages, *amounts.removed_rows, *amounts.expired_rows}
    held = await tx.history_ranges(sorted(map(TopicName, topics)))
    removed, expired = dict.fromkeys(topics, 0), dict.fromkeys(topics, 0)
    for (topic, _), each in held.items():
        removed[AssetId(topic)] += each.removed_rows
        expired[AssetId(topic)] += each.expired_rows
    return replace(amounts, removed_rows=removed, expired_rows=expired)


@dataclass(frozen=True, slots=True)
class _Versions:
    """The versions of a workspace that need rows.

    `own`: that of the branch. `others`: those that each other branch may have soon: its target, or
    that of a commit between T1 and T2, which may still be undone; of more than `MOST_OPEN` such
    branches the others count as without one. `former`: those that branches still serve, or had
    within the grace period. `confirmed`: a commit between T1 and T2 lets old rows leave.
    """

    own: Sequence[Catalog]
    others: Sequence[Sequence[Catalog | None]]
    former: Sequence[Catalog]
    confirmed: bool


async def _versions(tx: LedgerTransaction, workspace: WorkspaceId, name: BranchName) -> _Versions:
    opened = {
        row.branch: row
        for row in await tx.open_commit_rows(workspace)
        if row.state in BETWEEN_T1_AND_T2
    }
    branches = await tx.branches(workspace)
    former = {*await tx.versions_with_held_rows(workspace)}
    former |= {v for b in branches for v in (b.target, b.serving) if v is not None}
    ids = {*former, *(row.id for row in opened.values())}
    found: dict[CommitId | None, Catalog] = {}
    for id_ in ids:
        if (stored := await tx.catalog(id_)) is not None:
            found[id_] = stored_names.loads(stored, Catalog)
    own: list[Catalog] = []
    others: list[Sequence[Catalog | None]] = []
    for branch in branches:
        now = found.get(branch.target)
        if branch.name == name:
            own += [] if now is None else [now]
        elif branch.name not in opened:
            others.append((now,))
        elif sum(len(each) > 1 for each in others) < MOST_OPEN:
            others.append((now, found.get(opened[branch.name].id)))
    confirmed = any(row.options.allow_data_loss for row in opened.values())
    return _Versions(own, others, [found[id_] for id_ in former & found.keys()], confirmed)


def _needs(versions: Sequence[Catalog], jobs: Mapping[JobId, Job]) -> dict[TopicName, RowRetention]:
    """Return what versions need, with the jobs that they have."""
    ids = {id_ for version in versions for id_ in version.jobs}
    return retention_of(versions, [job for id_, job in jobs.items() if id_ in ids])


async def _with_rows(
    tx: LedgerTransaction, histories: Iterable[ShortenedHistory]
) -> list[tuple[ShortenedHistory, int]]:
    """Return those that lose rows now, and how many at most."""
    every = list(histories)
    rows = await tx.old_rows({each.topic: each.after_us for each in every})
    return [(each, rows[each.topic]) for each in every if rows.get(each.topic)]
