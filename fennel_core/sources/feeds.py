"""Which external streams have to be read, and what to do about it: pure decisions.

A *feed* is an external stream that is the source of datasets, in one branch or several: it is read
once for all of them. The catalogs of the branches' target versions say which feeds there are, so a
source starts when its commit switches and ends when the last version that has it is gone.

    state      condition                                   action
    absent     the feed is wanted                          start
    running    the feed is wanted as it was started        none
    running    it is not wanted, or wanted otherwise       stop
    broken     its pause is over                           start
    broken     it is not wanted, or wanted otherwise       forget
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fennel_core.blueprints.spec import Catalog
from fennel_core.sources.store import FeedPartition
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.wire.connectors import Kafka, KafkaTopic

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
"""Back-off of a source that cannot be read: a rotated password is noticed within a minute."""


@dataclass(frozen=True, slots=True)
class Feed:
    """An external stream of a workspace, and the topics that it is written to."""

    workspace: WorkspaceId
    raw_topic: TopicName
    positions: TopicName
    partitions: int
    connector: Kafka
    stream: str

    @property
    def title(self) -> str:
        return f"{self.connector.name}/{self.stream}"

    def partition(self, number: int) -> FeedPartition:
        """Return partition `number` of the stream."""
        return FeedPartition(
            self.workspace,
            self.connector.name,
            self.stream,
            self.raw_topic,
            self.positions,
            self.partitions,
            number,
        )


def feeds_of(catalogs: Iterable[Catalog]) -> dict[TopicName, Feed]:
    """Return the feeds of the branches' versions, by raw topic.

    The first definition counts: the newest, whose credentials were tried last.
    """
    found: dict[TopicName, Feed] = {}
    for catalog in catalogs:
        for source in catalog.sources:
            table = source.source.table
            if source.positions is None or not isinstance(table, KafkaTopic):
                continue
            assert isinstance(table.db, Kafka), "validation refuses connectors by name"
            found.setdefault(
                source.raw_topic,
                Feed(
                    catalog.workspace,
                    source.raw_topic,
                    source.positions,
                    catalog.partitions,
                    table.db,
                    table.topic,
                ),
            )
    return found


@dataclass(frozen=True, slots=True)
class Reading:
    """A feed that is read, since when, and how often in a row it had failed before."""

    feed: Feed
    since_s: float
    failures: int


@dataclass(frozen=True, slots=True)
class Broken:
    """A feed whose reading failed: why, how often in a row, and when it is tried again."""

    feed: Feed
    reason: str
    failures: int
    retry_s: float


FeedState = Reading | Broken
States = Mapping[TopicName, FeedState]


@dataclass(frozen=True, slots=True)
class FeedReport:
    """What `fennel-core status` shows of a feed. `reason`: why it is broken, else None."""

    workspace: WorkspaceId
    source: str
    failures: int
    """How often in a row it could not be read; of one that is read, how often before that."""
    reason: str | None


def report_of(states: States) -> list[FeedReport]:
    """Return a report of each feed, the broken ones first."""
    found = [
        FeedReport(
            state.feed.workspace,
            state.feed.title,
            state.failures,
            state.reason if isinstance(state, Broken) else None,
        )
        for state in states.values()
    ]
    return sorted(found, key=lambda each: (each.reason is None, each.workspace, each.source))


def started(feed: Feed, before: FeedState | None, now_s: float) -> Reading:
    """Return the state of a feed whose query has started now; `before` is its state before."""
    return Reading(feed, now_s, 0 if before is None else before.failures)


def broken(feed: Feed, before: FeedState | None, reason: str, now_s: float) -> Broken:
    """Return the state of a feed that has failed now; `before` is its state before.

    A feed that was read for longer than the longest pause has failed for the first time.
    """
    failures = 0 if before is None else before.failures
    if isinstance(before, Reading) and now_s - before.since_s > LONGEST_PAUSE_S:
        failures = 0
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 30))
    return Broken(feed, reason, failures + 1, now_s + pause_s)


def to_stop(wanted: Mapping[TopicName, Feed], states: States) -> list[TopicName]:
    """Return the feeds that are not wanted any more, or wanted with another connector."""
    return [topic for topic, state in states.items() if wanted.get(topic) != state.feed]


def to_start(wanted: Mapping[TopicName, Feed], states: States, now_s: float) -> list[Feed]:
    """Return the feeds to start: those without a state, and those whose pause is over."""
    return [
        feed
        for topic, feed in wanted.items()
        for state in [states.get(topic)]
        if state is None or (isinstance(state, Broken) and now_s >= state.retry_s)
    ]
