"""Create, clone and delete branches, and empty deleted workspaces.

A branch holds assets through references. A clone points at the same versions as its source and
holds the same assets; its later commits are its own. Deleting a branch, or a whole workspace, drops
its references: assets that nothing else holds go through the destruction ledger, as the superseded
assets of a commit do.
"""

from __future__ import annotations

from collections.abc import Iterable

from fennel_core.blueprints import identity
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.destruction import destroy_condemned
from fennel_core.ledger.errors import (
    BranchExists,
    BranchNotFound,
    CloneSourceNotFound,
    MainBranchNotDeletable,
    WorkspaceDeleted,
)
from fennel_core.ledger.lifecycle import COMMIT, CommitEvent
from fennel_core.ledger.store import Branch, LedgerKind, LedgerTransaction
from fennel_core.ledger.transitions import (
    apply_commit_event,
    expire_retained,
    fail_locked_commit,
    lock_open_workspace,
    locked_commit_row,
    retain_or_condemn,
    supersede_stale_commits,
)
from fennel_core.vocab.ids import MAIN_BRANCH, AssetId, BranchName, CommitId, WorkspaceId


async def init_branch(context: LedgerContext, workspace: WorkspaceId, name: BranchName) -> None:
    """Create an empty branch. Raises WorkspaceNotFound and BranchExists."""

    async def create(tx: LedgerTransaction) -> None:
        await lock_open_workspace(tx, workspace)
        if not await tx.add_branch(Branch(workspace, name, None, None)):
            raise BranchExists(name)

    await context.ledger.run(create)


async def clone_branch(
    context: LedgerContext, workspace: WorkspaceId, name: BranchName, source: BranchName
) -> None:
    """Create a branch with the definitions and the data of `source`.

    Raises WorkspaceNotFound, CloneSourceNotFound and BranchExists.
    """

    async def clone(tx: LedgerTransaction) -> None:
        await lock_open_workspace(tx, workspace)
        original = await tx.branch(workspace, source)
        if original is None:
            raise CloneSourceNotFound(source)
        if not await tx.add_branch(Branch(workspace, name, original.target, original.serving)):
            raise BranchExists(name)
        for version in {original.target, original.serving} - {None}:
            assert version is not None
            await tx.bank.add_references(
                version, name, await tx.bank.references(workspace, source, version)
            )

    await context.ledger.run(clone)


async def delete_branch(context: LedgerContext, workspace: WorkspaceId, name: BranchName) -> None:
    """Delete a branch and release everything it holds.

    Raises MainBranchNotDeletable, WorkspaceNotFound and BranchNotFound.
    """
    if name == MAIN_BRANCH:
        raise MainBranchNotDeletable

    async def delete(tx: LedgerTransaction) -> None:
        await lock_open_workspace(tx, workspace)
        if await tx.branch(workspace, name) is None:
            raise BranchNotFound(name)
        await _remove_branches(tx, workspace, [name])

    await context.ledger.run(delete)


async def drop_closed_workspace(context: LedgerContext, workspace: WorkspaceId) -> bool:
    """Run one pass of removing a closed workspace; return True when it is gone."""

    async def release(tx: LedgerTransaction) -> None:
        if await tx.bank.lock(workspace):
            return
        for id_ in await tx.open_commits(workspace):
            await _stop_commit(tx, id_)
        await _remove_branches(tx, workspace, [b.name for b in await tx.branches(workspace)])
        own = await tx.bank.alive(workspace, [identity.query_log()])
        await retain_or_condemn(tx, workspace, None, own.values())
        await expire_retained(tx, workspace, all_of_them=True)

    async def remove(tx: LedgerTransaction) -> bool:
        if await tx.bank.lock(workspace):
            return False
        if await tx.entries(LedgerKind.DESTRUCTION, workspace=workspace):
            return False
        if await tx.open_commits(workspace) or await tx.registered_jobs(workspace):
            return False
        await tx.remove_workspace(workspace)
        return True

    await context.ledger.run(release)
    await destroy_condemned(context, workspace)
    return await context.ledger.run(remove)


async def _stop_commit(tx: LedgerTransaction, id_: CommitId) -> None:
    row = await locked_commit_row(tx, id_)
    error = WorkspaceDeleted(row.workspace)
    if COMMIT.allows(row.state, CommitEvent.REJECT):
        await apply_commit_event(tx, row, CommitEvent.REJECT, error=error)
    elif COMMIT.allows(row.state, CommitEvent.FAIL):
        await fail_locked_commit(tx, row, error)


async def _remove_branches(
    tx: LedgerTransaction, workspace: WorkspaceId, names: Iterable[BranchName]
) -> None:
    """Remove branches and release what only they held. The caller holds the workspace's lock."""
    released: list[AssetId] = []
    for name in names:
        released += await tx.bank.remove_references(workspace, name)
        await tx.remove_branch(workspace, name)
    await supersede_stale_commits(tx, workspace)
    await retain_or_condemn(tx, workspace, None, released)
