"""One version of a branch as queries see it, and the cache of those versions.

A view is built from the commit that `branch.serving` points to: its merged definitions, its catalog
of physical names, and programs, which are built on first use. The rest of it never changes, so a
request uses one view from start to end and can never mix two versions. Views are replaced, not
updated: when Postgres reports a changed branch, after this server has forwarded a control call, and
before a request fails for a name that the view lacks, so that a lost notification costs a round
trip and never a wrong error.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fennel_core.blueprints.spec import Catalog
from fennel_core.plans.absent_keys import absent_rows
from fennel_core.plans.errors import PlansError
from fennel_core.plans.feature_index import FeatureIndex
from fennel_core.plans.planner import make_plan
from fennel_core.query.errors import QueryRejected, UnknownBranch
from fennel_core.query.program import QueryProgram, ServedDataset, bind
from fennel_core.vocab.ids import BranchName, CommitId, DatasetName, WorkspaceId
from fennel_core.wire.entities import SyncRequest

PROGRAMS_KEPT = 1000
"""Programs per view; each has some kilobytes, and a service sends a handful of different
queries.
"""
VIEWS_KEPT = 1000

FeatureRequest = tuple[tuple[str, ...], tuple[str, ...]]
BranchKey = tuple[WorkspaceId, BranchName]


@dataclass(frozen=True, slots=True)
class ServingVersion:
    """The version that a branch serves."""

    commit: CommitId
    request: SyncRequest
    catalog: Catalog


class ServingSource(Protocol):
    async def read_serving(
        self, key: BranchKey, known: CommitId | None
    ) -> ServingVersion | CommitId | None:
        """Return the branch's serving version: its id alone when that is `known`, None without a
        commit.

        Raises `UnknownBranch`.
        """
        ...


@dataclass(frozen=True, slots=True)
class View:
    commit: CommitId | None
    catalog: Catalog | None
    index: FeatureIndex
    tables: Mapping[DatasetName, ServedDataset]
    _programs: OrderedDict[FeatureRequest, QueryProgram] = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, serving: ServingVersion | None) -> View:
        if serving is None:
            return cls(None, None, FeatureIndex({}, {}, {}, {}), {})
        absent = absent_rows(serving.request)
        catalog = serving.catalog
        tables = {
            view.name: ServedDataset(
                catalog.workspace, view, catalog.partitions, absent.get(view.name, ())
            )
            for view in catalog.datasets
        }
        return cls(serving.commit, catalog, FeatureIndex.of(serving.request), tables)

    def program(self, asked: FeatureRequest) -> QueryProgram:
        """Return the cached program for `asked`; raises `QueryRejected` or another `QueryError`."""
        found = self._programs.get(asked)
        if found is not None:
            self._programs.move_to_end(asked)
            return found
        try:
            made = bind(make_plan(self.index, *asked), self.tables)
        except PlansError as refused:
            raise QueryRejected(refused) from refused
        self._programs[asked] = made
        if len(self._programs) > PROGRAMS_KEPT:
            self._programs.popitem(last=False)
        return made


class Views:
    """The views of all recently used branches."""

    def __init__(self, source: ServingSource) -> None:
        self._source = source
        self._views: OrderedDict[BranchKey, View] = OrderedDict()
        self._loading: dict[BranchKey, asyncio.Task[View]] = {}

    async def get(self, key: BranchKey) -> View:
        """Return the cached view, or read it. Raises `UnknownBranch`."""
        found = self._views.get(key)
        if found is not None:
            self._views.move_to_end(key)
            return found
        running = self._loading.get(key)
        return await (self.reload(key) if running is None else asyncio.shield(running))

    async def reload(self, key: BranchKey) -> View:
        """Return the view from a read that began after this call."""
        running = self._loading.get(key)
        if running is not None:
            await asyncio.wait([running])
        following = self._loading.get(key)
        if following is None or following is running:
            following = self._loading[key] = asyncio.create_task(self._load(key))
            following.add_done_callback(lambda task: self._loaded(key, task))
        return await asyncio.shield(following)

    async def refresh(self, key: BranchKey) -> None:
        """Reload the branch if it is cached; forget it if it was deleted."""
        if key not in self._views:
            return
        try:
            await self.reload(key)
        except UnknownBranch:
            self._views.pop(key, None)

    def known(self) -> Mapping[BranchKey, View]:
        return self._views

    async def _load(self, key: BranchKey) -> View:
        before = self._views.get(key)
        try:
            serving = await self._source.read_serving(
                key, before.commit if before is not None else None
            )
        except UnknownBranch:
            self._views.pop(key, None)
            raise
        match serving:
            case str():
                assert before is not None, "only a known version is returned as its id"
                return before
            case None | ServingVersion():
                view = View.of(serving)
                self._views[key] = view
                self._views.move_to_end(key)
                if len(self._views) > VIEWS_KEPT:
                    self._views.popitem(last=False)
                return view

    def _loaded(self, key: BranchKey, task: asyncio.Task[View]) -> None:
        if self._loading.get(key) is task:
            del self._loading[key]
        if not task.cancelled():
            # Mark it as retrieved: every waiting caller may have been cancelled.
            task.exception()
