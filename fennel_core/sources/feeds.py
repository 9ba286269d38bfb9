"""Which external streams have to be read, and what to do about it: pure decisions.

A *feed* is an external stream that is the source of datasets, in one branch or several: it is read
once for all of them. The catalogs of the branches' target versions say which feeds there are, so a
source starts when its commit switches and ends when the last version that has it is gone.

    state      condition                                   action
    absent     the feed is wanted                          start
    running    the feed is wanted as it was started        none
    running    a batch ended, or the longest pause did     forget the failures in a row
    running    it is not wanted, or wanted otherwise       stop
    running    it was rewound, so its generation differs   stop
    running    it has another limit, so it differs         stop
    running    it is bounded, and resumed: so it differs   stop
    any        it is paused, so it is not wanted           as above
    running    it is bounded, and exhausted                end it; so it is not wanted
    broken     its pause is over                           start
    broken     it is not wanted, or wanted otherwise       forget
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from fennel_core.blueprints.spec import Catalog
from fennel_core.blueprints.streams import (
    Stream,
    StreamTable,
    is_scheduled,
    is_stream,
    stream_of,
)
from fennel_core.graph.delta_keys import key_columns
from fennel_core.graph.s3_paths import ALWAYS, PathWindow
from fennel_core.sources.controls import FeedNews, FeedStatus
from fennel_core.sources.store import FeedPartition
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.wire.connectors import S3Table, Source, Table

MICROS: Final = 1_000_000
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
    table: StreamTable
    every_us: int | None = None
    """How often it is looked at, where the stream does not say that something is new."""
    idleness_us: int | None = None
    """Of a bounded source: how long nothing is found in it until it has ended."""
    window: PathWindow = ALWAYS
    """Which times the paths of files may have, by the `spread` of all who read them."""
    generation: int = 0
    """See `sources.controls`; 0 where only the stream matters."""
    rows_per_s: float | None = None
    """The limit of its reader, if a user has given it one."""
    reopened_at: datetime | None = None
    """Of a bounded source: see `sources.controls.SourceEnd`. A reader from before ends nothing."""
    keys: tuple[str, ...] = ()
    """The columns of a Delta table that name a row; its datasets agree on them. Else empty."""

    @property
    def stream(self) -> Stream:
        return stream_of(self.table)

    @property
    def scheduled(self) -> bool:
        """Whether it is read now and then by runs, and not without end."""
        return is_scheduled(self.table)

    @property
    def title(self) -> str:
        return f"{self.table.db.name}/{self.stream.name}"

    def partition(self, number: int) -> FeedPartition:
        """Return partition `number` of the stream."""
        return FeedPartition(
            self.workspace,
            f"{self.stream.title}[{number}]",
            self.table.db.name,
            self.stream.name,
            self.raw_topic,
            self.positions,
            self.partitions,
            number,
        )


def feeds_of(catalogs: Iterable[Catalog]) -> dict[TopicName, Feed]:
    """Return the feeds of the branches' versions, by raw topic.

    The first definition counts: the newest, whose credentials were tried last; of all of them, the
    shortest `every`, and the longest `idleness`: who reads without an end needs all that comes.
    """
    found: dict[TopicName, Feed] = {}
    for catalog in catalogs:
        for source in catalog.sources:
            table = source.source.table
            if source.positions is None:
                continue
            assert is_stream(table), "what has positions is a stream"
            feed = Feed(
                catalog.workspace,
                source.raw_topic,
                source.positions,
                catalog.partitions,
                table,
                source.source.every_us,
                source.source.idleness_us if source.source.bounded else None,
                window_of(source.source),
                keys=key_columns(source.source, source.schema) or (),
            )
            first = found.get(source.raw_topic, feed)
            given = [us for us in (first.every_us, feed.every_us) if us is not None]
            idle = [us for us in (first.idleness_us, feed.idleness_us) if us is not None]
            found[source.raw_topic] = replace(
                first,
                window=joined(first.window, feed.window),
                every_us=min(given, default=None),
                idleness_us=max(idle) if len(idle) == 2 else None,
            )
    return found


def window_of(source: Source) -> PathWindow:
    """Return which times the paths may have of files with rows that the source takes.

    `spread` says how far times of rows are from that of their path; without it, nothing is known.
    """
    table = source.table
    if not isinstance(table, S3Table) or table.spread_us is None:
        return ALWAYS
    since_us, until_us, spread_us = source.since_us, source.until_us, table.spread_us
    return PathWindow(
        None if since_us is None else since_us - spread_us,
        None if until_us is None else until_us + spread_us,
    )


def joined(one: PathWindow, other: PathWindow) -> PathWindow:
    """Return the smallest window that has two."""
    since = (one.since_us, other.since_us)
    until = (one.until_us, other.until_us)
    return PathWindow(
        None if None in since else min(us for us in since if us is not None),
        None if None in until else max(us for us in until if us is not None),
    )


@dataclass(frozen=True, slots=True)
class FeedProgress:
    """What a query has reported since it started: that a batch ended, and what was left then."""

    behind: int | None
    """Messages in the stream that were not read yet; None if the query did not report it."""
    behind_ms: int | None = None
    """How old the last record is beside the newest one, where messages cannot be counted."""
    looked_s: float | None = None
    """When a look began that left nothing unread (monotonic clock); None if there was none yet."""
    fresh_s: float | None = None
    """When this was last known to be true: a batch ended, or the next one is not due."""
    rows: int = 0
    """Rows that were read in the round that reports this, where there are rounds."""
    retained_bytes: int | None = None
    """What a database keeps of its log for the source; None if it does not."""

    @property
    def is_caught_up(self) -> bool:
        """Whether nothing was left."""
        return self.behind == 0 if self.behind_ms is None else self.behind_ms == 0


@dataclass(frozen=True, slots=True)
class Reading:
    """A feed that is read, since when, and how often in a row and in all it had failed before."""

    feed: Feed
    since_s: float
    failures: int
    total_failures: int
    behind: int | None = None
    """Messages that were left at the end of the last batch; None before the first."""
    behind_ms: int | None = None
    """As that of `FeedProgress`."""
    looked_s: float | None = None
    """As that of `FeedProgress`."""
    fresh_s: float = 0.0
    """When nothing was left unread, or the process began to read it."""
    retained_bytes: int | None = None
    """As that of `FeedProgress`."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A feed whose reading failed: why, how often in a row and in all, and when it is retried."""

    feed: Feed
    reason: str
    failures: int
    total_failures: int
    retry_s: float
    fresh_s: float = 0.0
    """As that of `Reading`."""


