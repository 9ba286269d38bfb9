"""What users order about sources, and what the process that reads them reports.

A source is known by the raw topic that it is written to, which all branches share. A pause is
kept until it is lifted, whatever is restarted, and with the raw topic if a version removes the
source and a later one revives it; so is a *limit*, which says how many rows may be read per second.
The *generation* of a source counts the steps of its rewinds: a query that began at another one may
not have seen them, however short the pause was. A bounded source *ends* when nothing was found in
it for its idleness, and is not read any more until it is resumed or rewound. From each resume its
idleness counts again: an end that was noticed before a resume is not noted after it. A status says
how the source was when the process last looked; nothing is decided by it.
`postgres.py` is the real implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from fennel_core.vocab.ids import Identity, TopicName, WorkspaceId


@dataclass(frozen=True, slots=True)
class SourcePause:
    """Who paused a source, and when."""

    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """When a bounded source has ended; idleness counts from when it was last reopened, if ever.

    A resume reopens a source, whether it has ended or not.
    """

    ended_at: datetime | None
    """None if it was read on since."""
    reopened_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SourceLimit:
    """How many rows per second may be read of a source, who said so, and when."""

    rows_per_s: float
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class FeedNews:
    """What the process says about a source now. `reason`: why it is parked, else None.

    `behind`: messages that are not read yet; None if not known. `retry_s`: seconds from now until a
    parked source is tried again. `behind_ms`: how far it is behind where messages have no numbers.
    """

    raw_topic: TopicName
    failures: int
    behind: int | None
    reason: str | None
    retry_s: float | None
    behind_ms: int | None = None
    unread_s: float | None = None
    """For how long it was not read to its end, of a table since a run did; None if not known."""


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """The last report about a source, and how old it is.

    `reason` without `failures`: it is read, but too seldom, or not all of it.
    """

    failures: int
    behind: int | None
    reason: str | None
    retry_at: datetime | None
    age_s: float
    behind_ms: int | None = None
    unread_s: float | None = None
    """As that of `FeedNews`, until now."""
    rows: int | None = None
    """Rows that entered in all, or changes that a sink has written; None if not counted yet."""


class SourceControls(Protocol):
    """The stored pauses and statuses. Every method raises `SystemUnavailable`."""

    async def pauses(self) -> Mapping[TopicName, SourcePause]:
        """Return the sources that are paused."""
        ...

    async def pause(self, topics: Collection[TopicName], by: str) -> None:
        """Pause sources; those that are paused keep who paused them and when."""
        ...

    async def resume(self, topics: Collection[TopicName]) -> None:
        """Lift the pauses of sources, and reopen them."""
        ...

    async def limits(self) -> Mapping[TopicName, SourceLimit]:
        """Return the limits of sources; the others have none."""
        ...

    async def limit(self, topic: TopicName, rows_per_s: float | None, by: str) -> None:
        """Replace the limit of a source; None removes it."""
        ...

    async def ends(self) -> Mapping[TopicName, SourceEnd]:
        """Return the ends of bounded sources, also of those that were read on afterwards."""
        ...

    async def end(self, topic: TopicName, reopened_at: datetime | None = None) -> bool:
        """End a source; return False, and change nothing, if it has ended or was reopened since.

        `reopened_at`: when it was last reopened, as far as the caller knew when it noticed the end.
        """
        ...

    async def reopen(self, topics: Collection[TopicName]) -> None:
        """Let sources that have ended be read on."""
        ...

    async def silences(self, workspace: WorkspaceId) -> Mapping[Identity, float]:
        """Return for how many seconds no row was accepted, of each source by `log` that had one."""
        ...

    async def begin_generation(self, topic: TopicName) -> bool:
        """Begin the next generation of a source, and reopen it if it has ended.

        Return False, and change nothing, if it is not paused.
        """
        ...

    async def generations(self) -> Mapping[TopicName, int]:
        """Return the generation of each source that was ever rewound; the others have 0."""
        ...

    async def report(self, news: Sequence[FeedNews]) -> None:
        """Replace the statuses of these sources; topics that are gone are left out."""
        ...

    async def count(self, rows: Mapping[TopicName, int]) -> None:
        """Store how many rows there were in all; of sources that were never reported, nothing."""
        ...

    async def statuses(self) -> Mapping[TopicName, FeedStatus]:
        """Return the last status of each source that was ever read."""
        ...


@dataclass(slots=True)
class MemorySourceControls:
    """In-memory `SourceControls`; `topics` are those that exist."""

    now: Callable[[], datetime]
    topics: Collection[TopicName]
    _pauses: dict[TopicName, SourcePause] = field(default_factory=dict)
    _limits: dict[TopicName, SourceLimit] = field(default_factory=dict)
    _generations: dict[TopicName, int] = field(default_factory=dict)
    _news: dict[TopicName, tuple[FeedNews, datetime]] = field(default_factory=dict)
    _rows: dict[TopicName, int] = field(default_factory=dict)
    _ends: dict[TopicName, SourceEnd] = field(default_factory=dict)
    silent: dict[WorkspaceId, dict[Identity, float]] = field(default_factory=dict)

    async def pauses(self) -> Mapping[TopicName, SourcePause]:
        return dict(self._pauses)

    async def pause(self, topics: Collection[TopicName], by: str) -> None:
        for topic in topics:
            if topic in self.topics:
                self._pauses.setdefault(topic, SourcePause(by, self.now()))

    async def resume(self, topics: Collection[TopicName]) -> None:
        for topic in topics:
            self._pauses.pop(topic, None)
            if topic in self.topics:
                self._ends[topic] = SourceEnd(None, self.now())

    async def limits(self) -> Mapping[TopicName, SourceLimit]:
        return dict(self._limits)

    async def limit(self, topic: TopicName, rows_per_s: float | None, by: str) -> None:
        if rows_per_s is None:
            self._limits.pop(topic, None)
        elif topic in self.topics:
            self._limits[topic] = SourceLimit(rows_per_s, by, self.now())

    async def ends(self) -> Mapping[TopicName, SourceEnd]:
        return dict(self._ends)

    async def end(self, topic: TopicName, reopened_at: datetime | None = None) -> bool:
        before = self._ends.get(topic, SourceEnd(None))
        if topic not in self.topics or before != SourceEnd(None, reopened_at):
            return False
        self._ends[topic] = SourceEnd(self.now(), reopened_at)
        return True

    async def reopen(self, topics: Collection[TopicName]) -> None:
        for topic in topics:
            if topic in self._ends and self._ends[topic].ended_at is not None:
                self._ends[topic] = SourceEnd(None, self.now())

    async def silences(self, workspace: WorkspaceId) -> Mapping[Identity, float]:
        return dict(self.silent.get(workspace, {}))

    async def begin_generation(self, topic: TopicName) -> bool:
        if topic not in self._pauses:
            return False
        self._generations[topic] = self._generations.get(topic, 0) + 1
        await self.reopen([topic])
        return True

    async def generations(self) -> Mapping[TopicName, int]:
        return dict(self._generations)

    async def report(self, news: Sequence[FeedNews]) -> None:
        now = self.now()
        self._news |= {
            each.raw_topic: (each, now) for each in news if each.raw_topic in self.topics
        }

    async def count(self, rows: Mapping[TopicName, int]) -> None:
        self._rows |= {topic: number for topic, number in rows.items() if topic in self._news}

    async def statuses(self) -> Mapping[TopicName, FeedStatus]:
        now = self.now()
        return {
            topic: FeedStatus(
                news.failures,
                news.behind,
                news.reason,
                None if news.retry_s is None else at + timedelta(seconds=news.retry_s),
                (now - at).total_seconds(),
                news.behind_ms,
                None if news.unread_s is None else news.unread_s + (now - at).total_seconds(),
                self._rows.get(topic),
            )
            for topic, (news, at) in self._news.items()
        }
