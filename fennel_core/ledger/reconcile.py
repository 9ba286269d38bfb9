"""Whatever a crash left, finished: commits whose worker is gone, ledgers with open entries,
workspaces to empty, strays.

Theory. Nothing here knows more than the ledgers say. A commit is touched only when its lease has
lapsed, so recovery and a living worker rarely meet; when they do (a process that was paused for a
minute), the steps are the same functions, safe to run twice. A stray is a topic named like one of
ours that the bank does not account for: a create that was paused and came back after its commit was
undone. It is destroyed when it has been seen without interruption for a grace period, so that
nothing is taken from a commit whose bookkeeping is late. Names that this installation never gave
out are left alone: somebody else may share the Kafka.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, assert_never

from fennel_core.blueprints.logical import AssetKind
from fennel_core.ledger.branches import drop_closed_workspace
from fennel_core.ledger.commit_protocol import (
    LedgerContext,
    apply_commit_event,
    commit_row,
    destroy_condemned,
    fail_commit,
    locked_commit_row,
    serve_if_ready,
)
from fennel_core.ledger.lifecycle import COMMIT, CommitEvent
from fennel_core.ledger.readiness import (
    AbandonCommit,
    DestroyCondemned,
    NothingToDo,
    ServeIfReady,
    UndoCommit,
    reconcile_action,
)
from fennel_core.ledger.store import Commit, LedgerKind, LedgerTransaction
from fennel_core.ledger.topics import Unreachable
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import AssetId, CommitId, Millis, TopicName

log = logger(__name__)
OURS: Final = re.compile(r"^[a-z0-9-]{1,63}\.(" + "|".join(AssetKind) + r")\.[0-9a-f]{32}\.[0-9]+$")
_AT_ONCE: Final = Millis(0)
"""A lease that lapses immediately: recovery has done its part for now and waits for others (an
engine, Kafka).
"""
ABANDONED: Final = ApiError(
    503,
    "commit-abandoned",
    "the commit was not finished because its server stopped; nothing was changed, commit again",
)


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """What one round did. `open_entries`: destructions that still wait, for instance for an engine
    to let go of a job.
    """

    commits: tuple[CommitId, ...]
    open_entries: int
    strays: tuple[TopicName, ...]

    @property
    def quiet(self) -> bool:
        return not (self.commits or self.open_entries or self.strays)


async def reconcile(context: LedgerContext, *, strays: bool = True) -> ReconcileResult:
    """One round. Run it every few seconds, in as many processes as you like; looking for `strays`
    lists every topic, so do it rarely.
    """
    touched = [
        id_
        for id_ in await context.ledger.run(lambda tx: tx.open_commits())
        if await _finish(context, id_)
    ]
    for workspace in await context.ledger.run(lambda tx: tx.workspaces(closing=True)):
        await drop_closed_workspace(context, workspace)
    left = 0
    for workspace in sorted(
        {
            e.workspace
            for e in await context.ledger.run(lambda tx: tx.entries(LedgerKind.DESTRUCTION))
        }
    ):
        left += await destroy_condemned(context, workspace)
    return ReconcileResult(tuple(touched), left, await _destroy_strays(context) if strays else ())


async def _finish(context: LedgerContext, id_: CommitId) -> bool:
    """Do what is owed to one commit if nobody else is at it; True when its state moved."""

    async def take(tx: LedgerTransaction) -> Commit | None:
        return (
            await commit_row(tx, id_)
            if await tx.take_lapsed(id_, context.timings.lease_ms)
            else None
        )

    row = await context.ledger.run(take)
    if row is None:
        return False
    match reconcile_action(row.state):
        case AbandonCommit():
            await context.ledger.run(lambda tx: _abandon(tx, id_))
        case UndoCommit():
            await fail_commit(context, id_, ABANDONED)
            await destroy_condemned(context, row.workspace)
        case ServeIfReady():
            await serve_if_ready(context, id_)
            await context.ledger.run(lambda tx: tx.lease(id_, _AT_ONCE))
        case DestroyCondemned():
            await destroy_condemned(context, row.workspace)
            await context.ledger.run(lambda tx: tx.lease(id_, _AT_ONCE))
        case NothingToDo():
            pass
        case unreachable:
            assert_never(unreachable)
    after = await context.ledger.run(lambda tx: tx.commit(id_))
    if after is None or after.state is row.state:
        return False
    log.info(
        "commit recovered",
        commit=id_,
        workspace=row.workspace,
        branch=row.branch,
        before=str(row.state),
        after=str(after.state),
    )
    return True


async def _abandon(tx: LedgerTransaction, id_: CommitId) -> None:
    row = await locked_commit_row(tx, id_)
    if COMMIT.allows(row.state, CommitEvent.ABANDON):
        await apply_commit_event(
            tx, row, CommitEvent.ABANDON, error=ABANDONED.text, code=ABANDONED.code
        )


async def _destroy_strays(context: LedgerContext) -> tuple[TopicName, ...]:
    try:
        ours = [AssetId(name) for name in await context.topics.names() if OURS.match(name)]
    except Unreachable:
        return ()

    async def judge(tx: LedgerTransaction) -> list[str]:
        return await tx.strays(await tx.unaccounted(ours), context.timings.stray_grace_ms)

    doomed = [TopicName(name) for name in await context.ledger.run(judge)]
    if doomed:
        try:
            await context.topics.delete(doomed)
        except Unreachable:
            return ()
    return tuple(doomed)
