"""The host starts, stops and retries each stream on its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from fennel_core.blueprints.spec import Catalog
from fennel_core.connections.external_kafka import ExternalKafkaUnusable
from fennel_core.settings.model import Settings
from fennel_core.sources import feeds
from fennel_core.sources.feeds import Broken, Feed, Reading
from fennel_core.sources.host import SourceHost
from fennel_core.vocab.ids import TopicName
from tests.support.ingest_world import catalog
from tests.support.polling import eventually
from tests.support.source_world import RAW, stream_source

OTHER = TopicName("w.raw.other.1")
TWO = catalog(stream_source(), replace(stream_source("Others"), raw_topic=OTHER))


@dataclass
class Query:
    """A query that fails when a test says so."""

    reason: str | None = None
    stopped: bool = False

    def failure(self) -> str | None:
        return self.reason

    def stop(self) -> None:
        self.stopped = True


@dataclass
class Cluster:
    """What happens when a feed is started: an error, a delay, or a query."""

    refused: set[TopicName] = field(default_factory=set)
    hanging: dict[TopicName, threading.Event] = field(default_factory=dict)
    queries: dict[TopicName, list[Query]] = field(default_factory=dict)

    def start(self, feed: Feed) -> Query:
        topic = feed.raw_topic
        if topic in self.hanging:
            assert self.hanging[topic].wait(30)
        if topic in self.refused:
            raise ExternalKafkaUnusable("the cluster is away")
        self.queries.setdefault(topic, []).append(Query())
        return self.queries[topic][-1]


class Host(SourceHost):
    """A host over a list of catalogs, without database and Spark."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(Settings(), None)  # type: ignore[arg-type]  # the catalogs are given
        self.catalogs: list[Catalog] = []
        self._started = cluster.start  # type: ignore[method-assign,assignment]  # no Spark
        self._spark = object()  # type: ignore[assignment]  # not used

    async def _targets(self) -> list[Catalog]:
        return self.catalogs

    def state(self, topic: TopicName) -> object:
        return self._states.get(topic)

    def close(self) -> None:
        self._spark = None
        super().close()


@pytest.fixture
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Host, Cluster]]:
    monkeypatch.setattr("fennel_core.sources.host.LOOK_S", 0.01)
    monkeypatch.setattr(feeds, "FIRST_PAUSE_S", 0.01)
    cluster = Cluster()
    host = Host(cluster)
    task = asyncio.create_task(host.run(asyncio.Event()))
    yield host, cluster
    task.cancel()
    for hanging in cluster.hanging.values():
        hanging.set()
    host.close()


async def test_a_stream_starts_with_its_commit_and_ends_with_its_last_version(
    running: tuple[Host, Cluster],
) -> None:
    host, cluster = running
    host.catalogs = [TWO, TWO]
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    await eventually(lambda: isinstance(host.state(OTHER), Reading))
    host.catalogs = [catalog(stream_source())]
    await eventually(lambda: cluster.queries[OTHER][0].stopped and host.state(OTHER) is None)
    assert [len(cluster.queries[topic]) for topic in (RAW, OTHER)] == [1, 1]
    assert not cluster.queries[RAW][0].stopped


async def test_a_stream_that_fails_is_tried_again(running: tuple[Host, Cluster]) -> None:
    host, cluster = running
    cluster.refused = {RAW}
    host.catalogs = [TWO]
    await eventually(lambda: isinstance(s := host.state(RAW), Broken) and s.failures >= 2)
    assert "away" in getattr(host.state(RAW), "reason", "")
    cluster.refused = set()
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    first = cluster.queries[RAW][0]
    first.reason = "a batch failed"
    await eventually(lambda: len(cluster.queries[RAW]) == 2)
    assert first.stopped
    assert len(cluster.queries[OTHER]) == 1


async def test_a_cluster_that_hangs_holds_up_its_own_stream_only(
    running: tuple[Host, Cluster],
) -> None:
    host, cluster = running
    cluster.hanging[RAW] = threading.Event()
    host.catalogs = [TWO]
    await eventually(lambda: isinstance(host.state(OTHER), Reading))
    cluster.queries[OTHER][0].reason = "a batch failed"
    await eventually(lambda: len(cluster.queries[OTHER]) == 2)
    assert host.state(RAW) is None
    cluster.hanging[RAW].set()
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    assert len(cluster.queries[RAW]) == 1
