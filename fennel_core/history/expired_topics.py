"""Which rows of which topics have expired now."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from fennel_core.history.expiring import TopicExpiry
from fennel_core.history.row_needs import RowNeeds, RowNeedsReader
from fennel_core.history.store import Readers
from fennel_core.history.topic_counts import group_of
from fennel_core.vocab.ids import Micros, TopicName, WorkspaceId


@dataclass(frozen=True, slots=True)
class Expiries:
    """The expiry of each topic that loses rows, and by workspace who needs the others."""

    topics: Mapping[TopicName, TopicExpiry] = field(default_factory=dict)
    readers: Mapping[WorkspaceId, Readers] = field(default_factory=dict)

    def keyed(self) -> Expiries:
        """Return those of keyed datasets alone."""
        return replace(self, topics={t: e for t, e in self.topics.items() if e.keys})

    def keyless(self) -> Expiries:
        """Return those of datasets without a key, and of the inputs of aggregates, alone."""
        return replace(self, topics={t: e for t, e in self.topics.items() if not e.keys})

    def readers_of(self, topic: TopicName) -> Readers:
        """Return who reads the rows of a topic's workspace."""
        return self.readers[workspace_of(topic)]


ReadExpiries = Callable[[], Awaitable[Expiries]]


def workspace_of(topic: TopicName) -> WorkspaceId:
    """Return the workspace of a topic."""
    return WorkspaceId(group_of(topic).workspace)


def expiries(needs: RowNeeds, now_us: int, *, dry_run: bool = False) -> Expiries:
    """Return what has expired, by the slowest clock.

    `now_us`: the clock of this machine. `dry_run`: as if the clocks of workspaces were moved on.
    """
    found = {}
    for topic, each in needs.kept.items():
        workspace = workspace_of(topic)
        clock = needs.clocks.get(workspace)
        if each.kept_because is not None or clock is None:
            continue
        # A dry run shows what a confirmation would let go.
        if dry_run or not (clock.keeps_old_rows or workspace in needs.changing):
            step_us = clock.step_us if dry_run else 0
            now = min(clock.accepted_us, clock.aged_us + step_us, now_us)
            oldest = Micros(now - each.kept_us)
            found[topic] = TopicExpiry(each.timestamp, oldest, each.kept_us, each.keys)
    return Expiries(found, needs.readers)


async def expiries_now(reader: RowNeedsReader, *, dry_run: bool = False) -> Expiries:
    """Return what has expired now; in a dry run, as if the clocks were advanced.

    Raises SystemUnavailable.
    """
    return expiries(await reader.read(), int(time.time() * 1_000_000), dry_run=dry_run)
