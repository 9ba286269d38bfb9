"""End a commit that has not reached T2: reject it before T1, or undo what it has reserved.

After T2 there is no way back, so these functions change nothing then.
"""

from __future__ import annotations

from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.lifecycle import COMMIT, CommitEvent
from fennel_core.ledger.store import Commit, LedgerTransaction
from fennel_core.ledger.transitions import (
    apply_commit_event,
    commit_row,
    fail_locked_commit,
    locked_commit_row,
)
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import CommitId


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
