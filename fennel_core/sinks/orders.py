"""What users order about sinks: list, pause and resume those of a workspace.

A sink is known by its own name, which the branches that share it have in common; people name it by
connector and place, as `hooks/rows`. Versions of a dataset with different content have sinks of
their own into one place, so an order is about all sinks of this place, and a pause is kept for
those of later versions. Reports are stored as those of sources (`sources.controls`), under the name
of the sink.

    state      condition
    paused     a user has paused it
    parked     it cannot be written; it is tried again
    running    the process that writes it said so a moment ago
    unwatched  no process has reported it lately
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fennel_core.connectors.references import Stored, remedy
from fennel_core.ingest.store import Branches
from fennel_core.redrive.sink_replays import SinkReplays
from fennel_core.sinks.controls import SinkControls
from fennel_core.sinks.positions import SinkRewind
from fennel_core.sinks.targets import SinkTarget, targets_of
from fennel_core.sources.controls import FeedStatus, SourceControls, SourcePause
from fennel_core.sources.overview import SourceState, reported_state
from fennel_core.vocab.errors import ClassifiedApiError
from fennel_core.vocab.ids import BranchName, TopicName, WorkspaceId

NAMED = 20
"""Names that an error lists."""
ReadBranches = Callable[[WorkspaceId], Awaitable[Branches]]
ReadStored = Callable[[WorkspaceId], Awaitable[Stored]]


class SinkApiError(ClassifiedApiError):
    """Base class of errors of these calls. `CODE` is stable and never reused."""

    CODE = "sink-call"


class SinkUnknown(SinkApiError):
    """No branch of the workspace has a sink with this name."""

    STATUS = 404
    CODE = "sink-unknown"

    def __init__(self, name: str, known: list[str]) -> None:
        shown = ", ".join(sorted(set(known))[:NAMED]) or "none"
        super().__init__(f"there is no sink `{name}` in this workspace; its sinks: {shown}")


@dataclass(slots=True)
class SinkView:
    """One sink and the branches that have it."""

    target: SinkTarget
    branches: set[BranchName] = field(default_factory=set)


def sink_views(branches: Branches) -> dict[TopicName, SinkView]:
    """Return the sinks of a workspace, whatever branches have them."""
    found: dict[TopicName, SinkView] = {}
    for branch in branches.branches:
        for name, target in targets_of([branch.catalog]).items():
            found.setdefault(name, SinkView(target)).branches.add(branch.branch)
    return found


def rewind_row(order: SinkRewind) -> dict[str, Any]:
    """Return a rewind that is not carried out yet as the API lists it. Its number is a time."""
    ordered = datetime.fromtimestamp(order.number / 1_000_000, UTC)
    return {
        "from": {str(part): offset for part, offset in order.to.items()},
        "whole": order.whole,
        "ordered_at": ordered.isoformat(timespec="seconds"),
    }


def sink_row(
    view: SinkView,
    pause: SourcePause | None,
    status: FeedStatus | None,
    rewind: SinkRewind | None,
    replays: int,
) -> dict[str, Any]:
    """Return a sink as the API lists it. `error` is the last one, also of a paused sink.

    `rewind`: what is not carried out yet; `replays`: dead letters that are to be sent again.
    `remedy` is the caller's, who knows which connectors are stored.
    """
    state = reported_state(pause, status)
    watched = status is not None and state in (SourceState.RUNNING, SourceState.PARKED)
    return {
        "sink": view.target.title,
        "kind": view.target.place.kind,
        "dataset": view.target.dataset,
        "branches": sorted(view.branches),
        "state": state.value,
        "paused_by": None if pause is None else pause.by,
        "paused_at": None if pause is None else pause.at.isoformat(timespec="seconds"),
        "error": None if status is None else status.reason,
        "remedy": None,
        "failures": 0 if status is None else status.failures,
        "behind": status.behind if watched and status is not None else None,
        "rewind": None if rewind is None else rewind_row(rewind),
        "replays": replays,
        "changes": None if status is None else status.rows,
    }


def only_paused(name: str, pause: SourcePause) -> dict[str, Any]:
    """Return a pause as the API lists it, of a name that no branch has a sink of."""
    return {
        "sink": name,
        "kind": None,
        "dataset": None,
        "branches": [],
        "state": SourceState.PAUSED.value,
        "paused_by": pause.by,
        "paused_at": pause.at.isoformat(timespec="seconds"),
        "error": None,
        "remedy": None,
        "failures": 0,
        "behind": None,
        "rewind": None,
        "replays": 0,
        "changes": None,
    }


class SinkOrders:
    """Serves the calls. Use from one event loop."""

    def __init__(
        self,
        branches: ReadBranches,
        reports: SourceControls,
        controls: SinkControls,
        replays: SinkReplays,
        stored: ReadStored | None = None,
    ) -> None:
        """`reports`: has the statuses of the sinks, and no other part of it is used; `stored`: None
        if no connectors are.
        """
        self._branches, self._reports, self._controls = branches, reports, controls
        self._replays, self._stored = replays, stored

    async def rows(self, workspace: WorkspaceId, branch: BranchName | None) -> list[dict[str, Any]]:
        """Return the sinks of a workspace, or those that one of its branches has.

        Without a branch, also names that are paused and that no branch has.
        """
        views = sink_views(await self._branches(workspace))
        pauses, statuses = await self._pauses(workspace), await self._reports.statuses()
        rewinds, replays = await self._controls.pending(), await self._replays.counts()
        stored = {} if self._stored is None else await self._stored(workspace)
        rows = []
        for name, view in views.items():
            if branch is None or branch in view.branches:
                row = sink_row(
                    view,
                    pauses.get(view.target.title),
                    statuses.get(name),
                    rewinds.get(name),
                    replays.get(name, 0),
                )
                if row["state"] == SourceState.PARKED:
                    row["remedy"] = remedy(view.target.table, stored)
                rows.append(row)
        if branch is None:
            titles = {view.target.title for view in views.values()}
            rows += [only_paused(n, each) for n, each in pauses.items() if n not in titles]
        return sorted(rows, key=lambda row: (row["sink"], row["branches"]))

    async def pause(self, workspace: WorkspaceId, name: str, by: str) -> None:
        """Stop writing a sink, in every branch and version. Raises SinkUnknown."""
        await self.named(workspace, name)
        await self._controls.pause((workspace, name), by)

    async def resume(self, workspace: WorkspaceId, name: str) -> None:
        """Write a sink on from its position. Raises SinkUnknown, unless the name is paused."""
        if name not in await self._pauses(workspace):
            await self.named(workspace, name)
        await self._controls.resume((workspace, name))

    async def _pauses(self, workspace: WorkspaceId) -> dict[str, SourcePause]:
        found = await self._controls.pauses()
        return {name: pause for (of, name), pause in found.items() if of == workspace}

    async def named(self, workspace: WorkspaceId, name: str) -> Mapping[TopicName, SinkView]:
        """Return the sinks of a name. Raises SinkUnknown."""
        views = sink_views(await self._branches(workspace))
        found = {key: view for key, view in views.items() if view.target.title == name}
        if not found:
            raise SinkUnknown(name, [view.target.title for view in views.values()])
        return found
