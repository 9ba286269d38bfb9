"""The topics of users' Kafka clusters as a kind of stream: where to begin, and its query."""

from __future__ import annotations

from fennel_core.connections.external_kafka import describe_topic, opened
from fennel_core.connections.stored_connectors import required
from fennel_core.sources.errors import StreamReplaced
from fennel_core.sources.kafka import read_positions
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
    positions: dict[bytes, SourcePosition] = {}
    for number in range(min(feed.partitions, topic.partitions)):
        positions |= read_positions(by.settings, feed.positions, number)
    starts: dict[int, int] = {}
    rewinds: dict[int, int] = {}
    for number in range(topic.partitions):
        position = positions.get(feed.partition(number).key)
        if position is not None and position.origin != topic.origin:
            raise StreamReplaced(feed.title, position.origin, topic.origin)
        starts[number] = EARLIEST if position is None else position.next
        rewinds[number] = 0 if position is None else position.rewinds
    return start_query(
        by.spark, by.settings, feed, kafka, topic.origin, starts, rewinds, by.count_rows
    )
