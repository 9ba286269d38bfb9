"""Create the topic of a workspace's query log.

The query log belongs to the workspace: no version refers to its topic, a commit neither creates nor
releases it, and it is condemned with the workspace (`branches.drop_closed_workspace`). It is made
when the first query is logged, so workspaces that log none have no topic for it.

As in `creation.py`, the asset is in the bank before the topic is created, and live after it
exists. A crash in between leaves a pending asset, which the next call creates.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fennel_core.bank.store import ALIVE_STATES, Asset, AssetState
from fennel_core.blueprints import identity
from fennel_core.blueprints.asset_names import asset_id
from fennel_core.blueprints.logical import LogicalTopic
from fennel_core.ledger.context import LedgerContext
from fennel_core.ledger.errors import QueryLogNotCreated
from fennel_core.ledger.lifecycle import AssetEvent
from fennel_core.ledger.store import LedgerTransaction
from fennel_core.ledger.topics import TopicSpec
from fennel_core.ledger.transitions import apply_asset_event, lock_open_workspace
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import TopicName, WorkspaceId

TITLE: Final = "the workspace"
log = logger(__name__)


async def ensure_query_log(context: LedgerContext, workspace: WorkspaceId) -> TopicName | None:
    """Return the topic of the workspace's query log, created if need be.

    None before the first commit of the workspace: it has no features to log. Raises
    WorkspaceNotFound, QueryLogNotCreated, and SystemUnavailable.
    """
    asset = await context.ledger.run(partial(_added, workspace=workspace))
    if asset is None:
        return None
    topic = TopicName(asset.id)
    if asset.state is AssetState.LIVE:
        return topic
    spec = TopicSpec(topic, asset.key.kind, asset.blueprint.partitions)
    refused = await context.topics.create([spec])
    if topic in refused:
        raise QueryLogNotCreated(workspace, refused[topic])
    if not await context.ledger.run(partial(_made_live, workspace=workspace, asset=asset)):
        raise QueryLogNotCreated(workspace, "the workspace was deleted")
    log.info("query log created", workspace=workspace, topic=topic)
    return topic


async def _added(tx: LedgerTransaction, workspace: WorkspaceId) -> Asset | None:
    """Return the alive asset of the query log; a new, pending one if there is none."""
    await lock_open_workspace(tx, workspace)
    key = identity.query_log()
    alive = await tx.bank.alive(workspace, [key])
    if alive:
        (found,) = await tx.bank.assets(alive.values())
        return found
    partitions = await tx.partition_count(workspace)
    if partitions is None:
        return None
    incarnation = await tx.bank.next_incarnation()
    added = Asset(
        asset_id(workspace, key, incarnation),
        workspace,
        incarnation,
        AssetState.PENDING,
        LogicalTopic(key, partitions, TITLE, ""),
    )
    await tx.bank.add([added])
    return added


async def _made_live(tx: LedgerTransaction, workspace: WorkspaceId, asset: Asset) -> bool:
    """Record that the topic exists; False if the asset was condemned in the meantime."""
    await tx.bank.lock(workspace)
    for event in (AssetEvent.CREATE_OK, AssetEvent.SWITCHED):
        held = await tx.bank.summaries([asset.id])
        if not held or held[0].state not in ALIVE_STATES:
            return False
        if held[0].state is not AssetState.LIVE:
            await apply_asset_event(tx, held, event)
    return True
