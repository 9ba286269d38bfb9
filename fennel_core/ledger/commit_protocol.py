"""A commit's way through the ledgers: T1 → create → T2 → warm → destroy, and back from any point
before T2.

Theory. T2 is the only commit point. Before it, whatever exists is held by reservations, and
dropping those condemns exactly what nobody else holds; after it, references hold the new version,
and the old one stays held until reads have left it. Each function below is one step; it reads the
state it finds, does nothing where the step is done, and may be run by two processes at once: every
change of a row happens under the workspace's lock and along the life-cycle tables. What happens
outside transactions (making and unmaking topics) is idempotent, and is written down only after it
is true. So a crash at any point leaves a state that these same functions finish.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, assert_never

from fennel_core.bank.store import Asset, AssetState, Holding
from fennel_core.blueprints.logical import AssetKind, Compiled, LogicalJob
from fennel_core.blueprints.plan import BankFacts, Plan, diff, plan, recomputed
from fennel_core.blueprints.resolve import resolve_catalog, resolve_job
from fennel_core.ledger.audit_log import AssetAction, log_steps
from fennel_core.ledger.lifecycle import (
    ASSET,
    COMMIT,
    ENTRY,
    UNDONE,
    AssetEvent,
    CommitEvent,
    CommitState,
    EntryEvent,
)
from fennel_core.ledger.readiness import (
    BlockedByParkedJob,
    CatchingUp,
    JobPartition,
    Readiness,
    Ready,
    caught_up,
    jobs_with_backlog,
    judge_readiness,
)
from fennel_core.ledger.store import (
    Branch,
    Commit,
    Ledger,
    LedgerEntry,
    LedgerKind,
    LedgerTransaction,
)
from fennel_core.ledger.topics import TopicAdmin, TopicSpec, Unreachable
from fennel_core.vocab import canonical
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import (
    AssetId,
    BranchName,
    CommitId,
    JobId,
    Millis,
    TopicName,
    WorkspaceId,
)

LEASE_MS: Final = Millis(60_000)
ORPHAN_GRACE_MS: Final = Millis(3_600_000)


@dataclass(frozen=True, slots=True)
class LedgerTimings:
    """`lease_ms`: while somebody works on a commit, recovery leaves it alone for this long after
    the last sign of life.
    """

    lease_ms: Millis = LEASE_MS
    create_attempts: int = 5
    retry_seconds: float = 0.5
    warm_poll_seconds: float = 0.05
    first_warm_seconds: float = 1.0
    """How long jobs that have nothing to catch up with are waited for: their absence makes no
    answer wrong, and commits should be quick.
    """
    stray_grace_ms: Millis = ORPHAN_GRACE_MS


@dataclass(frozen=True, slots=True)
class LedgerContext:
    """What every step works with. `sleep` waits that many seconds, `now` gives seconds that never
    go back.
    """

    ledger: Ledger
    topics: TopicAdmin
    sleep: Callable[[float], Awaitable[None]]
    timings: LedgerTimings = LedgerTimings()
    now: Callable[[], float] = time.monotonic


# --- moves along the tables -----------------------------------------------------------------------


async def apply_commit_event(
    tx: LedgerTransaction,
    row: Commit,
    event: CommitEvent,
    *,
    error: str | None = None,
    code: str | None = None,
) -> None:
    state = COMMIT.then(row.state, event)
    if state is not row.state:
        await tx.set_state(row.id, state, error=error, error_code=code)


async def _advance(tx: LedgerTransaction, holdings: Iterable[Holding], event: AssetEvent) -> None:
    by_state: dict[AssetState, list[AssetId]] = {}
    for holding in holdings:
        then = ASSET.then(holding.state, event)
        if then is not holding.state:
            by_state.setdefault(then, []).append(holding.id)
    for state, ids in by_state.items():
        await tx.bank.set_state(ids, state)


async def _mark(
    tx: LedgerTransaction,
    entries: Iterable[LedgerEntry],
    event: EntryEvent,
    error: str | None = None,
) -> None:
    by_state: dict[str, list[LedgerEntry]] = {}
    for entry in entries:
        by_state.setdefault(ENTRY.then(entry.state, event), []).append(entry)
    for same in by_state.values():
        await tx.mark([e.id for e in same], ENTRY.then(same[0].state, event), error)


async def condemn(
    tx: LedgerTransaction,
    workspace: WorkspaceId,
    commit: CommitId | None,
    let_go: Iterable[AssetId],
) -> None:
    """Put those of `let_go` that nobody holds into the destruction ledger. The caller has the
    workspace's lock.
    """
    doomed = await tx.bank.holdings(await tx.bank.unheld(let_go))
    alive = [h for h in doomed if h.state not in (AssetState.CONDEMNED, AssetState.GONE)]
    await _advance(tx, [h for h in alive if h.state is AssetState.LIVE], AssetEvent.RELEASED)
    await _advance(tx, [h for h in alive if h.state is not AssetState.LIVE], AssetEvent.UNDONE)
    if alive:
        await tx.add_entries(LedgerKind.DESTRUCTION, workspace, commit, [h.id for h in alive])


async def commit_row(tx: LedgerTransaction, id_: CommitId) -> Commit:
    """The commit's row; ApiError 404."""
    row = await tx.commit(id_)
    if row is None:
        raise ApiError(404, "commit-not-found", f"commit `{id_}` does not exist")
    return row


