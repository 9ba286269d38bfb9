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


class FeedRowCounts:
    """Counts. Use from one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ends: Mapping[TopicPartition, Offset] = {}
        self._rows: dict[TopicName, int] = {}

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
        counted = {topic: accepted_rows(each.values()) for topic, each in found.items()}
        rows = self._rows | counted
        self._rows = {feed.raw_topic: rows[feed.raw_topic] for feed in feeds}
        # What was written since these ends is read again.
        self._ends = ends
        return self._rows

    def _log_ends(self, logs: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        return log_ends(self._settings, logs) if logs else {}

    def _positions(
        self, feeds: Collection[Feed]
    ) -> Mapping[TopicName, Mapping[int, SourcePosition]]:
        return positions_of_feeds(self._settings, feeds)


def _logs(feed: Feed) -> list[TopicPartition]:
    return [(feed.positions, number) for number in partition_indexes(feed.partitions)]
