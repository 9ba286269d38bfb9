"""Finish what crashes left behind: commits without a worker, open destructions, orphaned topics.

Reconcile decides from the ledgers. It touches a commit only when the commit's lease has expired and
the orchestrator, if it was handed to one, has no run of it that is queued or running. It therefore
rarely meets a living worker. When it does (a process that was paused for a minute), both run the
same steps, which are safe to run twice.

The work is a set of items: one per commit without a worker, per workspace with condemned assets,
per deleted workspace, the search for orphans, and the pruning of old rows. Items of one workspace
run in order, workspaces run side by side. An item that fails, for whatever reason, is logged,
counted and tried again with back-off, and stops no other item.

An orphan is a topic named like an asset that the bank does not account for: the work of a create
request that was delayed until after its commit was undone. It is deleted when it has been seen for
a grace period without interruption, so that no commit whose bookkeeping is late loses a topic.
Topics with an incarnation that this installation never issued are left alone, because another
installation may share the Kafka cluster.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, assert_never

from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.errors import ConnectionsError, SystemUnavailable
from fennel_core.ledger.backoff import BackOff
from fennel_core.ledger.branches import drop_closed_workspace
from fennel_core.ledger.commit_failure import fail_commit
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.destruction import destroy_condemned
from fennel_core.ledger.errors import CommitAbandoned
from fennel_core.ledger.lifecycle import BETWEEN_T1_AND_T2, CommitState
from fennel_core.ledger.pruning import prune_ledgers
from fennel_core.ledger.reconcile_action import (
    DestroyCondemned,
    NothingToDo,
    ServeIfReady,
    UndoCommit,
    reconcile_action,
)
from fennel_core.ledger.store import Commit, LedgerTransaction
from fennel_core.ledger.transitions import commit_row
from fennel_core.ledger.warming import serve_if_ready
from fennel_core.telemetry import metrics
from fennel_core.telemetry.logs import logger, redact_text
from fennel_core.vocab.ids import AssetId, CommitId, Millis, TopicName, WorkspaceId

log = logger(__name__)
ASSET_TOPIC: Final = re.compile(
    r"^[a-z0-9-]{1,63}\.(" + "|".join(AssetKind) + r")\.[0-9a-f]{32}\.[0-9]+$"
)
"""The form of a topic name that `blueprints.commit_plan.asset_id` makes."""
CONCURRENT_WORKSPACES: Final = 4
"""Workspaces that one pass works on at the same time; each uses one database connection."""
ERROR_CHARS: Final = 500
"""Longest part of a failure's message that is reported."""
_EXPIRED: Final = Millis(0)
"""A lease that expires immediately: reconcile has done its part and now waits for an engine or for
Kafka, so the next pass may take the commit again.
"""


class WorkKind(StrEnum):
    """What an item of work is about."""

    COMMIT = "commit"
    DESTRUCTION = "destruction"
    DELETED_WORKSPACE = "deleted-workspace"
    ORPHANS = "orphans"
    PRUNING = "pruning"


@dataclass(frozen=True, slots=True, order=True)
class WorkItem:
    """An item of work. `commit` is set for COMMIT; ORPHANS and PRUNING have no workspace."""

    kind: WorkKind
    workspace: WorkspaceId | None = None
    commit: CommitId | None = None

    @property
    def name(self) -> str:
        """Return the item's name in logs and in the status."""
        return f"{self.kind} {self.commit or self.workspace or ''}".rstrip()


ORPHANS: Final = WorkItem(WorkKind.ORPHANS)
PRUNING: Final = WorkItem(WorkKind.PRUNING)


@dataclass(frozen=True, slots=True)
class FailingItem:
    """An item whose last `attempts` attempts failed. `retry_seconds`: until the next one."""

    item: WorkItem
    attempts: int
    retry_seconds: float
    error: str


@dataclass(slots=True)
class ReconcileResult:
    """The result of one pass.

    `commits`: commits whose state changed. `open_entries`: destructions that still wait, for
    example until an engine has stopped a job. `orphans`: topics that were deleted. `pruned`: old
    rows that were removed. `failures`: the items that failed in this pass.
    """

    commits: list[CommitId] = field(default_factory=list)
    open_entries: int = 0
    orphans: tuple[TopicName, ...] = ()
    pruned: int = 0
    failures: list[FailingItem] = field(default_factory=list)

    @property
    def quiet(self) -> bool:
        """Whether the pass changed nothing and nothing is left to do."""
        changed = self.commits or self.orphans or self.pruned
        return not (changed or self.open_entries or self.failures)


IsRunning = Callable[[Commit], Awaitable[bool]]
"""Returns whether the orchestrator has a run of the commit, queued or running."""


async def nothing_runs(_: Commit) -> bool:
    """Answer for an installation whose orchestrator runs steps only in the process that waits."""
    return False


