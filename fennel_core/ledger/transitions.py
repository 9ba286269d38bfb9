"""Change commits, ledger entries and assets along the life-cycle tables, inside a transaction.

These are the shared parts of the steps in `reservation.py` up to `destruction.py` and
`branches.py`. Every function that changes what is held requires the workspace's lock, which
`locked_commit_row` and `locked_branch` take.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fennel_core.bank.store import AssetState, AssetSummary
from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.api_errors import WorkspaceNotFound
from fennel_core.ledger.errors import BranchNotFound, CommitNotFound, CommitUndone
from fennel_core.ledger.lifecycle import (
    ASSET,
    COMMIT,
    ENTRY,
    AssetEvent,
    CommitEvent,
    CommitState,
    EntryEvent,
)
from fennel_core.ledger.store import (
    Branch,
    Commit,
    CommitError,
    LedgerEntry,
    LedgerKind,
    LedgerTransaction,
)
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import AssetId, BranchName, CommitId, WorkspaceId


async def commit_row(tx: LedgerTransaction, id_: CommitId) -> Commit:
    """Return the commit's row. Raises CommitNotFound."""
    row = await tx.commit(id_)
    if row is None:
        raise CommitNotFound(id_)
    return row


async def locked_commit_row(tx: LedgerTransaction, id_: CommitId) -> Commit:
    """Lock the commit's workspace and return the commit's row.

    No other transaction changes the row, or what is held in the workspace, until this one ends.
    """
    await tx.bank.lock((await commit_row(tx, id_)).workspace)
    return await commit_row(tx, id_)


async def locked_branch(tx: LedgerTransaction, workspace: WorkspaceId, name: BranchName) -> Branch:
    """Lock the workspace and return the branch. Raises WorkspaceNotFound and BranchNotFound."""
    await lock_open_workspace(tx, workspace)
    branch = await tx.branch(workspace, name)
    if branch is None:
        raise BranchNotFound(name)
    return branch


async def open_branch(tx: LedgerTransaction, workspace: WorkspaceId, name: BranchName) -> Branch:
    """Return the branch as it is now, without a lock.

    Raises WorkspaceNotFound and BranchNotFound.
    """
    if not await tx.bank.is_open(workspace):
        raise WorkspaceNotFound(workspace)
    branch = await tx.branch(workspace, name)
    if branch is None:
        raise BranchNotFound(name)
    return branch


async def lock_open_workspace(tx: LedgerTransaction, workspace: WorkspaceId) -> None:
    """Lock the workspace. Raises WorkspaceNotFound if it does not exist or is being deleted."""
    if not await tx.bank.lock(workspace):
        raise WorkspaceNotFound(workspace)


def stored_error(row: Commit) -> ApiError:
    """Return the error that is stored in the row of a commit that failed before T2."""
    if row.error is None:
        return CommitUndone(row.id)
    return ApiError(row.error.status, row.error.code, row.error.text, row.error.problems)


async def apply_commit_event(
    tx: LedgerTransaction,
    row: Commit,
    event: CommitEvent,
    *,
    error: ApiError | None = None,
) -> None:
    """Move the commit to the state after `event`, with an error if it failed."""
    state = COMMIT.next_state(row.state, event)
    if state is not row.state:
        stored = (
            None
            if error is None
            else CommitError(error.status, error.code, error.text, tuple(error.problems))
        )
        await tx.set_state(row.id, state, stored)


async def apply_asset_event(
    tx: LedgerTransaction, holdings: Iterable[AssetSummary], event: AssetEvent
) -> None:
    """Move each asset to its state after `event`, with one statement per resulting state."""
    by_state: dict[AssetState, list[AssetId]] = {}
    for holding in holdings:
        state = ASSET.next_state(holding.state, event)
        if state is not holding.state:
            by_state.setdefault(state, []).append(holding.id)
    for state, ids in by_state.items():
        await tx.bank.set_state(ids, state)


async def apply_entry_event(
    tx: LedgerTransaction,
    entries: Iterable[LedgerEntry],
    event: EntryEvent,
    error: str | None = None,
) -> None:
    """Move each entry to its state after `event`, with one statement per resulting state."""
    by_state: dict[str, list[LedgerEntry]] = {}
    for entry in entries:
        by_state.setdefault(ENTRY.next_state(entry.state, event), []).append(entry)
    for same in by_state.values():
        state = ENTRY.next_state(same[0].state, event)
        await tx.mark_entries([e.id for e in same], state, error)


