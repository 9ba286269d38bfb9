"""Cache the routing of each workspace: which datasets an endpoint feeds, over all branches.

`log` writes to every branch that has a source on the endpoint. Equal definitions of several
branches have one identity and mostly one topic, so they are written once. A branch that added or
removed sources may have another topic for the same source, which is written, too. The cache may be
stale for as long as a notification takes; the stamp of each transaction carries the version that
was current when it was taken (`store.TransactionStart.version`), and rows prepared under an older
version are prepared again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from fennel_core.blueprints.spec import Catalog, DatasetView, SourceBinding
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.ingest.store import Branches, CatalogDirectory, CatalogVersion
from fennel_core.vocab.ids import (
    BranchName,
    CommitId,
    DatasetName,
    Identity,
    TopicName,
    WorkspaceId,
)

WORKSPACES_KEPT = 1000
Endpoint = tuple[str, str]
"""(webhook, endpoint)."""


@dataclass(frozen=True, slots=True)
class EndpointTarget:
    """One source dataset that an endpoint feeds, and the branches that have it."""

    binding: SourceBinding
    partitions: int
    branches: frozenset[BranchName]
    erased: tuple[ErasedKeys, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """The targets of each endpoint of a workspace, its datasets, and the targets of each external
    stream that is read, by its raw topic.
    """

    version: CatalogVersion
    targets: Mapping[Endpoint, tuple[EndpointTarget, ...]]
    datasets: Mapping[tuple[BranchName, DatasetName], DatasetView]
    feeds: Mapping[TopicName, tuple[EndpointTarget, ...]]
    sinks: frozenset[TopicName] = frozenset()
    """The sinks that a branch has."""


def routing_table(branches: Branches) -> RoutingTable:
    """Build the routing table of a workspace; equal sources of one topic share a target.

    Targets are in the order of branches and of their catalogs.
    """
    found: dict[Endpoint, dict[tuple[Identity, TopicName], EndpointTarget]] = {}
    read: dict[TopicName, dict[tuple[Identity, TopicName], EndpointTarget]] = {}
    for branch in branches.branches:
        for binding in branch.catalog.sources:
            targets = (
                found.setdefault((binding.webhook, binding.endpoint), {})
                if binding.positions is None
                else read.setdefault(binding.raw_topic, {})
            )
            feed = (binding.identity, binding.topic)
            known = targets.get(feed)
            names = (
                known.branches | {branch.branch}
                if known is not None
                else frozenset({branch.branch})
            )
            erased = tuple(branches.erased.get(binding.dataset, ()))
            targets[feed] = EndpointTarget(
                known.binding if known is not None else binding,
                branch.catalog.partitions,
                names,
                erased,
            )
    datasets = {
        (branch.branch, view.name): view
        for branch in branches.branches
        for view in branch.catalog.datasets
    }
    return RoutingTable(
        branches.version,
        {endpoint: tuple(targets.values()) for endpoint, targets in found.items()},
        datasets,
        {topic: tuple(targets.values()) for topic, targets in read.items()},
        frozenset(
            binding.positions for branch in branches.branches for binding in branch.catalog.sinks
        ),
    )


class Catalogs:
    """Routing tables of recently used workspaces. Use from one event loop."""

    def __init__(self, directory: CatalogDirectory) -> None:
        self._directory = directory
        self._known: OrderedDict[WorkspaceId, RoutingTable] = OrderedDict()
        self._commits: dict[WorkspaceId, dict[CommitId, Catalog]] = {}
        self._reading: dict[WorkspaceId, asyncio.Task[RoutingTable]] = {}

    async def get(self, workspace: WorkspaceId) -> RoutingTable:
        """Return the cached routing table, or read it. Raises `SystemUnavailable`."""
        found = self._known.get(workspace)
        return found if found is not None else await self.reload(workspace)

    async def reload(self, workspace: WorkspaceId) -> RoutingTable:
        """Return a routing table whose read began after this call.

        A read that is already under way may miss a commit, so it does not count.
        """
        running = self._reading.get(workspace)
        if running is not None:
            await asyncio.wait([running])
        following = self._reading.get(workspace)
        if following is None or following is running:
            following = self._reading[workspace] = asyncio.create_task(self._read(workspace))
            following.add_done_callback(lambda task: self._read_done(workspace, task))
        return await asyncio.shield(following)

    def invalidate(self, workspace: WorkspaceId | None) -> None:
        """Drop the routing table of a workspace (None: of every workspace)."""
        if workspace is None:
            self._known.clear()
        else:
            self._known.pop(workspace, None)

    async def _read(self, workspace: WorkspaceId) -> RoutingTable:
        branches = await self._directory.read(workspace, self._commits.get(workspace, {}))
        self._commits[workspace] = {branch.commit: branch.catalog for branch in branches.branches}
        found = self._known[workspace] = routing_table(branches)
        self._known.move_to_end(workspace)
        if len(self._known) > WORKSPACES_KEPT:
            evicted, _ = self._known.popitem(last=False)
            self._commits.pop(evicted, None)
        return found

    def _read_done(self, workspace: WorkspaceId, task: asyncio.Task[RoutingTable]) -> None:
        if self._reading.get(workspace) is task:
            del self._reading[workspace]
        if not task.cancelled():
            # Mark it as retrieved: every waiting caller may have been cancelled.
            task.exception()
