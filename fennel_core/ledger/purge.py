"""End the grace period of retained assets now, for an operator who needs the space.

Purged assets are condemned and destroyed through the same ledger as those whose period is over. The
requests of an endpoint cannot be computed from anything else, so they are purged only if their loss
is confirmed, or if it is known that there are none. That is not known for a while after the commit
that dropped the endpoint: a request that was on its way then may still be accepted.
"""

from __future__ import annotations

from collections.abc import Collection

from fennel_core.blueprints.logical import AssetKind
from fennel_core.blueprints.plan_entries import RowAmount
from fennel_core.blueprints.plan_text import amount_text, duration_text
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.errors import DataLossNotConfirmed
from fennel_core.ledger.store import LedgerTransaction, ReleasedAsset
from fennel_core.ledger.transitions import condemn_retained, lock_open_workspace
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import AssetId, TopicName, WorkspaceId

log = logger(__name__)


async def purge_retained(
    context: LedgerContext,
    workspace: WorkspaceId,
    ids: Collection[AssetId],
    *,
    allow_data_loss: bool,
) -> list[AssetId]:
    """Condemn those of `ids` that are retained and that no commit is reviving; return them.

    Raises WorkspaceNotFound, and DataLossNotConfirmed without `allow_data_loss` if requests of an
    endpoint would be lost; nothing has changed then.
    """
    if not allow_data_loss:
        lost = await _lost_requests(context, workspace, ids)
        if lost:
            what = f"the purge of workspace `{workspace}`"
            raise DataLossNotConfirmed(lost, what, "leave them retained")

    async def condemn(tx: LedgerTransaction) -> list[AssetId]:
        await lock_open_workspace(tx, workspace)
        unheld = await tx.expired(workspace, all_of_them=True)
        purged = sorted(set(unheld) & set(ids))
        await condemn_retained(tx, workspace, purged)
        return purged

    purged = await context.ledger.run(condemn)
    log.info("purged", workspace=workspace, assets=purged)
    return purged


async def _lost_requests(
    context: LedgerContext, workspace: WorkspaceId, ids: Collection[AssetId]
) -> list[str]:
    """Return a line for each endpoint of which it is not certain that it received nothing."""
    retained = await context.ledger.run(lambda tx: tx.released(workspace))
    endpoints = [a for a in retained if a.kind is AssetKind.RAW and a.id in ids]
    if not endpoints:
        return []
    quiet_ms = context.timings.late_request_ms
    recent = await context.ledger.run(lambda tx: tx.released_within(workspace, quiet_ms))
    partitions = await context.ledger.run(lambda tx: tx.partition_count(workspace))
    assert partitions is not None, "a workspace with assets has a number of partitions"
    try:
        counts = await context.topics.message_counts(
            {TopicName(a.id): partitions for a in endpoints}
        )
    except SystemUnavailable as unavailable:
        log.warning("topics could not be measured", error=str(unavailable))
        counts = {}
    return [
        _line(a, counts.get(TopicName(a.id)), None if a.id not in recent else quiet_ms)
        for a in endpoints
        if a.id in recent or counts.get(TopicName(a.id)) != 0
    ]


def _line(asset: ReleasedAsset, messages: int | None, quiet_ms: int | None) -> str:
    """Return what is lost with an endpoint. `quiet_ms`: given if requests may still arrive."""
    lost = "none that has arrived" if messages == 0 else amount_text(RowAmount(messages))
    if quiet_ms is not None:
        lost += (
            ", and those of requests that were under way when it was released; they may arrive "
            f"until {duration_text(quiet_ms)} after that"
        )
    return f"- purge endpoint of {asset.title} (rows lost: {lost})"