async def locked_commit_row(tx: LedgerTransaction, id_: CommitId) -> Commit:
    """The row, read under its workspace's lock: nobody else changes it, or anything that is held
    there, until the transaction ends.
    """
    await tx.bank.lock((await commit_row(tx, id_)).workspace)
    return await commit_row(tx, id_)


def undone_error(row: Commit) -> ApiError:
    """The error that a commit which did not happen left in its row."""
    return ApiError(
        500, row.error_code or "commit-undone", row.error or f"commit `{row.id}` was taken back"
    )


# --- T1 -------------------------------------------------------------------------------------------


async def bank_facts(tx: LedgerTransaction, branch: Branch, compiled: Compiled) -> BankFacts:
    """What the planner needs. The caller has the workspace's lock."""
    mine = await tx.bank.references(branch.workspace, branch.name)
    unshared = await tx.bank.unheld(mine, but_for=branch.name)
    return BankFacts(
        workspace=branch.workspace,
        incarnation=await tx.bank.next_incarnation(),
        alive=await tx.bank.alive(branch.workspace, [b.key for b in compiled.blueprints]),
        mine={h.id: h.title for h in await tx.bank.holdings(mine)},
        shared=frozenset(mine) - frozenset(unshared),
    )


async def open_branch(tx: LedgerTransaction, workspace: WorkspaceId, name: BranchName) -> Branch:
    """The branch, under its workspace's lock; ApiError when either is not there."""
    if not await tx.bank.lock(workspace):
        raise ApiError(
            404,
            "workspace-not-found",
            f"workspace `{workspace}` does not exist or is being deleted",
        )
    branch = await tx.branch(workspace, name)
    if branch is None:
        raise ApiError(500, "branch-not-found", f"branch `{name}` does not exist")
    return branch


def _check_backfill(made: Plan, compiled: Compiled) -> None:
    again = recomputed(made, compiled)
    if again:
        raise ApiError(
            400,
            "backfill-needed",
            "this commit was sent with backfill=false, but it computes again from existing data: "
            + "; ".join(f"`{title}`" for title in again)
            + ". Commit with backfill=true, or leave these definitions as they are",
        )


async def preview(
    context: LedgerContext,
    workspace: WorkspaceId,
    name: BranchName,
    compiled: Compiled,
    *,
    backfill: bool,
) -> tuple[str, ...]:
    """The plan's diff, with nothing changed."""

    async def work(tx: LedgerTransaction) -> Plan:
        branch = await open_branch(tx, workspace, name)
        return plan(await bank_facts(tx, branch, compiled), compiled.blueprints)

    made = await context.ledger.run(work)
    if not backfill:
        _check_backfill(made, compiled)
    return diff(made)