FeedState = Reading | Broken
Remedy = Callable[[WorkspaceId, Table], str | None]
"""What to do about a broken table of a workspace, None if nothing is known."""
States = Mapping[TopicName, FeedState]


@dataclass(frozen=True, slots=True)
class FeedReport:
    """What `fennel-core status` shows of a feed. `reason`: why it is broken, else None.

    A table may have a `reason` without `failures`: it was read too long ago, or lacks rows.
    `behind`: messages that are not read yet, at the end of the last batch; None if not known.
    """

    workspace: WorkspaceId
    source: str
    failures: int
    """How often in a row it could not be read; 0 once a batch was read."""
    total_failures: int
    """Since the service started."""
    behind: int | None
    reason: str | None
    paused: bool = False
    """A user has paused it, so it is not read."""
    behind_ms: int | None = None
    """As that of `FeedProgress`."""
    ended: bool = False
    """It is bounded and has ended, so it is not read any more."""
    remedy: str | None = None
    """What to do about a broken one if the credentials of its connector have changed."""
    stale_s: float | None = None
    """For how long something was left unread all the while; None if that is not too long."""
    unread_s: float | None = None
    """Of a table: how long ago it was read to its end."""
    rows_per_s: float | None = None
    """As that of `Feed`."""
    retained_bytes: int | None = None
    """As that of `FeedProgress`."""
    rows: int | None = None
    """Rows that entered in all; None if they were not counted yet."""


def report_of(
    states: States,
    paused: Iterable[Feed] = (),
    ended: Iterable[Feed] = (),
    remedy: Remedy = lambda *_: None,
    *,
    rows: Mapping[TopicName, int] = MappingProxyType({}),
    now_s: float = 0.0,
    stale_after_s: float = math.inf,
) -> list[FeedReport]:
    """Return a report of each feed, the broken ones first, and those that are not read.

    One that was not read to its end for longer than `stale_after_s` says so.
    """
    found = [
        FeedReport(
            feed.workspace,
            feed.title,
            0,
            0,
            None,
            None,
            paused=not has_ended,
            ended=has_ended,
            rows_per_s=feed.rows_per_s,
            rows=rows.get(feed.raw_topic),
        )
        for feeds, has_ended in ((paused, False), (ended, True))
        for feed in feeds
        if feed.raw_topic not in states
    ]
    found += [
        FeedReport(
            state.feed.workspace,
            state.feed.title,
            state.failures,
            state.total_failures,
            state.behind if isinstance(state, Reading) else None,
            state.reason if isinstance(state, Broken) else None,
            behind_ms=state.behind_ms if isinstance(state, Reading) else None,
            remedy=remedy(state.feed.workspace, state.feed.table)
            if isinstance(state, Broken)
            else None,
            stale_s=age_s if age_s > stale_after_s else None,
            rows_per_s=state.feed.rows_per_s,
            retained_bytes=state.retained_bytes if isinstance(state, Reading) else None,
            rows=rows.get(state.feed.raw_topic),
        )
        for state in states.values()
        for age_s in [now_s - state.fresh_s]
    ]
    return sorted(found, key=lambda each: (each.reason is None, each.workspace, each.source))