async def retain_or_condemn(
    tx: LedgerTransaction,
    workspace: WorkspaceId,
    commit: CommitId | None,
    released: Iterable[AssetId],
) -> None:
    """Retain those of `released` that are no longer held, or add them to the destruction ledger.

    What was in use is retained for the grace period, what never was is condemned. Endpoints whose
    loss is not confirmed are retained without a grace period, too: those that the plan knew to be
    empty until they were counted again, the others until a loss is confirmed. The caller holds the
    workspace's lock. `commit` None: a branch was deleted.
    """
    unheld = await tx.bank.summaries(await tx.bank.unheld(released))
    live = [h for h in unheld if h.state is AssetState.LIVE]
    unused = (AssetState.PENDING, AssetState.CREATED, AssetState.FAILED)
    condemned = [h for h in unheld if h.state in unused]
    await apply_asset_event(tx, condemned, AssetEvent.UNDONE)
    endpoints = await _endpoints_to_keep(tx, commit, live)
    retained = [h for h in live if tx.destroy_grace_ms or h.id in endpoints]
    if retained:
        await apply_asset_event(tx, retained, AssetEvent.RETAINED)
        empty = await _planned_without_rows(tx, commit)
        await tx.retain(workspace, [h.id for h in retained], endpoints - empty, endpoints & empty)
    released_now = [h for h in live if h not in retained]
    await apply_asset_event(tx, released_now, AssetEvent.RELEASED)
    condemned += released_now
    if condemned:
        await tx.add_entries(LedgerKind.DESTRUCTION, workspace, commit, [h.id for h in condemned])


async def _endpoints_to_keep(
    tx: LedgerTransaction, commit: CommitId | None, released: Collection[AssetSummary]
) -> frozenset[AssetId]:
    """Return the endpoints whose requests may not be destroyed: their loss is not confirmed.

    With a stream's requests stay its positions. To delete a branch is a confirmation.
    """
    if commit is None or not released or (await commit_row(tx, commit)).options.allow_data_loss:
        return frozenset()
    kinds = (AssetKind.RAW, AssetKind.POSITIONS)
    return frozenset(h.id for h in released if h.key.kind in kinds)


async def _planned_without_rows(
    tx: LedgerTransaction, commit: CommitId | None
) -> frozenset[AssetId]:
    """Return what the plan of a commit knew to be empty.

    A request may have been accepted since, so this is checked again before anything is destroyed.
    """
    plan = None if commit is None else await tx.plan(commit)
    entries = plan.entries if plan else ()
    return frozenset(e.asset for e in entries if e.asset and e.rows_lost and not e.loses_rows)


async def expire_retained(
    tx: LedgerTransaction, workspace: WorkspaceId, *, all_of_them: bool = False
) -> None:
    """Condemn the retained assets whose grace period is over. The caller holds the lock.

    `all_of_them`: also the others, for example because the workspace is deleted.
    """
    expired = await tx.expired(workspace, all_of_them=all_of_them)
    await condemn_retained(tx, workspace, expired)


async def condemn_retained(
    tx: LedgerTransaction, workspace: WorkspaceId, ids: Iterable[AssetId]
) -> None:
    """Condemn retained assets that nothing holds. The caller holds the lock."""
    over = await tx.bank.summaries(ids)
    if over:
        await apply_asset_event(tx, over, AssetEvent.EXPIRED)
        await tx.add_entries(LedgerKind.DESTRUCTION, workspace, None, [h.id for h in over])


async def fail_locked_commit(tx: LedgerTransaction, row: Commit, error: ApiError) -> None:
    """Fail a commit before T2, in a transaction that holds the workspace's lock.

    Its reservations are dropped, and assets that are no longer held are condemned.
    """
    await apply_commit_event(tx, row, CommitEvent.FAIL, error=error)
    entries = await tx.entries(LedgerKind.CREATION, commit=row.id, only_open=False)
    await apply_entry_event(tx, entries, EntryEvent.CANCELLED)
    await retain_or_condemn(tx, row.workspace, row.id, await tx.bank.release_reservations(row.id))


async def supersede_stale_commits(tx: LedgerTransaction, workspace: WorkspaceId) -> None:
    """Supersede warming commits that are no longer the target of a branch.

    The caller holds the workspace's lock.
    """
    targets = {b.target for b in await tx.branches(workspace)}
    for row in await tx.open_commit_rows(workspace):
        if row.state is CommitState.WARMING and row.id not in targets:
            await apply_commit_event(tx, row, CommitEvent.SUPERSEDE)