async def reserve(
    context: LedgerContext, id_: CommitId, compiled: Compiled, merged: bytes
) -> Commit:
    """T1: plan under the lock, add what is to be created, hold everything. Raises ApiError, and
    then nothing has happened.
    """

    async def work(tx: LedgerTransaction) -> Commit:
        row = await locked_commit_row(tx, id_)
        if row.state is not CommitState.RECEIVED:
            return row
        await tx.lease(id_, context.timings.lease_ms)
        branch = await open_branch(tx, row.workspace, row.branch)
        _check_base(row, branch)
        facts = await bank_facts(tx, branch, compiled)
        made = plan(facts, compiled.blueprints)
        if not row.options.backfill:
            _check_backfill(made, compiled)
        await tx.bank.add(
            [
                Asset(p.id, row.workspace, facts.incarnation, AssetState.PENDING, p.blueprint)
                for p in made.create
            ]
        )
        wanted = [p.id for p in made.wanted]
        await tx.bank.reserve(id_, wanted)
        pending = [h.id for h in await tx.bank.holdings(wanted) if h.state is AssetState.PENDING]
        await tx.add_entries(LedgerKind.CREATION, row.workspace, id_, pending)
        catalog = resolve_catalog(compiled, row.workspace, made.ids())
        await tx.set_compiled(id_, merged, canonical.dumps(catalog), diff(made))
        await apply_commit_event(tx, row, CommitEvent.RESERVE)
        return await commit_row(tx, id_)

    return await context.ledger.run(work)


def _check_base(row: Commit, branch: Branch) -> None:
    if row.base != branch.target:
        raise ApiError(
            409,
            "commit-base-moved",
            f"another commit of branch `{row.branch}` finished while this one was "
            "under way: look at what it changed and commit again",
        )


async def reject_commit(context: LedgerContext, id_: CommitId, error: ApiError) -> None:
    """The commit is wrong; nothing has happened."""

    async def work(tx: LedgerTransaction) -> None:
        row = await locked_commit_row(tx, id_)
        if COMMIT.allows(row.state, CommitEvent.REJECT):
            await apply_commit_event(tx, row, CommitEvent.REJECT, error=error.text, code=error.code)

    await context.ledger.run(work)


# --- create ---------------------------------------------------------------------------------------


async def create_assets(context: LedgerContext, id_: CommitId) -> Commit:
    """Make every asset of the creation ledger, and mark each after it exists. Raises ApiError when
    one is refused: undo comes next.
    """
    unreachable = ""
    for attempt in range(context.timings.create_attempts):
        if attempt:
            await context.sleep(context.timings.retry_seconds * attempt)
        row, pending = await context.ledger.run(
            partial(_pending, id_=id_, lease_ms=context.timings.lease_ms)
        )
        if row.state in UNDONE:
            raise undone_error(row)
        if row.state is not CommitState.RESERVED:
            return row
        made = [a for a in pending if a.key.kind is not AssetKind.JOB]
        topics = [TopicSpec(TopicName(a.id), a.key.kind, a.blueprint.partitions) for a in made]
        began = context.now()
        try:
            refused = await context.topics.create(topics) if topics else {}
        except Unreachable as lost:
            unreachable = str(lost)
            continue
        why = {AssetId(name): str(text) for name, text in refused.items()}
        took = context.now() - began
        row = await context.ledger.run(
            partial(_created, id_=id_, attempted=[a.id for a in pending], refused=why)
        )
        log_steps(AssetAction.CREATE, made, took, why)
        if row.state in UNDONE:
            raise undone_error(row)
        return row
    error = ApiError(
        503,
        "kafka-unavailable",
        f"Kafka did not answer while topics were created, so nothing was changed: {unreachable}",
    )
    await fail_commit(context, id_, error)
    raise error


