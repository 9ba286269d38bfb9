"""Work off the destruction ledger of a workspace, after condemning what was retained long enough.

Jobs are stopped first. A topic is deleted only when every condemned job that reads or writes it has
stopped, because a running job could still write to it; a job that does not stop keeps only its own
topics. A commit is settled when no destruction entry waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fennel_core.bank.store import Asset, AssetSummary
from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ledger.audit_log import AssetAction, log_steps
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.lifecycle import AssetEvent, CommitEvent, CommitState, EntryEvent
from fennel_core.ledger.store import LedgerEntry, LedgerKind, LedgerTransaction
from fennel_core.ledger.transitions import (
    apply_asset_event,
    apply_commit_event,
    apply_entry_event,
    expire_retained,
)
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import AssetId, JobId, Millis, TopicName, WorkspaceId

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class _Work:
    """What one pass found.

    `stopped`: jobs that were removed now. `topics`: those that may be deleted. `entries`: all open
    ones. `presumed_empty`: endpoints at the end of their period that must be counted first.
    """

    stopped: Sequence[AssetSummary]
    topics: Sequence[AssetSummary]
    entries: Sequence[LedgerEntry]
    presumed_empty: Sequence[Asset]


async def destroy_condemned(context: LedgerContext, workspace: WorkspaceId) -> int:
    """Run one pass over the workspace's destruction ledger and settle the commits it completes.

    Returns the number of entries that are still open.
    """
    began, quiet_ms = context.now(), context.timings.late_request_ms
    work = await context.ledger.run(lambda tx: _stop_jobs(tx, workspace, quiet_ms))
    log_steps(AssetAction.STOP, work.stopped, context.now() - began)
    if work.presumed_empty:
        await _check_presumed_empty(context, workspace, work.presumed_empty)
    topics, entries = work.topics, work.entries
    if topics:
        began = context.now()
        try:
            refusals = await context.topics.delete([TopicName(t.id) for t in topics])
        except SystemUnavailable as unavailable:
            reasons = {t.id: str(unavailable) for t in topics}
            log_steps(AssetAction.DESTROY, topics, context.now() - began, reasons)
            return len(entries)
        refused = {AssetId(name): str(text) for name, text in refusals.items()}
        took = context.now() - began
        ids = [t.id for t in topics]
        await context.ledger.run(lambda tx: _record_deleted(tx, workspace, ids, refused))
        log_steps(AssetAction.DESTROY, topics, took, refused)
    return await context.ledger.run(lambda tx: _settle_commits(tx, workspace))


async def _check_presumed_empty(
    context: LedgerContext, workspace: WorkspaceId, assets: Sequence[Asset]
) -> None:
    """Let endpoints expire that have no request at the end of their period; retain the others.

    The plan of the commit that dropped them saw none, but a request that was on its way then may
    have been accepted later. While Kafka is unavailable they do not expire. The next pass
    destroys what was found empty.
    """
    quiet_ms = context.timings.late_request_ms
    counted = {TopicName(a.id): a.blueprint.partitions for a in assets}
    try:
        counts = await context.topics.message_counts(counted)
    except SystemUnavailable as unavailable:
        log.warning("endpoints not counted", workspace=workspace, error=str(unavailable))
        return
    with_rows = [AssetId(topic) for topic in counted if counts.get(topic, 0)]
    empty = [AssetId(topic) for topic in counted if not counts.get(topic, 0)]

    async def record(tx: LedgerTransaction) -> None:
        await tx.bank.lock(workspace)
        # A commit may have revived one of them since.
        still = set(await tx.presumed_empty(workspace, quiet_ms))
        await tx.found_empty(still.intersection(empty))
        await tx.found_rows(still.intersection(with_rows))

    await context.ledger.run(record)


async def _stop_jobs(tx: LedgerTransaction, workspace: WorkspaceId, quiet_ms: Millis) -> _Work:
    """Ask engines to stop the condemned jobs and remove those that have stopped."""
    await tx.bank.lock(workspace)
    await expire_retained(tx, workspace)
    presumed_empty = await tx.bank.assets(await tx.presumed_empty(workspace, quiet_ms))
    entries = await tx.entries(LedgerKind.DESTRUCTION, workspace=workspace)
    if not entries:
        return _Work([], [], [], presumed_empty)
    holdings = await tx.bank.summaries(e.asset for e in entries)
    jobs = [h for h in holdings if h.key.kind is AssetKind.JOB]
    stopped: list[AssetSummary] = []
    if jobs:
        await tx.retire_jobs([JobId(h.id) for h in jobs])
        removed = set(await tx.remove_stopped_jobs([JobId(h.id) for h in jobs]))
        stopped = [h for h in jobs if JobId(h.id) in removed]
        await _record_destroyed(tx, entries, stopped)
    running = {JobId(h.id) for h in jobs} - {JobId(h.id) for h in stopped}
    in_use = await tx.topics_of_jobs(running)
    topics = [h for h in holdings if h.key.kind is not AssetKind.JOB and h.id not in in_use]
    return _Work(stopped, topics, entries, presumed_empty)


async def _record_destroyed(
    tx: LedgerTransaction, entries: Sequence[LedgerEntry], holdings: Sequence[AssetSummary]
) -> None:
    ids = {h.id for h in holdings}
    await apply_entry_event(tx, [e for e in entries if e.asset in ids], EntryEvent.DONE)
    await apply_asset_event(tx, holdings, AssetEvent.DESTROYED)


async def _record_deleted(
    tx: LedgerTransaction,
    workspace: WorkspaceId,
    topics: Sequence[AssetId],
    refused: dict[AssetId, str],
) -> None:
    await tx.bank.lock(workspace)
    entries = await tx.entries(LedgerKind.DESTRUCTION, workspace=workspace)
    deleted = [h for h in await tx.bank.summaries(topics) if h.id not in refused]
    await _record_destroyed(tx, entries, deleted)
    for entry in entries:
        if entry.asset in refused:
            await apply_entry_event(tx, [entry], EntryEvent.FAILED, refused[entry.asset])


async def _settle_commits(tx: LedgerTransaction, workspace: WorkspaceId) -> int:
    """Finish or roll back the commits that no open entry belongs to; return the open entries."""
    await tx.bank.lock(workspace)
    entries = await tx.entries(LedgerKind.DESTRUCTION, workspace=workspace)
    waiting = {e.commit for e in entries}
    for row in await tx.open_commit_rows(workspace):
        if row.id in waiting:
            continue
        if row.state is CommitState.SERVING:
            await apply_commit_event(tx, row, CommitEvent.DESTROYED)
        elif row.state is CommitState.UNDOING:
            await apply_commit_event(tx, row, CommitEvent.UNDONE)
    return len(entries)
