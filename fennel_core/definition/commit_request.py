"""Store the request of a commit, once however often the client sends it.

A client that lost the response sends the same commit again. Two requests are the same if they have
the same digest and the branch is where it was for the first one: either still at the base of the
first commit (which is then running), or at the first commit itself (which then succeeded). The
digest alone would return an old commit when a user goes back to earlier definitions on purpose; a
digest with the base would treat a repeated request as new, because the first one moved the branch.

In a workspace that is older than retention (decision 0089) a repeated commit that allows data loss
is a new one: it confirms what the earlier one could not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass

from fennel_core.connectors.references import is_stored
from fennel_core.connectors.store import connectors_of
from fennel_core.definition.connector_errors import ConnectorRemoved
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.lifecycle import COMMITTED, UNDONE, CommitState
from fennel_core.ledger.store import Branch, Commit, CommitOptions, LedgerTransaction
from fennel_core.ledger.transitions import locked_branch
from fennel_core.vocab.ids import BranchName, CommitId, WorkspaceId
from fennel_core.wire.connectors import NamedReference


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A commit as a client requests it. `body`: the bytes of a SyncRequest."""

    workspace: WorkspaceId
    branch: BranchName
    body: bytes
    options: CommitOptions


def digest_of(request: CommitRequest, comparable: bytes) -> str:
    """Return a digest of everything in the request.

    `comparable` is the body without plain secrets (`sealed_request.py`): a digest of a secret would
    let a reader of the database test guesses.
    """
    options = json.dumps(
        [
            request.workspace,
            request.branch,
            request.options.incremental,
            request.options.backfill,
            request.options.allow_data_loss,
        ]
    )
    return hashlib.sha256(options.encode() + b"\0" + comparable).hexdigest()


def is_repetition(earlier: Commit, branch: Branch) -> bool:
    """Return whether a request with the digest of commit `earlier` repeats its request."""
    if earlier.state in UNDONE:
        return False
    if earlier.state in COMMITTED:
        return earlier.id == branch.target
    return earlier.base == branch.target


async def store_commit(
    context: LedgerContext,
    request: CommitRequest,
    new_id: CommitId,
    stored_body: bytes,
    digest: str,
    base: CommitId | None,
    connectors: Collection[NamedReference] = (),
) -> Commit:
    """Store the commit as `new_id`, or return the commit that the request repeats.

    `stored_body` is the body without plain secrets (`sealed_request.py`) and with the window
    specifications that the client's protocol drops (`window_specs.py`). `base` is the version
    that the body was validated against, which need not be the branch's version any more.
    `connectors`: the stored ones that it uses. From here on they are in use, so they are looked up
    under the lock that a removal takes. Raises WorkspaceNotFound, BranchNotFound and
    ConnectorRemoved.
    """

    async def store(tx: LedgerTransaction) -> Commit:
        branch = await locked_branch(tx, request.workspace, request.branch)
        earlier = await tx.same_commit(request.workspace, request.branch, digest)
        repeats = earlier is not None and is_repetition(earlier, branch)
        if earlier and repeats and not await _confirms_retention(context, tx, earlier):
            return earlier
        row = await tx.commit(new_id)
        if row is None:
            await _require_stored(tx, request.workspace, connectors)
            row = Commit(
                new_id,
                request.workspace,
                request.branch,
                CommitState.RECEIVED,
                digest,
                request.options,
                base,
            )
            await tx.add_commit(row, stored_body)
            await tx.extend_lease(new_id, context.timings.lease_ms)
        return row

    return await context.ledger.run(store)


async def _require_stored(
    tx: LedgerTransaction, workspace: WorkspaceId, references: Collection[NamedReference]
) -> None:
    """Return if connectors that were stored still are. Raises ConnectorRemoved."""
    if references:
        stored = connectors_of(await tx.connectors.of(workspace))
        if gone := [each for each in references if not is_stored(each, stored)]:
            raise ConnectorRemoved(gone)


async def _confirms_retention(
    context: LedgerContext, tx: LedgerTransaction, earlier: Commit
) -> bool:
    """Return whether a repetition of commit `earlier` lets old rows of its workspace leave."""
    return (
        context.history_retention
        and earlier.state in COMMITTED
        and earlier.options.allow_data_loss
        and await tx.keeps_old_rows(earlier.workspace)
    )