async def _pending(
    tx: LedgerTransaction, id_: CommitId, lease_ms: Millis
) -> tuple[Commit, list[Asset]]:
    row = await commit_row(tx, id_)
    await tx.lease(id_, lease_ms)
    entries = (
        await tx.entries(LedgerKind.CREATION, commit=id_)
        if row.state is CommitState.RESERVED
        else []
    )
    return row, await tx.bank.assets(e.asset for e in entries)


async def _created(
    tx: LedgerTransaction, id_: CommitId, attempted: Sequence[AssetId], refused: dict[AssetId, str]
) -> Commit:
    """Write down what exists now, and what was refused; then the commit is created or undoing."""
    row = await locked_commit_row(tx, id_)
    if row.state is not CommitState.RESERVED:
        return row
    holdings = await tx.bank.holdings(attempted)
    # A commit that shares a pending asset may have seen it refused meanwhile; it is lost for this
    # commit too.
    lost = {
        h.id: refused.get(h.id, "its creation failed for another commit")
        for h in holdings
        if h.state is AssetState.FAILED
    } | refused
    # Only what is still pending moves: a commit that shares the asset may have brought it further
    # already.
    pending = [h for h in holdings if h.state is AssetState.PENDING]
    await _advance(tx, [h for h in pending if h.id not in lost], AssetEvent.CREATE_OK)
    await _advance(tx, [h for h in pending if h.id in refused], AssetEvent.CREATE_FAILED)
    entries = await tx.entries(LedgerKind.CREATION, commit=id_)
    tried = set(attempted)
    await _mark(
        tx, [e for e in entries if e.asset in tried and e.asset not in lost], EntryEvent.DONE
    )
    for entry in entries:
        if entry.asset in lost:
            await _mark(tx, [entry], EntryEvent.FAILED, lost[entry.asset])
    if lost:
        titles = {h.id: h.title for h in holdings}
        asset, why = next(iter(sorted(lost.items())))
        text = f"`{titles[asset]}` could not be created ({asset}: {why}), so nothing was changed"
        await fail_commit_in(tx, row, ApiError(500, "asset-not-created", text))
    else:
        await apply_commit_event(tx, row, CommitEvent.CREATE_OK)
    return await commit_row(tx, id_)


# --- T2 -------------------------------------------------------------------------------------------


async def switch(context: LedgerContext, id_: CommitId) -> Commit:
    """T2: from here on the new definition exists. Raises ApiError when the branch moved or went:
    undo comes next.
    """

    async def work(tx: LedgerTransaction) -> tuple[Commit, list[Asset]]:
        row = await locked_commit_row(tx, id_)
        if row.state is not CommitState.CREATED:
            return row, []
        await tx.lease(id_, context.timings.lease_ms)
        branch = await open_branch(tx, row.workspace, row.branch)
        _check_base(row, branch)
        jobs = await _take_hold(tx, row)
        let_go = await _leave_target(tx, branch)
        await tx.put_branch(Branch(branch.workspace, branch.name, id_, branch.serving))
        await apply_commit_event(tx, row, CommitEvent.SWITCH)
        await supersede_stale_commits(tx, row.workspace)
        await condemn(tx, row.workspace, id_, let_go)
        return await commit_row(tx, id_), jobs

    began = context.now()
    try:
        row, jobs = await context.ledger.run(work)
    except ApiError as error:
        await fail_commit(context, id_, error)
        raise
    if row.state in UNDONE:
        raise undone_error(row)
    if row.state in (CommitState.RECEIVED, CommitState.RESERVED):
        raise ApiError(
            409,
            "commit-out-of-order",
            f"commit `{id_}` is {row.state}: compile and create come before switch",
        )
    log_steps(AssetAction.REGISTER, jobs, context.now() - began)
    return row


