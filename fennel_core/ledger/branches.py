"""Branches and workspaces as the ledgers see them: holders of assets that come and go.

Theory. A clone is a branch that points at the same versions and holds the same assets; from then on
its commits are its own. Deleting a branch, or a whole workspace, is letting go: what nobody else
holds goes through the destruction ledger like the leavings of a commit.
"""

from __future__ import annotations

from collections.abc import Iterable

from fennel_core.ledger.commit_protocol import (
    LedgerContext,
    apply_commit_event,
    condemn,
    destroy_condemned,
    fail_commit_in,
    locked_commit_row,
    supersede_stale_commits,
)
from fennel_core.ledger.lifecycle import COMMIT, CommitEvent
from fennel_core.ledger.store import Branch, LedgerKind, LedgerTransaction
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import MAIN_BRANCH, AssetId, BranchName, CommitId, WorkspaceId


async def init_branch(context: LedgerContext, workspace: WorkspaceId, name: BranchName) -> None:
    """A new empty branch; ApiError when the name is taken."""

    async def work(tx: LedgerTransaction) -> None:
        await _open(tx, workspace)
        if not await tx.add_branch(Branch(workspace, name, None, None)):
            raise _taken(name)

    await context.ledger.run(work)


async def clone_branch(
    context: LedgerContext, workspace: WorkspaceId, name: BranchName, source: BranchName
) -> None:
    """A new branch with the definitions and the data of `source`; ApiError when the name is taken
    or the source is not there.
    """

    async def work(tx: LedgerTransaction) -> None:
        await _open(tx, workspace)
        original = await tx.branch(workspace, source)
        if original is None:
            raise ApiError(
                500, "branch-not-found", f"can not clone from branch `{source}`: does not exist"
            )
        if not await tx.add_branch(Branch(workspace, name, original.target, original.serving)):
            raise _taken(name)
        for version in {original.target, original.serving} - {None}:
            assert version is not None
            await tx.bank.refer(version, name, await tx.bank.references(workspace, source, version))

    await context.ledger.run(work)


async def delete_branch(context: LedgerContext, workspace: WorkspaceId, name: BranchName) -> None:
    """Let go of everything the branch holds, and of the branch. ApiError for `main` and for a
    branch that is not there.
    """
    if name == MAIN_BRANCH:
        raise ApiError(400, "branch-main", "Cannot delete the main branch.")

    async def work(tx: LedgerTransaction) -> None:
        await _open(tx, workspace)
        if await tx.branch(workspace, name) is None:
            raise ApiError(500, "branch-not-found", f"branch `{name}` does not exist")
        await _drop(tx, workspace, [name], None)

    await context.ledger.run(work)


async def drop_closed_workspace(context: LedgerContext, workspace: WorkspaceId) -> bool:
    """One round of taking a closed workspace apart; True when it is gone."""

    async def let_go(tx: LedgerTransaction) -> None:
        if await tx.bank.lock(workspace):
            return
        for id_ in await tx.open_commits(workspace):
            await _give_up(tx, id_)
        await _drop(tx, workspace, [b.name for b in await tx.branches(workspace)], None)

    async def remove(tx: LedgerTransaction) -> bool:
        if await tx.bank.lock(workspace):
            return False
        waiting = await tx.entries(
            LedgerKind.DESTRUCTION, workspace=workspace
        ) or await tx.open_commits(workspace)
        if waiting or await tx.registered(workspace):
            return False
        await tx.remove_workspace(workspace)
        return True

    await context.ledger.run(let_go)
    await destroy_condemned(context, workspace)
    return await context.ledger.run(remove)


async def _give_up(tx: LedgerTransaction, id_: CommitId) -> None:
    row = await locked_commit_row(tx, id_)
    closed = ApiError(
        404,
        "workspace-not-found",
        f"workspace `{row.workspace}` was deleted while the commit was under way",
    )
    if COMMIT.allows(row.state, CommitEvent.ABANDON):
        await apply_commit_event(tx, row, CommitEvent.ABANDON, error=closed.text, code=closed.code)
    elif COMMIT.allows(row.state, CommitEvent.FAIL):
        await fail_commit_in(tx, row, closed)


async def _drop(
    tx: LedgerTransaction,
    workspace: WorkspaceId,
    names: Iterable[BranchName],
    commit: CommitId | None,
) -> None:
    """The caller has the workspace's lock."""
    let_go: list[AssetId] = []
    for name in names:
        let_go += await tx.bank.unrefer(workspace, name)
        await tx.remove_branch(workspace, name)
    await supersede_stale_commits(tx, workspace)
    await condemn(tx, workspace, commit, let_go)


async def _open(tx: LedgerTransaction, workspace: WorkspaceId) -> None:
    if not await tx.bank.lock(workspace):
        raise ApiError(
            404,
            "workspace-not-found",
            f"workspace `{workspace}` does not exist or is being deleted",
        )


def _taken(name: BranchName) -> ApiError:
    return ApiError(500, "branch-exists", f"can not create branch `{name}`: already exists")
