"""Finish what crashes left behind: commits without a worker, open destructions, orphaned topics.

Reconcile decides from the ledgers alone. It touches a commit only when the commit's lease has
expired, so it rarely meets a living worker. When it does (a process that was paused for a minute),
both run the same steps, which are safe to run twice.

An orphan is a topic named like an asset that the bank does not account for: the work of a create
request that was delayed until after its commit was undone. It is deleted when it has been seen for
a grace period without interruption, so that no commit whose bookkeeping is late loses a topic.
Topics with an incarnation that this installation never issued are left alone, because another
installation may share the Kafka cluster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, assert_never

from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ledger.branches import drop_closed_workspace
from fennel_core.ledger.commit_protocol import fail_commit
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.destruction import destroy_condemned
from fennel_core.ledger.errors import CommitAbandoned
from fennel_core.ledger.lifecycle import COMMIT, CommitEvent
from fennel_core.ledger.reconcile_action import (
    AbandonCommit,
    DestroyCondemned,
    NothingToDo,
    ServeIfReady,
    UndoCommit,
    reconcile_action,
)
from fennel_core.ledger.store import Commit, LedgerKind, LedgerTransaction
from fennel_core.ledger.transitions import apply_commit_event, commit_row, locked_commit_row
from fennel_core.ledger.warming import serve_if_ready
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import AssetId, CommitId, Millis, TopicName

log = logger(__name__)
ASSET_TOPIC: Final = re.compile(
    r"^[a-z0-9-]{1,63}\.(" + "|".join(AssetKind) + r")\.[0-9a-f]{32}\.[0-9]+$"
)
"""The form of a topic name that `blueprints.commit_plan.asset_id` makes."""
_EXPIRED: Final = Millis(0)
"""A lease that expires immediately: reconcile has done its part and now waits for an engine or for
Kafka, so the next pass may take the commit again.
"""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The result of one pass.

    `commits`: commits whose state changed. `open_entries`: destructions that still wait, for
    example until an engine has stopped a job. `orphans`: topics that were deleted.
    """

    commits: tuple[CommitId, ...]
    open_entries: int
    orphans: tuple[TopicName, ...]

    @property
    def quiet(self) -> bool:
        """Whether the pass changed nothing and nothing is left to do."""
        return not (self.commits or self.open_entries or self.orphans)


async def reconcile(context: LedgerContext, *, orphans: bool = True) -> ReconcileResult:
    """Run one pass. Any number of processes may run passes, every few seconds.

    `orphans`: also search for orphaned topics. The search lists every topic of the cluster, so
    request it rarely.
    """
    changed = [
        id_
        for id_ in await context.ledger.run(lambda tx: tx.open_commits())
        if await _finish_commit(context, id_)
    ]
    for workspace in await context.ledger.run(lambda tx: tx.workspaces(closing=True)):
        await drop_closed_workspace(context, workspace)
    open_entries = 0
    entries = await context.ledger.run(lambda tx: tx.entries(LedgerKind.DESTRUCTION))
    for workspace in sorted({e.workspace for e in entries}):
        open_entries += await destroy_condemned(context, workspace)
    deleted = await _delete_orphans(context) if orphans else ()
    return ReconcileResult(tuple(changed), open_entries, deleted)


async def _finish_commit(context: LedgerContext, id_: CommitId) -> bool:
    """Do what a commit without a worker needs; return whether its state changed."""

    async def take_expired(tx: LedgerTransaction) -> Commit | None:
        taken = await tx.take_expired_lease(id_, context.timings.lease_ms)
        return await commit_row(tx, id_) if taken else None

    row = await context.ledger.run(take_expired)
    if row is None:
        return False
    match reconcile_action(row.state):
        case AbandonCommit():
            await context.ledger.run(lambda tx: _abandon(tx, id_))
        case UndoCommit():
            await fail_commit(context, id_, CommitAbandoned())
            await destroy_condemned(context, row.workspace)
        case ServeIfReady():
            await serve_if_ready(context, id_)
            await context.ledger.run(lambda tx: tx.extend_lease(id_, _EXPIRED))
        case DestroyCondemned():
            await destroy_condemned(context, row.workspace)
            await context.ledger.run(lambda tx: tx.extend_lease(id_, _EXPIRED))
        case NothingToDo():
            pass
        case unreachable:
            assert_never(unreachable)
    after = await context.ledger.run(lambda tx: tx.commit(id_))
    if after is None or after.state is row.state:
        return False
    log.info(
        "commit reconciled",
        commit=id_,
        workspace=row.workspace,
        branch=row.branch,
        before=str(row.state),
        after=str(after.state),
    )
    return True


async def _abandon(tx: LedgerTransaction, id_: CommitId) -> None:
    row = await locked_commit_row(tx, id_)
    error = CommitAbandoned()
    if COMMIT.allows(row.state, CommitEvent.ABANDON):
        await apply_commit_event(tx, row, CommitEvent.ABANDON, error=error)


async def _delete_orphans(context: LedgerContext) -> tuple[TopicName, ...]:
    try:
        names = await context.topics.names()
    except SystemUnavailable:
        return ()
    candidates = [AssetId(name) for name in names if ASSET_TOPIC.match(name)]

    async def expired_orphans(tx: LedgerTransaction) -> list[str]:
        unaccounted = await tx.unaccounted(candidates)
        return await tx.record_orphans(unaccounted, context.timings.orphan_grace_ms)

    orphans = [TopicName(name) for name in await context.ledger.run(expired_orphans)]
    if orphans:
        try:
            await context.topics.delete(orphans)
        except SystemUnavailable:
            return ()
    return tuple(orphans)