async def _take_hold(tx: LedgerTransaction, row: Commit) -> list[Asset]:
    """Reservations become references, assets live, jobs registered; answers the new jobs."""
    held = await tx.bank.holdings(await tx.bank.reserved(row.id))
    names = {h.key: h.id for h in held}
    new_jobs = await tx.bank.assets(
        h.id for h in held if h.key.kind is AssetKind.JOB and h.state is AssetState.CREATED
    )
    await _advance(tx, held, AssetEvent.SWITCHED)
    await tx.add_jobs(
        [
            resolve_job(a.blueprint, row.workspace, names)
            for a in new_jobs
            if isinstance(a.blueprint, LogicalJob)
        ]
    )
    await tx.bank.refer(row.id, row.branch, [h.id for h in held])
    await tx.bank.unreserve(row.id)
    return new_jobs


async def _leave_target(tx: LedgerTransaction, branch: Branch) -> list[AssetId]:
    """The branch leaves a target that it never served: nobody will read that version here any
    more.
    """
    if branch.target is None or branch.target == branch.serving:
        return []
    return await tx.bank.unrefer(branch.workspace, branch.name, branch.target)


async def supersede_stale_commits(tx: LedgerTransaction, workspace: WorkspaceId) -> None:
    """Warming commits that are no branch's target any more need not become warm. The caller has the
    workspace's lock.
    """
    targets = {b.target for b in await tx.branches(workspace)}
    for id_ in await tx.open_commits(workspace):
        row = await commit_row(tx, id_)
        if row.state is CommitState.WARMING and id_ not in targets:
            await apply_commit_event(tx, row, CommitEvent.SUPERSEDE)


# --- warm -----------------------------------------------------------------------------------------


_PARKED: Final = "! job `"
"""How a line of a summary begins that tells of a parked job."""


@dataclass(frozen=True, slots=True)
class WarmingJobs:
    """What a warming commit waits for: its new jobs, and which of them reads may not do without."""

    jobs: tuple[JobId, ...]
    must: frozenset[JobId]


async def warm_and_serve(context: LedgerContext, id_: CommitId, *, seconds: float) -> Readiness:
    """Wait until the new jobs have caught up, then let reads move; gives up after `seconds`, and
    leaves the rest to recovery.

    Jobs with nothing to catch up with (over topics that are as new as they, or in a branch that
    serves nothing yet) are waited for a moment only: their engines will be there soon, and nobody
    reads anything yet that they hold.
    """
    waiting = await context.ledger.run(lambda tx: _waiting(tx, id_))
    before: frozenset[JobPartition] = frozenset()
    began = context.now()
    while True:
        waited = context.now() - began
        patient = waited < min(seconds, context.timings.first_warm_seconds)
        outcome, now = await _warm_once(context, id_, waiting, before, patient=patient)
        if not isinstance(outcome, CatchingUp) or waited >= seconds:
            return outcome
        before |= now
        await context.sleep(context.timings.warm_poll_seconds)


async def serve_if_ready(context: LedgerContext, id_: CommitId) -> Readiness:
    """Look once, and let reads move if they may."""
    waiting = await context.ledger.run(lambda tx: _waiting(tx, id_))
    outcome, _ = await _warm_once(context, id_, waiting, frozenset(), patient=False)
    return outcome


async def _warm_once(
    context: LedgerContext,
    id_: CommitId,
    waiting: WarmingJobs,
    before: frozenset[JobPartition],
    *,
    patient: bool,
) -> tuple[Readiness, frozenset[JobPartition]]:
    async def look(tx: LedgerTransaction) -> tuple[Readiness, frozenset[JobPartition]]:
        row = await commit_row(tx, id_)
        if row.state is not CommitState.WARMING:
            return Ready(), frozenset()
        await tx.lease(id_, context.timings.lease_ms)
        progress = await tx.progress(waiting.jobs)
        return judge_readiness(progress, before, waiting.must), caught_up(progress)

    outcome, now = await context.ledger.run(look)
    if isinstance(outcome, BlockedByParkedJob):
        await context.ledger.run(partial(_tell_parked, id_=id_, errors=outcome.errors))
    match outcome:
        case Ready() | BlockedByParkedJob(must=False):
            serve = True
        case CatchingUp(must=False):
            serve = not patient
        case CatchingUp() | BlockedByParkedJob():
            serve = False
        case unreachable:
            assert_never(unreachable)
    if serve:
        await context.ledger.run(lambda tx: _serve(tx, id_))
        return outcome if isinstance(outcome, BlockedByParkedJob) else Ready(), now
    return outcome, now


