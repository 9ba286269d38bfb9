"""Rows of a feed are counted by its positions, which are read where they have moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from fennel_core.settings.model import Settings
from fennel_core.sources.feeds import Feed, feeds_of
from fennel_core.sources.positions import DatasetPosition, SourcePosition
from fennel_core.sources.row_counts import FeedRowCounts
from fennel_core.vocab.ids import Identity, Offset, PartitionIndex, TopicName, TopicPartition
from tests.support.ingest_world import catalog
from tests.support.source_world import RAW, stream_source

OTHER, OTHER_POSITIONS = TopicName("w.raw.other.1"), TopicName("w.positions.other.1")
FEEDS = feeds_of(
    [
        catalog(
            stream_source(),
            replace(stream_source("Others"), raw_topic=OTHER, positions=OTHER_POSITIONS),
        )
    ]
)


class Counts(FeedRowCounts):
    """Counts over positions in memory; notes which are read."""

    def __init__(self) -> None:
        super().__init__(Settings())
        self.ends: dict[TopicPartition, Offset] = {}
        self.accepted: dict[TopicName, list[int]] = {}
        self.asked: list[TopicName] = []

    def enter(self, topic: TopicName, *rows: int) -> None:
        """Let rows enter by a feed; `rows`: so many in all, of each partition of its stream."""
        at = (FEEDS[topic].positions, PartitionIndex(0))
        self.ends[at] = Offset(self.ends.get(at, 0) + 1)
        self.accepted[topic] = list(rows)

    def _log_ends(self, logs: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        return {at: self.ends.get(at, Offset(0)) for at in logs}

    def _positions(
        self, feeds: Collection[Feed]
    ) -> Mapping[TopicName, Mapping[int, SourcePosition]]:
        self.asked = [feed.raw_topic for feed in feeds]
        return {topic: self._of(topic) for topic in self.asked}

    def _of(self, topic: TopicName) -> dict[int, SourcePosition]:
        return {
            number: SourcePosition(
                next=rows,
                origin="",
                datasets={
                    Identity("one"): DatasetPosition(accepted=rows, late=5, dead=5),
                    Identity("two"): DatasetPosition(accepted=1),
                },
            )
            for number, rows in enumerate(self.accepted.get(topic, []))
        }


def test_rows_of_all_partitions_and_datasets_count_and_late_and_dead_ones_do_not() -> None:
    counts = Counts()
    counts.enter(RAW, 30, 2)
    assert counts.read(list(FEEDS.values())) == {RAW: 34, OTHER: 0}


def test_the_place_of_a_feed_moves_with_each_message_of_any_partition() -> None:
    counts = Counts()
    counts.enter(RAW, 30, 2)
    counts.read(list(FEEDS.values()))
    assert counts.places == {RAW: 32, OTHER: 0}
    counts.enter(RAW, 30, 3)
    assert counts.place(FEEDS[RAW]) == 33
    assert counts.places == {RAW: 32, OTHER: 0}, "what was counted is as it was"
    counts.read([FEEDS[RAW]])
    assert counts.places == {RAW: 33}


def test_positions_are_read_again_only_where_they_have_moved() -> None:
    counts = Counts()
    counts.enter(RAW, 1)
    counts.read(list(FEEDS.values()))
    assert counts.asked == [RAW, OTHER]
    counts.enter(OTHER, 7)
    assert counts.read(list(FEEDS.values())) == {RAW: 2, OTHER: 8}
    assert counts.asked == [OTHER]
    counts.asked = []
    assert counts.read(list(FEEDS.values())) == {RAW: 2, OTHER: 8}
    assert counts.asked == []


def test_a_feed_that_is_gone_is_forgotten_and_read_again_when_it_is_back() -> None:
    counts = Counts()
    counts.enter(OTHER, 7)
    counts.read(list(FEEDS.values()))
    assert counts.read([FEEDS[RAW]]) == {RAW: 0}
    counts.enter(OTHER, 9)
    assert counts.read(list(FEEDS.values())) == {RAW: 0, OTHER: 10}
    assert counts.read([]) == {}
