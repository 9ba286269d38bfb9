"""The topics of users' Kafka clusters as a kind of stream: where to begin, and its query."""

from __future__ import annotations

from collections.abc import Mapping

from fennel_core.connections.external_kafka import ExternalTopic, describe_topic, opened
from fennel_core.connections.stored_connectors import required
from fennel_core.sources.errors import StreamReplaced
from fennel_core.sources.feeds import Feed
from fennel_core.sources.kafka import positions_of_feeds
from fennel_core.sources.kinds import StartedBy
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.spark import EARLIEST, FeedQuery, start_query
from fennel_core.wire.connectors import Kafka, KafkaTopic


def start(by: StartedBy, table: KafkaTopic) -> FeedQuery:
    """Start to read a topic at the positions of its partitions; blocks.

    Raises `ConnectionsError`, `SourceError` and the errors of Spark and Kafka.
    """
    feed = by.feed
    kafka = opened(required(Kafka, table.db), lambda secret: by.open_secret(feed.workspace, secret))
    topic = describe_topic(kafka, table.topic)
    positions = positions_of_feeds(by.settings, [feed])[feed.raw_topic]
    starts, rewinds = starts_of(feed, topic, positions)
    return start_query(
        by.spark, by.settings, feed, kafka, topic.origin, starts, rewinds, by.count_rows
    )


def starts_of(
    feed: Feed, topic: ExternalTopic, positions: Mapping[int, SourcePosition]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the next offset of each partition of a topic, and the rewinds of its position.

    `positions`: all of the feed, by partition. A partition without messages has none, and a topic
    that is created again may have fewer partitions, so each of them names the stream that was read.
    Raises `StreamReplaced`.
    """
    for position in positions.values():
        if position.origin != topic.origin:
            raise StreamReplaced(feed.title, position.origin, topic.origin)
    starts = dict.fromkeys(range(topic.partitions), EARLIEST)
    rewinds = dict.fromkeys(starts, 0)
    for number in starts.keys() & positions.keys():
        starts[number], rewinds[number] = positions[number].next, positions[number].rewinds
    return starts, rewinds