async def _waiting(tx: LedgerTransaction, id_: CommitId) -> WarmingJobs:
    """The jobs of a warming commit that the served version of its branches does not have."""
    row = await commit_row(tx, id_)
    new: set[AssetId] = set()
    bound: set[AssetId] = set()
    for branch in await tx.branches(row.workspace):
        if branch.target == id_ and branch.serving != id_:
            mine = set(await tx.bank.references(branch.workspace, branch.name, id_))
            served = (
                set(await tx.bank.references(branch.workspace, branch.name, branch.serving))
                if branch.serving
                else set()
            )
            new |= mine - served
            bound |= mine - served if branch.serving else set()
    assets = await tx.bank.assets(new)
    jobs = {a.key: JobId(a.id) for a in assets if a.key.kind is AssetKind.JOB}
    made_here = {
        e.asset for e in await tx.entries(LedgerKind.CREATION, commit=id_, only_open=False)
    }
    new_keys = {a.key for a in assets if a.id in made_here}
    must = jobs_with_backlog(
        [a.blueprint for a in assets if isinstance(a.blueprint, LogicalJob) and a.id in bound],
        new_keys,
    )
    return WarmingJobs(tuple(sorted(jobs.values())), frozenset(jobs[key] for key in must))


def is_blocked_by_parked_job(row: Commit) -> bool:
    """Does the commit stand while reads cannot move, because of a parked job that its summary tells
    of?
    """
    return row.state is CommitState.WARMING and any(
        line.startswith(_PARKED) for line in row.summary
    )


async def _tell_parked(
    tx: LedgerTransaction, id_: CommitId, errors: Sequence[tuple[JobId, str]]
) -> None:
    """Each parked job once in the commit's summary, by its title."""
    row = await locked_commit_row(tx, id_)
    titles = {h.id: h.title for h in await tx.bank.holdings([AssetId(job) for job, _ in errors])}
    lines = [f"{_PARKED}{titles[AssetId(job)]}` is parked: {error}" for job, error in errors]
    await tx.add_summary(id_, [line for line in lines if line not in row.summary])


async def _serve(tx: LedgerTransaction, id_: CommitId) -> None:
    """Reads move to the new version; what only the old one held is let go."""
    row = await locked_commit_row(tx, id_)
    if row.state is not CommitState.WARMING:
        return
    let_go: list[AssetId] = []
    for branch in await tx.branches(row.workspace):
        if branch.target == id_ and branch.serving != id_:
            await tx.put_branch(Branch(branch.workspace, branch.name, id_, id_))
            if branch.serving is not None:
                let_go += await tx.bank.unrefer(branch.workspace, branch.name, branch.serving)
    await apply_commit_event(tx, row, CommitEvent.SERVE)
    await condemn(tx, row.workspace, id_, let_go)


# --- destroy and undo -----------------------------------------------------------------------------


async def fail_commit(context: LedgerContext, id_: CommitId, error: ApiError) -> None:
    """Give up a commit before T2: its reservations go, and what nobody else holds is condemned.
    Nothing else has happened.
    """

    async def work(tx: LedgerTransaction) -> None:
        row = await locked_commit_row(tx, id_)
        if COMMIT.allows(row.state, CommitEvent.FAIL):
            await fail_commit_in(tx, row, error)

    await context.ledger.run(work)


async def fail_commit_in(tx: LedgerTransaction, row: Commit, error: ApiError) -> None:
    """As `fail_commit`, inside a transaction that has the workspace's lock."""
    await apply_commit_event(tx, row, CommitEvent.FAIL, error=error.text, code=error.code)
    await _mark(
        tx,
        await tx.entries(LedgerKind.CREATION, commit=row.id, only_open=False),
        EntryEvent.CANCELLED,
    )
    await condemn(tx, row.workspace, row.id, await tx.bank.unreserve(row.id))


