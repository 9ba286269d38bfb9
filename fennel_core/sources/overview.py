"""What is known of each source of a workspace: pure functions over what the stores say.

    state      condition                                             of
    sent       rows are sent by `log`                                webhooks
    ended      it is bounded, and nothing came for its idleness      all
    paused     a user has paused it                                  streams
    parked     it cannot be read; it is tried again at `retry_at`    streams
    running    what reads it said so a moment ago; of a table        streams
               `error` may say that this is late, or lacks rows
    unwatched  no process has reported it lately                     streams

A stream has the state of its feed, which all branches share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from fennel_core.blueprints.spec import SourceBinding
from fennel_core.ingest.store import Branches
from fennel_core.sources.controls import FeedStatus, SourceLimit, SourcePause
from fennel_core.sources.feeds import MICROS, Feed, feeds_of
from fennel_core.sources.positions import DatasetPosition, SourcePosition
from fennel_core.vocab.ids import BranchName, Identity, TopicName
from fennel_core.wire.connectors import DEFAULT_EVERY_US, Cdc, Source

STATUS_S: Final = 60.0
"""A status that is older says nothing: the process reports four times as often."""
PositionsOf = Mapping[TopicName, Mapping[int, SourcePosition]]
"""Of each feed, by raw topic: the position of each partition of its stream."""


class SourceState(StrEnum):
    """See the module."""

    SENT = "sent"
    ENDED = "ended"
    PAUSED = "paused"
    PARKED = "parked"
    RUNNING = "running"
    UNWATCHED = "unwatched"


@dataclass(slots=True)
class SourceView:
    """One source: its bindings to datasets with the branches that have each, and its feed."""

    name: str
    feed: Feed | None
    """None for a webhook."""
    bindings: dict[tuple[Identity, TopicName], tuple[SourceBinding, set[BranchName]]] = field(
        default_factory=dict
    )

    @property
    def branches(self) -> set[BranchName]:
        return {branch for _, branches in self.bindings.values() for branch in branches}


def source_views(branches: Branches) -> list[SourceView]:
    """Return the sources of a workspace by name, whatever branches have them."""
    found: dict[TopicName, SourceView] = {}
    # As the process that reads the streams: the credentials of the newest commit count.
    newest = sorted(branches.branches, key=lambda branch: (-branch.created_us, branch.commit))
    feeds = feeds_of(branch.catalog for branch in newest)
    for branch in branches.branches:
        for binding in branch.catalog.sources:
            view = found.setdefault(
                binding.raw_topic,
                SourceView(f"{binding.webhook}/{binding.endpoint}", feeds.get(binding.raw_topic)),
            )
            _, having = view.bindings.setdefault(
                (binding.identity, binding.topic), (binding, set())
            )
            having.add(branch.branch)
    return sorted(found.values(), key=lambda view: view.name)


def interval_of(sources: Iterable[Source]) -> timedelta:
    """Return how often a table is read: as the most frequent of its sources."""
    return timedelta(microseconds=min(each.every_us or DEFAULT_EVERY_US for each in sources))


def view_interval(view: SourceView) -> timedelta:
    """Return how often the table of a view is read."""
    return interval_of(binding.source for binding, _ in view.bindings.values())


def cursor_and_disorder(view: SourceView) -> tuple[str, int]:
    """Return the cursor of a table, on which all its sources agree, and the longest disorder."""
    sources = [binding.source for binding, _ in view.bindings.values()]
    names = {source.cursor for source in sources}
    assert len(names) == 1, "commits that disagree on the cursor are refused"
    [name] = names
    assert name is not None, "a table without a cursor is refused"
    return name, max(source.disorder_us for source in sources)


def is_versioned(view: SourceView) -> bool:
    """Return whether all datasets of a table take a row that is read twice for one version."""
    return all(binding.source.cdc is Cdc.UPSERT for binding, _ in view.bindings.values())


@dataclass(frozen=True, slots=True)
class Orders:
    """What the stores say about a source, beside its rows."""

    pause: SourcePause | None = None
    status: FeedStatus | None = None
    ended_at: datetime | None = None
    """When a bounded stream has ended."""
    limit: SourceLimit | None = None


def state_of(view: SourceView, orders: Orders, ended: Collection[Identity] = ()) -> SourceState:
    """Return the state of a source; see the module. `ended`: sources by `log` that have ended."""
    if view.feed is None:
        is_over = all(identity in ended for identity, _ in view.bindings)
        return SourceState.ENDED if is_over else SourceState.SENT
    if orders.ended_at is not None and orders.pause is None:
        return SourceState.ENDED
    return reported_state(orders.pause, orders.status)


def ended_sources(view: SourceView, silences: Mapping[Identity, float]) -> set[Identity]:
    """Return the bounded sources of a webhook that have ended, from the seconds without a row."""
    return {
        binding.identity
        for binding, _ in view.bindings.values()
        if binding.source.bounded
        and binding.source.idleness_us is not None
        and silences.get(binding.identity, 0.0) * MICROS > binding.source.idleness_us
    }


def reported_state(pause: SourcePause | None, status: FeedStatus | None) -> SourceState:
    """Return the state of what a process reads or writes."""
    if pause is not None:
        return SourceState.PAUSED
    if status is None or status.age_s > STATUS_S:
        return SourceState.UNWATCHED
    is_broken = status.reason is not None and status.failures > 0
    return SourceState.PARKED if is_broken else SourceState.RUNNING


def source_row(
    view: SourceView,
    orders: Orders,
    positions: Mapping[int, SourcePosition],
    ended: Collection[Identity] = (),
) -> dict[str, Any]:
    """Return a source as the API lists it. `error` is the last one, also of a paused source.

    `ended`: as for `state_of`. `remedy` is the caller's, who knows which connectors are stored.
    """
    pause, status, ended_at = orders.pause, orders.status, orders.ended_at
    state = state_of(view, orders, ended)
    read = state in (SourceState.RUNNING, SourceState.PARKED)
    parked = state is SourceState.PARKED and status is not None
    return {
        "source": view.name,
        "kind": "webhook" if view.feed is None else view.feed.stream.kind,
        "branches": sorted(view.branches),
        "state": state.value,
        "paused_by": None if pause is None else pause.by,
        "paused_at": None if pause is None else pause.at.isoformat(timespec="seconds"),
        "rows_per_s": None if orders.limit is None else orders.limit.rows_per_s,
        "limited_by": None if orders.limit is None else orders.limit.by,
        "ended_at": None if ended_at is None else ended_at.isoformat(timespec="seconds"),
        "error": None if status is None else status.reason,
        "remedy": None,
        "failures": 0 if status is None else status.failures,
        "retry_at": status.retry_at.isoformat(timespec="seconds")
        if parked and status is not None and status.retry_at is not None
        else None,
        "behind": status.behind if read and status is not None else None,
        "behind_ms": status.behind_ms if read and status is not None else None,
        "unread_s": status.unread_s if read and status is not None else None,
        "positions": {str(number): each.next for number, each in sorted(positions.items())},
        "datasets": [
            _dataset_row(binding, having, positions.values())
            | {"ended": state is SourceState.ENDED or binding.identity in ended}
            for binding, having in view.bindings.values()
        ],
    }


def _dataset_row(
    binding: SourceBinding, having: set[BranchName], positions: Iterable[SourcePosition]
) -> dict[str, Any]:
    """Return what became of the rows; None for rows that are sent, which the metrics count."""
    row: dict[str, Any] = {
        "dataset": binding.dataset,
        "branches": sorted(having),
        "cdc": binding.source.cdc.value,
    }
    if binding.positions is None:
        return row | dict.fromkeys(("accepted", "late", "dead", "latest_us"))
    own = [
        each
        for position in positions
        for each in [position.datasets.get(binding.identity, DatasetPosition())]
    ]
    latest = [each.latest_us for each in own if each.latest_us is not None]
    return row | {
        "accepted": sum(each.accepted for each in own),
        "late": sum(each.late for each in own),
        "dead": sum(each.dead for each in own),
        "latest_us": max(latest, default=None),
    }
