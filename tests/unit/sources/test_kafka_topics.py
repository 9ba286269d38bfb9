"""Where the reading of a topic begins, and when it is another topic than the one that was read."""

from __future__ import annotations

import pytest

from fennel_core.connections.external_kafka import ExternalTopic
from fennel_core.sources.errors import StreamReplaced
from fennel_core.sources.feeds import feeds_of
from fennel_core.sources.kafka_topics import starts_of
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.spark import EARLIEST
from tests.support.ingest_world import catalog
from tests.support.source_world import stream_source

(FEED,) = feeds_of([catalog(stream_source())]).values()
READ = SourcePosition(42, "cluster/a", rewinds=3)


def test_each_partition_begins_at_its_position_or_its_first_message() -> None:
    found = starts_of(FEED, ExternalTopic("cluster/a", 3), {1: READ})
    assert found == ({0: EARLIEST, 1: 42, 2: EARLIEST}, {0: 0, 1: 3, 2: 0})


def test_a_broker_may_not_know_yet_of_a_partition_that_was_read() -> None:
    found = starts_of(FEED, ExternalTopic("cluster/a", 1), {1: READ})
    assert found == ({0: EARLIEST}, {0: 0})


@pytest.mark.parametrize("partitions", [1, 2, 6])
def test_a_topic_that_is_created_again_is_noticed_whatever_its_partitions(partitions: int) -> None:
    with pytest.raises(StreamReplaced, match=r"`cluster/a`.*`cluster/b`"):
        starts_of(FEED, ExternalTopic("cluster/b", partitions), {5: READ})