async def destroy_condemned(context: LedgerContext, workspace: WorkspaceId) -> int:
    """One round of the workspace's destruction ledger: jobs first, topics when no condemned job can
    write to them any more.

    Answers how many entries are still open. Settles the commits that waited for it.
    """
    began = context.now()
    stopped, topics, entries = await context.ledger.run(lambda tx: _destroy_jobs(tx, workspace))
    log_steps(AssetAction.STOP, stopped, context.now() - began)
    if topics:
        began = context.now()
        try:
            refused = await context.topics.delete([TopicName(t.id) for t in topics])
        except Unreachable as lost:
            log_steps(
                AssetAction.DESTROY,
                topics,
                context.now() - began,
                {t.id: str(lost) for t in topics},
            )
            return len(entries)
        why = {AssetId(name): str(text) for name, text in refused.items()}
        took = context.now() - began
        await context.ledger.run(lambda tx: _destroyed(tx, workspace, [t.id for t in topics], why))
        log_steps(AssetAction.DESTROY, topics, took, why)
    return await context.ledger.run(lambda tx: _settle(tx, workspace))


async def _destroy_jobs(
    tx: LedgerTransaction, workspace: WorkspaceId
) -> tuple[list[Holding], list[Holding], list[LedgerEntry]]:
    """Stop condemned jobs; answers those that have stopped now, the topics that may go, and all
    open entries.
    """
    await tx.bank.lock(workspace)
    entries = await tx.entries(LedgerKind.DESTRUCTION, workspace=workspace)
    if not entries:
        return [], [], []
    holdings = await tx.bank.holdings(e.asset for e in entries)
    jobs = [h for h in holdings if h.key.kind is AssetKind.JOB]
    stopped: list[Holding] = []
    if jobs:
        await tx.retire([JobId(h.id) for h in jobs])
        removed = {AssetId(job) for job in await tx.remove_stopped([JobId(h.id) for h in jobs])}
        stopped = [h for h in jobs if h.id in removed]
        await _gone(tx, entries, stopped)
    topics = [h for h in holdings if h.key.kind is not AssetKind.JOB]
    return stopped, topics if len(stopped) == len(jobs) else [], entries


async def _gone(
    tx: LedgerTransaction, entries: Sequence[LedgerEntry], holdings: Sequence[Holding]
) -> None:
    ids = {h.id for h in holdings}
    await _mark(tx, [e for e in entries if e.asset in ids], EntryEvent.DONE)
    await _advance(tx, holdings, AssetEvent.DESTROYED)


async def _destroyed(
    tx: LedgerTransaction,
    workspace: WorkspaceId,
    topics: Sequence[AssetId],
    refused: dict[AssetId, str],
) -> None:
    await tx.bank.lock(workspace)
    entries = await tx.entries(LedgerKind.DESTRUCTION, workspace=workspace)
    await _gone(tx, entries, [h for h in await tx.bank.holdings(topics) if h.id not in refused])
    for entry in entries:
        if entry.asset in refused:
            await _mark(tx, [entry], EntryEvent.FAILED, refused[entry.asset])


async def _settle(tx: LedgerTransaction, workspace: WorkspaceId) -> int:
    """Commits whose old things are all gone are finished, those whose new things are all gone are
    rolled back.
    """
    await tx.bank.lock(workspace)
    left = await tx.entries(LedgerKind.DESTRUCTION, workspace=workspace)
    waited_for = {e.commit for e in left}
    for id_ in await tx.open_commits(workspace):
        row = await commit_row(tx, id_)
        if id_ in waited_for:
            continue
        if row.state is CommitState.SERVING:
            await apply_commit_event(tx, row, CommitEvent.DESTROYED)
        elif row.state is CommitState.UNDOING:
            await apply_commit_event(tx, row, CommitEvent.UNDONE)
    return len(left)
