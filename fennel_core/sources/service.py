"""The calls about sources: list, pause, resume and limit those of a workspace."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fennel_core.blueprints.spec import Catalog
from fennel_core.connectors.references import Stored, remedy, resolved_catalog
from fennel_core.connectors.store import ConnectorStore, connectors_of
from fennel_core.ingest.store import Branches, CatalogDirectory
from fennel_core.sources.api_errors import LimitInvalid, OrderNotServed, SourceIsSent, SourceUnknown
from fennel_core.sources.controls import SourceControls, SourceEnd
from fennel_core.sources.feeds import Feed
from fennel_core.sources.overview import (
    Orders,
    PositionsOf,
    SourceState,
    SourceView,
    ended_sources,
    source_row,
    source_views,
)
from fennel_core.sources.pace import MAX_ROWS_PER_S, MIN_ROWS_PER_S
from fennel_core.sources.positions import SourcePosition
from fennel_core.vocab.ids import BranchName, CommitId, WorkspaceId
from fennel_core.wire.connectors import Kafka, KafkaTopic, RecordFormat

WORKSPACES_KEPT: Final = 100
ReadPositions = Callable[[Collection[Feed]], PositionsOf]
"""Blocks; raises `SystemUnavailable`."""


@dataclass(frozen=True, slots=True)
class ReadTopic:
    """A topic of a user's Kafka cluster."""

    db: Kafka
    topic: str
    format: RecordFormat


def topic_of(name: str, feed: Feed, what: str) -> ReadTopic:
    """Return the topic that a source reads. Raises OrderNotServed for a stream of another kind.

    `name`: of the source; `what`: the verb of the order.
    """
    match feed.table:
        case KafkaTopic(Kafka() as db, topic, record_format):
            return ReadTopic(db, topic, record_format)
        case _:
            raise OrderNotServed(name, feed.stream.title, what)


class SourceService:
    """Serves the calls. Use from one event loop."""

    def __init__(
        self,
        directory: CatalogDirectory,
        controls: SourceControls,
        read: ReadPositions,
        connectors: ConnectorStore | None = None,
    ) -> None:
        """`connectors`: None if none are stored."""
        self._directory, self._controls, self._read = directory, controls, read
        self._connectors = connectors
        self._known: OrderedDict[WorkspaceId, dict[CommitId, Catalog]] = OrderedDict()

    async def rows(self, workspace: WorkspaceId, branch: BranchName | None) -> list[dict[str, Any]]:
        """Return the sources of a workspace, or those that one of its branches has."""
        views = [
            view
            for view in source_views(await self.branches(workspace))
            if branch is None or branch in view.branches
        ]
        feeds = [view.feed for view in views if view.feed is not None]
        positions = await asyncio.to_thread(self._read, feeds) if feeds else {}
        pauses, statuses = await self._controls.pauses(), await self._controls.statuses()
        ends, silences = await self._controls.ends(), await self._controls.silences(workspace)
        limits = await self._controls.limits()
        stored = await self.stored(workspace)
        rows = []
        for view in views:
            if view.feed is None:
                rows.append(source_row(view, Orders(), {}, ended_sources(view, silences)))
            else:
                topic = view.feed.raw_topic
                end = ends.get(topic, SourceEnd(None))
                orders = Orders(
                    pauses.get(topic), statuses.get(topic), end.ended_at, limits.get(topic)
                )
                row = source_row(view, orders, positions.get(topic, {}))
                if row["state"] == SourceState.PARKED:
                    row["remedy"] = remedy(view.feed.table, stored)
                rows.append(row)
        return rows

    async def stored(self, workspace: WorkspaceId) -> Stored:
        """Return the stored connectors of a workspace."""
        if self._connectors is None:
            return {}
        return connectors_of(await self._connectors.of(workspace))

    async def pause(self, workspace: WorkspaceId, name: str, by: str) -> None:
        """Pause a source in every branch. Raises SourceUnknown and SourceIsSent."""
        _, feed = await self.feed(workspace, name, "pause")
        await self._controls.pause([feed.raw_topic], by)

    async def resume(self, workspace: WorkspaceId, name: str) -> None:
        """Read a source on that was paused or has ended. Raises SourceUnknown and SourceIsSent."""
        _, feed = await self.feed(workspace, name, "resume")
        await self._controls.resume([feed.raw_topic])

    async def limit(
        self, workspace: WorkspaceId, name: str, rows_per_s: float | None, by: str
    ) -> None:
        """Limit how fast a source is read in every branch; None ends the limit.

        Raises LimitInvalid, SourceUnknown and SourceIsSent.
        """
        if rows_per_s is not None and not MIN_ROWS_PER_S <= rows_per_s <= MAX_ROWS_PER_S:
            raise LimitInvalid(rows_per_s)
        _, feed = await self.feed(workspace, name, "limit")
        await self._controls.limit(feed.raw_topic, rows_per_s, by)

    async def feed(self, workspace: WorkspaceId, name: str, what: str) -> tuple[SourceView, Feed]:
        """Return the stream of this name. Raises SourceUnknown, and SourceIsSent for a webhook.

        `what`: the verb of the call.
        """
        views = source_views(await self.branches(workspace))
        named = [view for view in views if view.name == name]
        if not named:
            raise SourceUnknown(name, [view.name for view in views])
        for view in named:
            if view.feed is not None:
                return view, view.feed
        raise SourceIsSent(name, what)

    async def positions(self, feed: Feed) -> Mapping[int, SourcePosition]:
        """Return the position of each partition of a stream. Raises `SystemUnavailable`."""
        return (await asyncio.to_thread(self._read, [feed])).get(feed.raw_topic, {})

    async def branches(self, workspace: WorkspaceId) -> Branches:
        """Return the branches of a workspace with the stored connectors that they name.

        Catalogs that were read before are read once.
        """
        known: Mapping[CommitId, Catalog] = self._known.get(workspace, {})
        found = await self._directory.read(workspace, known)
        self._known[workspace] = {each.commit: each.catalog for each in found.branches}
        self._known.move_to_end(workspace)
        while len(self._known) > WORKSPACES_KEPT:
            self._known.popitem(last=False)
        return found if self._connectors is None else await resolved(found, self._connectors)


async def resolved(branches: Branches, connectors: ConnectorStore) -> Branches:
    """Return the branches of a workspace with the stored connectors that they name."""
    if not branches.branches:
        return branches
    workspace = branches.branches[0].catalog.workspace
    stored = connectors_of(await connectors.of(workspace))
    found = [
        replace(each, catalog=resolved_catalog(each.catalog, stored)) for each in branches.branches
    ]
    return replace(branches, branches=tuple(found))
