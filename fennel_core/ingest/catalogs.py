"""Which datasets an endpoint feeds, over all branches of a workspace.

Theory. `log` goes to every branch that names the endpoint, and equal definitions of several
branches have one identity and one topic, so they are written once. What is in memory may be old for
a moment (a notification takes its time); the stamp of each transaction carries the version that was
current when it was taken, so rows prepared under an older one are prepared again
(`store.Begun.version`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from fennel_core.blueprints.spec import Catalog, DatasetView, SourceBinding
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.ingest.store import Branches, CatalogDirectory, CatalogVersion
from fennel_core.vocab.ids import BranchName, CommitId, DatasetName, Identity, WorkspaceId

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
    """Where the rows of each endpoint of a workspace go."""

    version: CatalogVersion
    feeds: Mapping[Endpoint, tuple[EndpointTarget, ...]]
    datasets: Mapping[tuple[BranchName, DatasetName], DatasetView]


def routing_table(branches: Branches) -> RoutingTable:
    """The feeds of all branches, equal identities joined; in the order of branches and of their
    catalogs.
    """
    found: dict[Endpoint, dict[Identity, EndpointTarget]] = {}
    for branch in branches.branches:
        for binding in branch.catalog.sources:
            feeds = found.setdefault((binding.webhook, binding.endpoint), {})
            known = feeds.get(binding.identity)
            names = (
                known.branches | {branch.branch}
                if known is not None
                else frozenset({branch.branch})
            )
            erased = tuple(branches.erased.get(binding.dataset, ()))
            feeds[binding.identity] = EndpointTarget(
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
        {endpoint: tuple(feeds.values()) for endpoint, feeds in found.items()},
        datasets,
    )


class Catalogs:
    """The directions of the workspaces that logged lately. Use from one event loop."""

    def __init__(self, directory: CatalogDirectory) -> None:
        self._directory = directory
        self._known: OrderedDict[WorkspaceId, RoutingTable] = OrderedDict()
        self._commits: dict[WorkspaceId, dict[CommitId, Catalog]] = {}
        self._reading: dict[WorkspaceId, asyncio.Task[RoutingTable]] = {}

    async def get(self, workspace: WorkspaceId) -> RoutingTable:
        """The directions in memory, or those read now. Raises `store.Away`."""
        found = self._known.get(workspace)
        return found if found is not None else await self.reload(workspace)

    async def reload(self, workspace: WorkspaceId) -> RoutingTable:
        """Directions that were read after this call began: a reading that was already under way
        does not count.
        """
        under_way = self._reading.get(workspace)
        if under_way is not None:
            await asyncio.wait([under_way])
        following = self._reading.get(workspace)
        if following is None or following is under_way:
            following = self._reading[workspace] = asyncio.create_task(self._read(workspace))
            following.add_done_callback(lambda task: self._read_done(workspace, task))
        return await asyncio.shield(following)

    def forget(self, workspace: WorkspaceId | None) -> None:
        """Read a workspace (None: every one) anew when it next logs: something changed, or may
        have.
        """
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
            gone, _ = self._known.popitem(last=False)
            self._commits.pop(gone, None)
        return found

    def _read_done(self, workspace: WorkspaceId, task: asyncio.Task[RoutingTable]) -> None:
        if self._reading.get(workspace) is task:
            del self._reading[workspace]
        if not task.cancelled():
            task.exception()  # whoever waits sees it; nobody may be waiting any more
