"""How many rows entered from each feed in all, by the positions that are stored with the rows.

So a count is exact, whatever is killed. Positions are read again only where their topic has grown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fennel_core.connections.committed_records import log_ends
from fennel_core.settings.model import Settings
from fennel_core.sources.feeds import Feed
from fennel_core.sources.kafka import positions_of_feeds
from fennel_core.sources.positions import SourcePosition
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition, partition_indexes


def accepted_rows(positions: Iterable[SourcePosition]) -> int:
    """Return how many rows entered the datasets of a feed, from the positions of its partitions."""
    return sum(each.accepted for position in positions for each in position.datasets.values())


def place_of(positions: Iterable[SourcePosition]) -> int:
    """Return how far a feed was read: a number that each message moves, whatever became of it."""
    return sum(position.next for position in positions)


class FeedRowCounts:
    """Counts. Use `read` from one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ends: Mapping[TopicPartition, Offset] = {}
        self._rows: dict[TopicName, int] = {}
        self.places: Mapping[TopicName, int] = {}
        """How far each feed was read by any process, when it was counted last."""

    def read(self, feeds: Collection[Feed]) -> Mapping[TopicName, int]:
        """Return the rows of feeds by raw topic; blocks. Raises `SystemUnavailable`."""
        ends = self._log_ends([at for feed in feeds for at in _logs(feed)])
        grown = [
            feed
            for feed in feeds
            if feed.raw_topic not in self._rows
            or any(ends[at] != self._ends.get(at) for at in _logs(feed))
        ]
        found = self._positions(grown) if grown else {}
        rows = self._rows | {t: accepted_rows(each.values()) for t, each in found.items()}
        places = {**self.places} | {t: place_of(each.values()) for t, each in found.items()}
        self._rows = {feed.raw_topic: rows[feed.raw_topic] for feed in feeds}
        self.places = {feed.raw_topic: places[feed.raw_topic] for feed in feeds}
        # What was written since these ends is read again.
        self._ends = ends
        return self._rows

    def place(self, feed: Feed) -> int:
        """Return how far a feed was read by now; blocks. Raises `SystemUnavailable`."""
        return place_of(self._positions([feed])[feed.raw_topic].values())

    def _log_ends(self, logs: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        return log_ends(self._settings, logs) if logs else {}

    def _positions(
        self, feeds: Collection[Feed]
    ) -> Mapping[TopicName, Mapping[int, SourcePosition]]:
        return positions_of_feeds(self._settings, feeds)


def _logs(feed: Feed) -> list[TopicPartition]:
    return [(feed.positions, number) for number in partition_indexes(feed.partitions)]
