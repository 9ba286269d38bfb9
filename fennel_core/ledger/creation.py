"""Create the topics of a commit's creation ledger, between T1 and T2.

Creating a topic cannot be part of a transaction, so it is idempotent and recorded only after it
happened. A topic may be shared with another commit that creates it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fennel_core.bank.store import Asset, AssetState
from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ledger.audit_log import AssetAction, log_steps
from fennel_core.ledger.commit_failure import fail_commit
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.errors import AssetNotCreated, KafkaUnavailable
from fennel_core.ledger.lifecycle import (
    UNDONE,
    AssetEvent,
    CommitEvent,
    CommitState,
    EntryEvent,
)
from fennel_core.ledger.store import Commit, LedgerKind, LedgerTransaction
from fennel_core.ledger.topics import TopicSpec
from fennel_core.ledger.transitions import (
    apply_asset_event,
    apply_commit_event,
    apply_entry_event,
    commit_row,
    fail_locked_commit,
    locked_commit_row,
    stored_error,
)
from fennel_core.vocab.ids import AssetId, CommitId, Millis, TopicName


async def create_assets(context: LedgerContext, id_: CommitId) -> Commit:
    """Create the topics of the creation ledger and mark each entry after its topic exists.

    Raises AssetNotCreated or KafkaUnavailable; the commit is then undoing.
    """
    reason = ""
    for attempt in range(context.timings.create_attempts):
        if attempt:
            await context.sleep(context.timings.retry_seconds * attempt)
        row, pending = await context.ledger.run(
            partial(_pending_assets, id_=id_, lease_ms=context.timings.lease_ms)
        )
        if row.state in UNDONE:
            raise stored_error(row)
        if row.state is not CommitState.RESERVED:
            return row
        topics = [a for a in pending if a.key.kind is not AssetKind.JOB]
        specs = [TopicSpec(TopicName(a.id), a.key.kind, a.blueprint.partitions) for a in topics]
        began = context.now()
        try:
            refusals = await context.topics.create(specs) if specs else {}
        except SystemUnavailable as unavailable:
            reason = str(unavailable)
            continue
        refused = {AssetId(name): str(text) for name, text in refusals.items()}
        took = context.now() - began
        row = await context.ledger.run(
            partial(_record_created, id_=id_, attempted=[a.id for a in pending], refused=refused)
        )
        log_steps(AssetAction.CREATE, topics, took, refused)
        if row.state in UNDONE:
            raise stored_error(row)
        return row
    error = KafkaUnavailable(
        f"Kafka could not create the topics now, so nothing changed: {reason}. "
        "Commit again when Kafka is available"
    )
    await fail_commit(context, id_, error)
    raise error


async def _pending_assets(
    tx: LedgerTransaction, id_: CommitId, lease_ms: Millis
) -> tuple[Commit, list[Asset]]:
    row = await locked_commit_row(tx, id_)
    await tx.extend_lease(id_, lease_ms)
    entries = (
        await tx.entries(LedgerKind.CREATION, commit=id_)
        if row.state is CommitState.RESERVED
        else []
    )
    return row, await tx.bank.assets(e.asset for e in entries)


async def _record_created(
    tx: LedgerTransaction,
    id_: CommitId,
    attempted: Sequence[AssetId],
    refused: dict[AssetId, str],
) -> Commit:
    """Record which assets exist now and which were refused; the commit is then created or undoing.

    A pending asset may be shared with another commit, which may have recorded it already: as
    failed, then it is lost for this commit too, or as created, then there is nothing to record.
    """
    row = await locked_commit_row(tx, id_)
    if row.state is not CommitState.RESERVED:
        return row
    holdings = await tx.bank.summaries(attempted)
    failed = {
        h.id: refused.get(h.id, "its creation failed in another commit")
        for h in holdings
        if h.state is AssetState.FAILED
    } | refused
    pending = [h for h in holdings if h.state is AssetState.PENDING]
    await apply_asset_event(tx, [h for h in pending if h.id not in failed], AssetEvent.CREATE_OK)
    await apply_asset_event(tx, [h for h in pending if h.id in refused], AssetEvent.CREATE_FAILED)
    entries = await tx.entries(LedgerKind.CREATION, commit=id_)
    created = set(attempted) - failed.keys()
    await apply_entry_event(tx, [e for e in entries if e.asset in created], EntryEvent.DONE)
    for entry in entries:
        if entry.asset in failed:
            await apply_entry_event(tx, [entry], EntryEvent.FAILED, failed[entry.asset])
    if failed:
        titles = {h.id: h.title for h in holdings}
        asset, reason = min(failed.items())
        text = f"`{titles[asset]}` could not be created ({asset}: {reason}); nothing changed"
        await fail_locked_commit(tx, row, AssetNotCreated(text))
    else:
        await apply_commit_event(tx, row, CommitEvent.CREATE_OK)
    return await commit_row(tx, id_)