def scheduled_report(
    feeds: Mapping[TopicName, Feed],
    statuses: Mapping[TopicName, FeedStatus],
    paused: Collection[TopicName],
    ended: Collection[TopicName] = (),
    remedy: Remedy = lambda *_: None,
) -> list[FeedReport]:
    """Return a report of each source on a schedule, from what its runs have stored."""
    found = []
    for topic, feed in feeds.items():
        status = statuses.get(topic)
        failures = 0 if status is None else status.failures
        stops, has_ended = topic in paused, topic in ended
        reason = None if status is None or stops or has_ended else status.reason
        found.append(
            FeedReport(
                feed.workspace,
                feed.title,
                failures,
                failures,
                None,
                reason,
                paused=stops,
                ended=has_ended and not stops,
                remedy=remedy(feed.workspace, feed.table) if reason and failures else None,
                rows_per_s=feed.rows_per_s,
                unread_s=None if status is None or stops or has_ended else status.unread_s,
                rows=None if status is None else status.rows,
            )
        )
    return sorted(found, key=lambda each: (each.reason is None, each.workspace, each.source))


def news_of(states: States, now_s: float) -> list[FeedNews]:
    """Return what is stored about each feed, by raw topic."""
    return [
        FeedNews(
            topic,
            state.failures,
            state.behind if isinstance(state, Reading) else None,
            state.reason if isinstance(state, Broken) else None,
            max(0.0, state.retry_s - now_s) if isinstance(state, Broken) else None,
            state.behind_ms if isinstance(state, Reading) else None,
            max(0.0, now_s - state.fresh_s),
        )
        for topic, state in sorted(states.items())
    ]


def fresh_before(
    statuses: Mapping[TopicName, FeedStatus], wanted: Collection[TopicName], now_s: float
) -> dict[TopicName, float]:
    """Return when the feeds that are read were last known to be read to their end.

    The process before this one stored it. One that is paused now counts from when it is resumed.
    """
    return {
        topic: now_s - status.unread_s
        for topic, status in statuses.items()
        if topic in wanted and status.unread_s is not None
    }


def started(
    feed: Feed, before: FeedState | None, now_s: float, fresh_s: float | None = None
) -> Reading:
    """Return the state of a feed whose query has started now; `before` is its state before.

    `fresh_s`: without one, when an earlier process knew it to be read to its end.
    """
    failures, total = _failures(before)
    fresh_s = _fresh_s(before, now_s, fresh_s)
    return Reading(feed, now_s, failures, total, fresh_s=fresh_s)


def seen(state: Reading, progress: FeedProgress | None, now_s: float) -> Reading:
    """Return the state of a feed whose query runs now; `progress` is what the query has reported.

    A query that ended a batch, or ran for longer than the longest pause, has ended the failures in
    a row: a stream without messages has no batches.
    """
    well = progress is not None or now_s - state.since_s > LONGEST_PAUSE_S
    failures = 0 if well else state.failures
    if progress is None:
        return replace(state, failures=failures)
    known = progress.is_caught_up and progress.fresh_s is not None
    return replace(
        state,
        failures=failures,
        behind=progress.behind,
        behind_ms=progress.behind_ms,
        looked_s=progress.looked_s,
        retained_bytes=progress.retained_bytes,
        # Of a batch or round that does not end, the report before it says nothing.
        fresh_s=max(state.fresh_s, progress.fresh_s or 0.0) if known else state.fresh_s,
    )


def is_exhausted(state: Reading, found_s: float | None) -> bool:
    """Return whether a bounded feed has ended: nothing was found in it for its idleness.

    `found_s`: when rows of it were last found, by the clock of the looks. The time counts from when
    the reading began, so the feed was asked all the while: a source that was broken, or whose
    process was away, ends later, and never with rows in it that were not asked for.
    """
    if state.feed.idleness_us is None or state.looked_s is None:
        return False
    quiet_s = state.looked_s - max(state.since_s, found_s or state.since_s)
    return quiet_s > state.feed.idleness_us / MICROS


def broken(
    feed: Feed,
    before: FeedState | None,
    reason: str,
    now_s: float,
    fresh_s: float | None = None,
    owed_s: float = 0.0,
) -> Broken:
    """Return the state of a feed that has failed now; the rest as for `started`.

    `owed_s`: how long its limit holds it up behind what it has read.
    """
    if isinstance(before, Reading):
        before = seen(before, None, now_s)
    failures, total = _failures(before)
    pause_s = max(owed_s, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 30)))
    fresh_s = _fresh_s(before, now_s, fresh_s)
    return Broken(feed, reason, failures + 1, total + 1, now_s + pause_s, fresh_s)


def _fresh_s(before: FeedState | None, now_s: float, stored_s: float | None) -> float:
    if before is not None:
        return before.fresh_s
    return now_s if stored_s is None else min(now_s, stored_s)


def _failures(before: FeedState | None) -> tuple[int, int]:
    return (0, 0) if before is None else (before.failures, before.total_failures)


def messages_behind(end: Mapping[str, int], latest: Mapping[str, int]) -> int:
    """Return how many offsets of a stream are not read: `end` was read, partition by partition."""
    return sum(max(0, last - end.get(number, 0)) for number, last in latest.items())


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
