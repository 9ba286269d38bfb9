"""The steps of a commit up to its commit point: T1 (reserve), create, T2 (switch), or failure.

T2 is the only commit point. Before it, every asset of the commit is held by a reservation, and
dropping the reservations condemns exactly the assets that nothing else holds. After it, references
hold the new version, and the previous one stays referenced until reads have moved (`warming.py`).

Each function is one step. It reads the current state, does nothing if the step is already done, and
may be run by two processes at once: rows change only under the workspace's lock and along the
life-cycle tables. Creating and deleting topics cannot be part of a transaction, so both are
idempotent and are recorded only after they happened. A crash at any point therefore leaves a state
that the same functions can finish.

Example: a commit adds dataset B to a branch that has A. T1 adds B's topic and job to the bank as
`pending`, reserves A and B for the commit, and writes creation entries for B. Create makes the
topic and marks the entries done. T2 registers B's job, replaces the reservations by references of
the new version and points the branch's `target` to it; reads still use the old version. Warming
waits for B's job and moves reads; destruction then removes what only the old version held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from fennel_core.bank.store import Asset, AssetState
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.commit_plan import (
    BankFacts,
    CommitPlan,
    TopicAmounts,
    plan_commit,
    recomputed,
    with_replays,
)
from fennel_core.blueprints.logical import AssetKey, AssetKind, Compiled, LogicalJob
from fennel_core.blueprints.plan_entries import Notice, PlanAction, PlanRecord
from fennel_core.blueprints.plan_text import entry_line
from fennel_core.blueprints.resolve import resolve_catalog, resolve_job
from fennel_core.blueprints.source_replays import all_keys
from fennel_core.blueprints.spec import Catalog
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ledger.audit_log import AssetAction, log_steps
from fennel_core.ledger.content_choice import (
    catalog_of,
    check_contents_at_switch,
    due_contents,
    mark_changed_contents,
)
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.errors import (
    AssetNotCreated,
    BackfillNeeded,
    CommitConflict,
    CommitOutOfOrder,
    DataLossNotConfirmed,
    KafkaUnavailable,
)
from fennel_core.ledger.lifecycle import (
    BETWEEN_T1_AND_T2,
    COMMIT,
    UNDONE,
    AssetEvent,
    CommitEvent,
    CommitState,
    EntryEvent,
)
from fennel_core.ledger.store import Branch, Commit, LedgerKind, LedgerTransaction
from fennel_core.ledger.topic_amounts import measure_topics
from fennel_core.ledger.topics import TopicSpec
from fennel_core.ledger.transitions import (
    apply_asset_event,
    apply_commit_event,
    apply_entry_event,
    commit_row,
    fail_locked_commit,
    locked_branch,
    locked_commit_row,
    open_branch,
    retain_or_condemn,
    stored_error,
    supersede_stale_commits,
)
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import (
    AssetId,
    BranchName,
    CommitId,
    DatasetName,
    Millis,
    TopicName,
    WorkspaceId,
)

log = logger(__name__)
UNNAMED_INCARNATION: Final = 0
"""Incarnation in the plan of a preview, which names no asset."""

# --- T1 -------------------------------------------------------------------------------------------


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


async def _draft_facts(
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


def _check_data_loss(row: Commit, commit_plan: CommitPlan) -> None:
    """Refuse to destroy accepted rows at once, unless the author of the commit confirmed it."""
    losing = [
        entry
        for entry in commit_plan.entries
        if entry.action is PlanAction.DESTROY and entry.loses_rows
    ]
    if losing and not row.options.allow_data_loss:
        raise DataLossNotConfirmed([entry_line(entry) for entry in losing])


def _check_backfill(commit_plan: CommitPlan, compiled: Compiled) -> None:
    titles = recomputed(commit_plan, compiled)
    if titles:
        raise BackfillNeeded(titles)


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

    facts = await context.ledger.run(lambda tx: _draft_facts(tx, workspace, name, compiled))
    needed = with_replays(facts, compiled)
    facts = replace(facts, amounts=await measure_topics(context, facts, needed))
    commit_plan = plan_commit(facts, needed, notices, allow_data_loss=allow_data_loss)
    if not backfill:
        _check_backfill(commit_plan, compiled)
    return commit_plan.record


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


async def branch_occupant(tx: LedgerTransaction, row: Commit) -> CommitId | None:
    """Return the commit of the row's branch that is between T1 and T2, if there is one."""
    for other in await tx.open_commit_rows(row.workspace):
        if other.branch == row.branch and other.state in BETWEEN_T1_AND_T2:
            return other.id
    return None


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
    validated against, so that what was validated is what is committed, and `notices` what its
    author should know. Commits of one branch pass from T1 to T2 one at a time, so that none of them
    is undone because another was faster. Raises ApiError; nothing has changed then.
    """

    amounts = TopicAmounts()
    received = await context.ledger.run(lambda tx: commit_row(tx, id_))
    if received.state is CommitState.RECEIVED:
        draft = await context.ledger.run(
            lambda tx: _draft_facts(tx, received.workspace, received.branch, compiled)
        )
        amounts = await measure_topics(context, draft, with_replays(draft, compiled))

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
        facts = await bank_facts(tx, branch, before, compiled, incarnation, amounts)
        needed = with_replays(facts, compiled)
        commit_plan = plan_commit(
            facts, needed, notices, allow_data_loss=row.options.allow_data_loss
        )
        _check_data_loss(row, commit_plan)
        if not row.options.backfill:
            _check_backfill(commit_plan, compiled)
        await tx.bank.add(
            [
                Asset(p.id, row.workspace, facts.incarnation, AssetState.PENDING, p.blueprint)
                for p in commit_plan.create
            ]
        )
        await mark_changed_contents(tx, before, compiled, commit_plan.ids())
        wanted = [p.id for p in commit_plan.wanted]
        await tx.bank.reserve(id_, wanted)
        # An adopted asset may still be pending in another commit: this commit creates it too.
        pending = [h.id for h in await tx.bank.summaries(wanted) if h.state is AssetState.PENDING]
        await tx.add_entries(LedgerKind.CREATION, row.workspace, id_, pending)
        catalog = resolve_catalog(needed, row.workspace, commit_plan.ids())
        await tx.set_compiled(id_, base, merged, stored_names.dumps(catalog), commit_plan.record)
        await apply_commit_event(tx, row, CommitEvent.RESERVE)
        return await commit_row(tx, id_)

    return await context.ledger.run(plan_and_reserve)


async def reject_commit(context: LedgerContext, id_: CommitId, error: ApiError) -> Commit:
    """Reject a commit before T1 and return its row, in which `error` is stored then.

    A commit that has passed T1 is not changed: its state says so.
    """

    async def reject(tx: LedgerTransaction) -> Commit:
        row = await locked_commit_row(tx, id_)
        if COMMIT.allows(row.state, CommitEvent.REJECT):
            await apply_commit_event(tx, row, CommitEvent.REJECT, error=error)
        return await commit_row(tx, id_)

    return await context.ledger.run(reject)


# --- create ---------------------------------------------------------------------------------------


async def create_assets(context: LedgerContext, id_: CommitId) -> Commit:
    """Create the topics of the creation ledger and mark each entry after its topic exists.

    Raises AssetNotCreated or KafkaUnavailable; the commit is then undoing.
    """
    reason = ""
    for attempt in range(context.timings.create_attempts):
        if attempt:
            await context.sleep(context.timings.retry_seconds * attempt)
        row, pending = await context.ledger.run(
            partial(_pending_assets, id_=id_, lease_ms=context.timings.lease_ms)
        )
        if row.state in UNDONE:
            raise stored_error(row)
        if row.state is not CommitState.RESERVED:
            return row
        topics = [a for a in pending if a.key.kind is not AssetKind.JOB]
        specs = [TopicSpec(TopicName(a.id), a.key.kind, a.blueprint.partitions) for a in topics]
        began = context.now()
        try:
            refusals = await context.topics.create(specs) if specs else {}
        except SystemUnavailable as unavailable:
            reason = str(unavailable)
            continue
        refused = {AssetId(name): str(text) for name, text in refusals.items()}
        took = context.now() - began
        row = await context.ledger.run(
            partial(_record_created, id_=id_, attempted=[a.id for a in pending], refused=refused)
        )
        log_steps(AssetAction.CREATE, topics, took, refused)
        if row.state in UNDONE:
            raise stored_error(row)
        return row
    error = KafkaUnavailable(
        f"Kafka could not create the topics now, so nothing changed: {reason}. "
        "Commit again when Kafka is available"
    )
    await fail_commit(context, id_, error)
    raise error


async def _pending_assets(
    tx: LedgerTransaction, id_: CommitId, lease_ms: Millis
) -> tuple[Commit, list[Asset]]:
    row = await locked_commit_row(tx, id_)
    await tx.extend_lease(id_, lease_ms)
    entries = (
        await tx.entries(LedgerKind.CREATION, commit=id_)
        if row.state is CommitState.RESERVED
        else []
    )
    return row, await tx.bank.assets(e.asset for e in entries)


async def _record_created(
    tx: LedgerTransaction,
    id_: CommitId,
    attempted: Sequence[AssetId],
    refused: dict[AssetId, str],
) -> Commit:
    """Record which assets exist now and which were refused; the commit is then created or undoing.

    A pending asset may be shared with another commit, which may have recorded it already: as
    failed, then it is lost for this commit too, or as created, then there is nothing to record.
    """
    row = await locked_commit_row(tx, id_)
    if row.state is not CommitState.RESERVED:
        return row
    holdings = await tx.bank.summaries(attempted)
    failed = {
        h.id: refused.get(h.id, "its creation failed in another commit")
        for h in holdings
        if h.state is AssetState.FAILED
    } | refused
    pending = [h for h in holdings if h.state is AssetState.PENDING]
    await apply_asset_event(tx, [h for h in pending if h.id not in failed], AssetEvent.CREATE_OK)
    await apply_asset_event(tx, [h for h in pending if h.id in refused], AssetEvent.CREATE_FAILED)
    entries = await tx.entries(LedgerKind.CREATION, commit=id_)
    created = set(attempted) - failed.keys()
    await apply_entry_event(tx, [e for e in entries if e.asset in created], EntryEvent.DONE)
    for entry in entries:
        if entry.asset in failed:
            await apply_entry_event(tx, [entry], EntryEvent.FAILED, failed[entry.asset])
    if failed:
        titles = {h.id: h.title for h in holdings}
        asset, reason = min(failed.items())
        text = f"`{titles[asset]}` could not be created ({asset}: {reason}); nothing changed"
        await fail_locked_commit(tx, row, AssetNotCreated(text))
    else:
        await apply_commit_event(tx, row, CommitEvent.CREATE_OK)
    return await commit_row(tx, id_)


# --- T2 -------------------------------------------------------------------------------------------


async def switch(context: LedgerContext, id_: CommitId) -> Commit:
    """Run T2, the commit point: the branch's target becomes this commit.

    Raises CommitConflict, BranchNotFound or WorkspaceNotFound if the branch has changed, and
    CommitConflict if it was cloned while its content got other sources; the commit is then undoing.
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
        new_jobs = await _reference_reserved(tx, row)
        await check_contents_at_switch(tx, row)
        released = await _release_unserved_target(tx, branch)
        await tx.update_branch(Branch(branch.workspace, branch.name, id_, branch.serving))
        await apply_commit_event(tx, row, CommitEvent.SWITCH)
        await supersede_stale_commits(tx, row.workspace)
        await retain_or_condemn(tx, row.workspace, id_, released)
        if row.options.allow_data_loss:
            await tx.confirm_losses(row.workspace)
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


# --- failure --------------------------------------------------------------------------------------


async def fail_commit(context: LedgerContext, id_: CommitId, error: ApiError) -> Commit:
    """Fail a commit before T2 and return its row; do nothing after T2.

    Its reservations are dropped, and what is no longer held is condemned.
    """

    async def fail(tx: LedgerTransaction) -> Commit:
        row = await locked_commit_row(tx, id_)
        if COMMIT.allows(row.state, CommitEvent.REJECT):
            await apply_commit_event(tx, row, CommitEvent.REJECT, error=error)
        elif COMMIT.allows(row.state, CommitEvent.FAIL):
            await fail_locked_commit(tx, row, error)
        return await commit_row(tx, id_)

    return await context.ledger.run(fail)