class Reconciler:
    """Runs passes and remembers which items fail. Any number of processes may run passes."""

    def __init__(self, context: LedgerContext, is_running: IsRunning = nothing_runs) -> None:
        self._context = context
        self._is_running = is_running
        self._backoff: BackOff[WorkItem] = BackOff()

    def failing(self) -> tuple[FailingItem, ...]:
        """Return the items whose last attempt failed, as of now."""
        now = self._context.now()
        return tuple(
            FailingItem(item, f.attempts, max(f.next_at - now, 0.0), f.error)
            for item, f in sorted(self._backoff.failures.items(), key=lambda pair: pair[0].name)
        )

    async def run_pass(self, *, orphans: bool = True, pruning: bool = True) -> ReconcileResult:
        """Try every item of work that is due.

        `orphans`: also search for orphaned topics. The search lists every topic of the cluster, so
        request it rarely. `pruning`: also remove old rows, which is never urgent. Raises
        ConnectionsError if the items cannot be read.
        """
        by_workspace = await self._items()
        items = [item for group in by_workspace for item in group]
        known = {*items, ORPHANS, PRUNING}
        self._backoff.keep_only(known)
        by_workspace += [[ORPHANS]] if orphans else []
        by_workspace += [[PRUNING]] if pruning else []
        result = ReconcileResult()
        free = asyncio.Semaphore(CONCURRENT_WORKSPACES)

        async def in_order(group: Sequence[WorkItem]) -> None:
            async with free:
                for item in group:
                    if self._backoff.is_due(item, self._context.now()):
                        await self._try(item, result)

        async with asyncio.TaskGroup() as tasks:
            for group in by_workspace:
                tasks.create_task(in_order(group))
        metrics.RECONCILE_FAILING.set(len(self._backoff.failures))
        return result

    async def _items(self) -> list[list[WorkItem]]:
        """Return the items of each workspace, in the order in which they must run."""
        ledger = self._context.ledger
        expired = await ledger.run(lambda tx: tx.expired_commits())
        closing = await ledger.run(lambda tx: tx.workspaces(closing=True))
        condemned = await ledger.run(lambda tx: tx.workspaces_with_condemned())
        retained = await ledger.run(lambda tx: tx.workspaces_with_expired())
        groups: dict[WorkspaceId, list[WorkItem]] = {}
        for commit in expired:
            item = WorkItem(WorkKind.COMMIT, commit.workspace, commit.id)
            groups.setdefault(commit.workspace, []).append(item)
        for kind, workspaces in (
            (WorkKind.DELETED_WORKSPACE, closing),
            (WorkKind.DESTRUCTION, sorted({*condemned, *retained})),
        ):
            for workspace in workspaces:
                groups.setdefault(workspace, []).append(WorkItem(kind, workspace))
        return [groups[workspace] for workspace in sorted(groups)]

    async def _try(self, item: WorkItem, result: ReconcileResult) -> None:
        """Work on one item; a failure is recorded and stays with the item."""
        try:
            await self._work(item, result)
        # The outermost loop over items: a poisoned one must not stop the others.
        except Exception as error:
            text = f"{type(error).__name__}: {redact_text(str(error))[:ERROR_CHARS]}"
            failure = self._backoff.failed(item, self._context.now(), text)
            retry_seconds = failure.next_at - self._context.now()
            result.failures.append(FailingItem(item, failure.attempts, retry_seconds, text))
            metrics.RECONCILE_FAILURES.labels(item.kind.value).inc()
            log.error(
                "reconcile item failed",
                item=item.name,
                workspace=item.workspace,
                attempts=failure.attempts,
                retry_seconds=retry_seconds,
                exc_info=error,
            )
            await self._give_back(item)
        else:
            self._backoff.succeeded(item)

    async def _give_back(self, item: WorkItem) -> None:
        """Release the lease of a commit that failed, so that it stays an item of every process."""
        if item.commit is not None:
            commit = item.commit
            with suppress(ConnectionsError):  # the lease expires by itself
                await self._context.ledger.run(lambda tx: tx.extend_lease(commit, _EXPIRED))

    async def _work(self, item: WorkItem, result: ReconcileResult) -> None:
        context = self._context
        match item.kind:
            case WorkKind.COMMIT:
                assert item.commit is not None
                if await _finish_commit(context, item.commit, self._is_running):
                    result.commits.append(item.commit)
            case WorkKind.DELETED_WORKSPACE:
                assert item.workspace is not None
                await drop_closed_workspace(context, item.workspace)
            case WorkKind.DESTRUCTION:
                assert item.workspace is not None
                result.open_entries += await destroy_condemned(context, item.workspace)
            case WorkKind.ORPHANS:
                result.orphans = await _delete_orphans(context)
            case WorkKind.PRUNING:
                result.pruned = await prune_ledgers(context)
            case unreachable:
                assert_never(unreachable)


async def reconcile(context: LedgerContext, *, orphans: bool = True) -> ReconcileResult:
    """Run one pass without earlier failures, for a caller that does not run passes regularly."""
    return await Reconciler(context).run_pass(orphans=orphans)


async def _finish_commit(context: LedgerContext, id_: CommitId, is_running: IsRunning) -> bool:
    """Do what a commit without a worker needs; return whether its state changed."""
    row = await context.ledger.run(lambda tx: tx.commit(id_))
    if row is None:
        return False
    before_t2 = row.state in (CommitState.RECEIVED, *BETWEEN_T1_AND_T2)
    if row.attempt and before_t2 and await is_running(row):
        # The run may wait for a free worker for longer than a lease, or be about to be retried.
        await context.ledger.run(lambda tx: tx.extend_lease(id_, context.timings.lease_ms))
        return False
    row = await context.ledger.run(lambda tx: _take_expired(tx, context, id_))
    if row is None:
        return False
    match reconcile_action(row.state):
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


async def _take_expired(
    tx: LedgerTransaction, context: LedgerContext, id_: CommitId
) -> Commit | None:
    taken = await tx.take_expired_lease(id_, context.timings.lease_ms)
    return await commit_row(tx, id_) if taken else None


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
