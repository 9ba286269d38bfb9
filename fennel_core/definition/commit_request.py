"""Receiving a commit: stored before anything else happens, and once however often it is sent.

Theory. A client that lost the answer sends the same commit again. It is recognised by a digest of
everything it says, and of where it starts from: while the first one is under way or is what the
branch stands at, the second is the first. The digest without the base would bring a branch back to
a version it left on purpose; with the base alone, a repeated commit would be a new one, because the
first moved the branch. So equal means: same words, and the branch is where the first found it, or
where the first brought it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.lifecycle import COMMITTED, UNDONE, CommitState
from fennel_core.ledger.store import Branch, Commit, CommitOptions, LedgerTransaction
from fennel_core.ledger.transitions import locked_branch
from fennel_core.vocab.ids import BranchName, CommitId, WorkspaceId


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A commit as a client asks for it. `body`: the bytes of a SyncRequest."""

    workspace: WorkspaceId
    branch: BranchName
    body: bytes
    options: CommitOptions


def digest_of(request: CommitRequest) -> str:
    """What makes two requests the same, apart from where the branch is."""
    options = json.dumps(
        [request.workspace, request.branch, request.options.incremental, request.options.backfill]
    )
    return hashlib.sha256(options.encode() + b"\0" + request.body).hexdigest()


def is_repeated(same: Commit, branch: Branch) -> bool:
    """Is `same`, an earlier commit with the same words, what the client means?"""
    if same.state in UNDONE:
        return False
    return same.id == branch.target if same.state in COMMITTED else same.base == branch.target


async def store_commit(
    context: LedgerContext, request: CommitRequest, new_id: CommitId, stored: bytes
) -> Commit:
    """Store the commit as `new_id`, or find the one that it repeats. ApiError when workspace or
    branch are not there.

    `stored` is the body with the window specifications that the client dropped (`window_specs.py`).
    The digest is taken from the body as it was sent.
    """
    digest = digest_of(request)

    async def work(tx: LedgerTransaction) -> Commit:
        branch = await locked_branch(tx, request.workspace, request.branch)
        same = await tx.same_commit(request.workspace, request.branch, digest)
        if same is not None and is_repeated(same, branch):
            return same
        row = await tx.commit(new_id)
        if row is None:
            row = Commit(
                new_id,
                request.workspace,
                request.branch,
                CommitState.RECEIVED,
                digest,
                request.options,
                branch.target,
            )
            await tx.add_commit(row, stored)
            await tx.extend_lease(new_id, context.timings.lease_ms)
        return row

    return await context.ledger.run(work)
