"""The host starts, stops and retries each stream on its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

import pytest
from py4j.protocol import Py4JError
from structlog.testing import capture_logs

from fennel_core.blueprints.spec import Catalog, SourceBinding
from fennel_core.connections.errors import JvmExited, SystemUnavailable
from fennel_core.connections.external_kafka import ExternalKafkaUnusable
from fennel_core.connectors.references import Access, remedy
from fennel_core.settings.model import Settings
from fennel_core.sources import feeds
from fennel_core.sources.change_slots import MemoryChangeSlots
from fennel_core.sources.controls import FeedNews, MemorySourceControls
from fennel_core.sources.errors import SourceError
from fennel_core.sources.feeds import Broken, Feed, FeedProgress, Reading
from fennel_core.sources.host import SourceHost
from fennel_core.sources.row_counts import FeedRowCounts
from fennel_core.telemetry import metrics
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.wire.connectors import (
    Kafka,
    KafkaTopic,
    Login,
    PlainSecret,
    SealedSecret,
    Table,
)
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
    raised: Exception | None = None
    """What each call raises."""
    reported: FeedProgress | None = None
    owed: float = 0.0

    def owed_s(self) -> float:
        return self.owed

    def failure(self) -> str | None:
        if self.raised is not None:
            raise self.raised
        return self.reason

    def progress(self) -> FeedProgress | None:
        return self.reported

    def stop(self) -> None:
        self.stopped = True
        if self.raised is not None:
            raise self.raised


@dataclass
class Cluster:
    """What happens when a feed is started: an error, a delay, or a query."""

    refused: dict[TopicName, Exception] = field(default_factory=dict)
    exited: bool = False
    """Whether the JVM has exited."""
    hanging: dict[TopicName, threading.Event] = field(default_factory=dict)
    queries: dict[TopicName, list[Query]] = field(default_factory=dict)

    def start(self, feed: Feed) -> Query:
        topic = feed.raw_topic
        if topic in self.hanging:
            assert self.hanging[topic].wait(30)
        if topic in self.refused:
            raise self.refused[topic]
        self.queries.setdefault(topic, []).append(Query())
        return self.queries[topic][-1]


class Places(FeedRowCounts):
    """How far each feed was read by all processes, as a test says."""

    def __init__(self) -> None:
        super().__init__(Settings())
        self.at: dict[TopicName, int] = {}
        self.asked = 0

    def place(self, feed: Feed) -> int:
        self.asked += 1
        return self.at.get(feed.raw_topic, 0)

    def read(self, feeds: Collection[Feed]) -> Mapping[TopicName, int]:
        self.places = {feed.raw_topic: self.place(feed) for feed in feeds}
        return {}


class Host(SourceHost):
    """A host over a list of catalogs, without database and Spark."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(Settings(), None)  # type: ignore[arg-type]  # the catalogs are given
        self.catalogs: list[Catalog] = []
        self.stored: dict[str, Access] = {}
        """Connectors that are stored by name."""
        self.lost: Exception | None = None
        """Why the catalogs cannot be read."""
        self._started = lambda feed, _: cluster.start(feed)  # type: ignore[method-assign,assignment]  # no Spark
        self._slots = MemoryChangeSlots()
        self._counts = self.places = Places()
        self._controls = MemorySourceControls(lambda: datetime.now(UTC), {RAW, OTHER})
        self._spark = object()  # type: ignore[assignment]  # not used
        self._catalogs = self  # type: ignore[assignment]  # no database

    async def read(self) -> list[Catalog]:
        if self.lost is not None:
            raise self.lost
        return self.catalogs

    def remedy(self, workspace: WorkspaceId, table: Table) -> str | None:
        assert workspace == catalog().workspace
        return remedy(table, self.stored)

    task: asyncio.Task[None]

    def state(self, topic: TopicName) -> object:
        return self._states.get(topic)


S = TypeVar("S", Reading, Broken)


def state_of(host: Host, kind: type[S]) -> S:
    """Return the state of the first stream, which is of this kind."""
    state = host.state(RAW)
    assert isinstance(state, kind)
    return state


@pytest.fixture
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Host, Cluster]]:
    monkeypatch.setattr("fennel_core.sources.host.LOOK_S", 0.01)
    monkeypatch.setattr(feeds, "FIRST_PAUSE_S", 0.01)
    cluster = Cluster()
    monkeypatch.setattr("fennel_core.sources.host.has_exited", lambda _: cluster.exited)
    host = Host(cluster)
    with capture_logs():
        host.task = asyncio.create_task(host.run(asyncio.Event()))
        yield host, cluster
        host.task.cancel()
    for hanging in cluster.hanging.values():
        hanging.set()


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
    cluster.refused = {RAW: ExternalKafkaUnusable("the cluster is away")}
    host.catalogs = [TWO]
    await eventually(lambda: isinstance(s := host.state(RAW), Broken) and s.failures >= 2)
    assert "away" in getattr(host.state(RAW), "reason", "")
    cluster.refused = {}
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    first = cluster.queries[RAW][0]
    first.reason = "a batch failed"
    await eventually(lambda: len(cluster.queries[RAW]) == 2)
    assert first.stopped
    assert len(cluster.queries[OTHER]) == 1


UNEXPECTED = [
    ValueError(),
    OSError(28, "No space left on device"),
    SourceError(""),
    Py4JError("An error occurred while calling o7.start"),
]


@pytest.mark.parametrize("unexpected", UNEXPECTED, ids=lambda each: repr(each)[:30])
async def test_an_unexpected_error_parks_its_stream_only(
    running: tuple[Host, Cluster], unexpected: Exception
) -> None:
    host, cluster = running
    cluster.refused = {RAW: unexpected}
    host.catalogs = [TWO]
    await eventually(lambda: isinstance(s := host.state(RAW), Broken) and s.failures >= 2)
    await eventually(lambda: isinstance(host.state(OTHER), Reading))
    assert type(unexpected).__name__ in (state_of(host, Broken).reason)
    cluster.refused = {}
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    first = cluster.queries[RAW][0]
    first.raised = unexpected
    await eventually(lambda: len(cluster.queries[RAW]) == 2)
    assert first.stopped
    assert (len(cluster.queries[OTHER]), host.task.done()) == (1, False)
    host.catalogs = []
    cluster.queries[OTHER][0].raised = unexpected
    await eventually(lambda: host.state(OTHER) is None and host.state(RAW) is None)


async def test_the_end_of_the_jvm_ends_the_host(running: tuple[Host, Cluster]) -> None:
    host, cluster = running
    host.catalogs = [TWO]
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    cluster.exited = True
    cluster.queries[RAW][0].raised = ConnectionRefusedError("no JVM")
    with pytest.raises(JvmExited, match="no JVM"):
        await asyncio.wait_for(host.task, 30)


@pytest.mark.parametrize("lost", [SystemUnavailable("no database"), ValueError("not a catalog")])
async def test_streams_are_looked_after_while_the_catalogs_cannot_be_read(
    running: tuple[Host, Cluster], lost: Exception
) -> None:
    host, cluster = running
    host.catalogs = [TWO]
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    host.lost = lost
    await eventually(lambda: host.problem is not None and str(lost) in host.problem)
    cluster.queries[RAW][0].reason = "a batch failed"
    await eventually(lambda: len(cluster.queries[RAW]) == 2)
    host.lost = None
    await eventually(lambda: host.problem is None)


async def test_a_batch_that_was_read_ends_the_failures_of_its_stream(
    running: tuple[Host, Cluster],
) -> None:
    host, cluster = running
    cluster.refused = {RAW: ExternalKafkaUnusable("the cluster is away")}
    host.catalogs = [TWO]
    await eventually(lambda: isinstance(host.state(RAW), Broken))
    cluster.refused = {}
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    assert state_of(host, Reading).failures >= 1
    cluster.queries[RAW][0].reported = FeedProgress(3)
    await eventually(lambda: state_of(host, Reading).failures == 0)
    (report,) = [each for each in host.report() if each.total_failures]
    assert (report.behind, report.reason) == (3, None)


async def test_a_host_ends_while_a_cluster_hangs(running: tuple[Host, Cluster]) -> None:
    host, cluster = running
    cluster.hanging[RAW] = threading.Event()
    host.catalogs = [TWO]
    await eventually(lambda: isinstance(host.state(OTHER), Reading))
    blocked = [each for each in threading.enumerate() if each.name == "feed"]
    assert blocked
    assert all(each.daemon for each in blocked), "a thread that is joined at the end"


async def test_a_limited_stream_that_fails_is_held_up_by_what_it_has_read(
    running: tuple[Host, Cluster],
) -> None:
    host, cluster = running
    host.catalogs = [TWO]
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    cluster.queries[RAW][0].owed = 1000.0
    cluster.queries[RAW][0].reason = cluster.queries[OTHER][0].reason = "a round failed"
    await eventually(lambda: len(cluster.queries[OTHER]) == 2)
    await eventually(lambda: isinstance(host.state(RAW), Broken))
    assert state_of(host, Broken).retry_s - time.monotonic() > 900
    assert len(cluster.queries[RAW]) == 1
    host.catalogs = [catalog(with_login("new"))]
    await eventually(lambda: len(cluster.queries[RAW]) == 2)


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


async def test_a_paused_stream_is_not_read_until_it_is_resumed(
    running: tuple[Host, Cluster],
) -> None:
    host, cluster = running
    host.catalogs = [TWO]
    await eventually(lambda: len(cluster.queries) == 2)
    await host._controls.pause([RAW], "token 1")
    await eventually(lambda: cluster.queries[RAW][0].stopped and host.state(RAW) is None)
    assert next((each.source, each.paused) for each in host.report()) == ("kafka/orders", True)
    assert not cluster.queries[OTHER][0].stopped
    await host._controls.resume([RAW])
    await eventually(lambda: len(cluster.queries[RAW]) == 2)
    assert isinstance(host.state(RAW), Reading)


async def test_a_stream_that_was_rewound_between_two_looks_is_started_again(
    running: tuple[Host, Cluster],
) -> None:
    host, cluster = running
    host.catalogs = [TWO]
    await eventually(lambda: len(cluster.queries) == 2)
    await host._controls.pause([RAW], "token 1")
    assert await host._controls.begin_generation(RAW)
    await host._controls.resume([RAW])
    await eventually(lambda: len(cluster.queries[RAW]) == 2)
    assert cluster.queries[RAW][0].stopped
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    assert [len(cluster.queries[topic]) for topic in (RAW, OTHER)] == [2, 1]


async def test_a_limit_restarts_its_stream_and_no_other(running: tuple[Host, Cluster]) -> None:
    host, cluster = running
    host.catalogs = [TWO]
    await eventually(lambda: len(cluster.queries) == 2)
    await host._controls.limit(RAW, 5.0, "token 1")
    await eventually(lambda: len(cluster.queries[RAW]) == 2)
    assert cluster.queries[RAW][0].stopped
    await eventually(
        lambda: [each.rows_per_s for each in host.report()] in ([5.0, None], [None, 5.0])
    )
    assert [len(cluster.queries[topic]) for topic in (RAW, OTHER)] == [2, 1]


async def test_a_stream_is_as_old_as_the_process_before_this_one_knew(
    running: tuple[Host, Cluster],
) -> None:
    host, _ = running
    news = [FeedNews(topic, 0, 3, None, None, unread_s=500.0) for topic in (RAW, OTHER)]
    await host._controls.report(news)
    host._fresh_s = None  # as a process that has just begun
    await host._controls.pause([OTHER], "token 1")
    host.catalogs = [TWO]
    await eventually(lambda: [each.stale_s is not None for each in host.report()].count(True) == 1)
    [stale] = [each.stale_s for each in host.report() if each.stale_s is not None]
    assert 500 <= stale < 600
    await host._controls.resume([OTHER])
    await eventually(lambda: isinstance(host.state(OTHER), Reading))
    found = host.state(OTHER)
    assert isinstance(found, Reading)
    assert time.monotonic() - found.fresh_s < 60, (
        "a stream that was paused counts from when it is resumed"
    )


async def test_the_rows_of_each_source_are_counted_also_after_kafka_was_away(
    running: tuple[Host, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennel_core.sources.host.COUNT_EVERY_S", 0.01)
    host, cluster = running
    cluster.refused = {OTHER: ExternalKafkaUnusable("the cluster is away")}
    failures: list[Exception] = [SystemUnavailable("Kafka"), ValueError("unexpected")]

    def read(feeds: list[Feed]) -> dict[TopicName, int]:
        if failures:
            raise failures.pop()
        return {feed.raw_topic: 34 for feed in feeds}

    monkeypatch.setattr(host._counts, "read", read)
    host.catalogs = [TWO]
    counting = asyncio.create_task(host.count())
    await eventually(lambda: [each.rows for each in host.report()] == [34, 34])

    async def stored() -> bool:
        return [each.rows for each in (await host._controls.statuses()).values()] == [34, 34]

    await eventually(stored)
    counting.cancel()
    labels = {"workspace": "w", "source": "kafka/orders"}
    await eventually(lambda: metrics.REGISTRY.get_sample_value("fennel_stream_failures", labels))


async def test_the_status_of_each_stream_is_stored(running: tuple[Host, Cluster]) -> None:
    host, cluster = running
    cluster.refused = {RAW: ExternalKafkaUnusable("the cluster is away")}
    host.catalogs = [TWO]

    async def told() -> bool:
        found = await host._controls.statuses()
        return found.keys() == {RAW, OTHER} and "away" in (found[RAW].reason or "")

    await eventually(told)
    assert (await host._controls.statuses())[OTHER].reason is None


async def test_new_credentials_start_their_stream_again_at_once_and_no_other(
    running: tuple[Host, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, cluster = running
    monkeypatch.setattr(feeds, "FIRST_PAUSE_S", 1000.0)
    monkeypatch.setattr(feeds, "LONGEST_PAUSE_S", 1000.0)
    database = with_login("old").source.table.db
    assert isinstance(database, Kafka)
    host.stored = {"kafka": database}
    other = replace(stream_source("Others"), raw_topic=OTHER)
    host.catalogs = [catalog(with_login("old"), other)]
    await eventually(lambda: len(cluster.queries) == 2)
    cluster.refused = {RAW: ExternalKafkaUnusable("authentication failed")}
    cluster.queries[RAW][0].reason = "authentication failed"
    await eventually(lambda: isinstance(host.state(RAW), Broken))
    assert [each.remedy for each in host.report()] == [
        "if its credentials have changed: fennel-core connector rotate kafka --secret "
        "sasl_plain_password=file:PATH",
        None,
    ]
    host.stored = {}
    assert "commit connector `kafka`" in (host.report()[0].remedy or "")
    cluster.refused = {}
    host.catalogs = [catalog(with_login("new"), other)]
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    assert [len(cluster.queries[topic]) for topic in (RAW, OTHER)] == [2, 1]
    assert not cluster.queries[OTHER][0].stopped


def with_login(fingerprint: str) -> SourceBinding:
    """Return a stream whose password has this fingerprint."""
    bound = stream_source()
    table = bound.source.table
    assert isinstance(table, KafkaTopic)
    assert isinstance(table.db, Kafka)
    db = replace(table.db, login=Login(PlainSecret("ann"), SealedSecret(fingerprint, "x")))
    return replace(bound, source=replace(bound.source, table=replace(table, db=db)))


async def test_a_stream_whose_end_cannot_be_stored_is_not_broken(
    running: tuple[Host, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, cluster = running
    refused, stored = 0, MemorySourceControls.end

    async def end(
        controls: MemorySourceControls, topic: TopicName, reopened_at: datetime | None
    ) -> bool:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise SystemUnavailable("no database")
        assert state_of(host, Reading).failures == 0
        return await stored(controls, topic, reopened_at)

    monkeypatch.setattr(MemorySourceControls, "end", end)
    of = stream_source()
    bounded = replace(of, source=replace(of.source, bounded=True, idleness_us=1))
    host.catalogs = [catalog(bounded)]
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    cluster.queries[RAW][0].reported = FeedProgress(0, looked_s=time.monotonic())
    await eventually(lambda: cluster.queries[RAW][0].stopped and host.state(RAW) is None)
    assert (refused, len(cluster.queries[RAW])) == (3, 1)


async def test_rows_that_another_process_finds_hold_off_the_end_of_a_stream(
    running: tuple[Host, Cluster],
) -> None:
    host, cluster = running
    of = stream_source()
    host.catalogs = [
        catalog(replace(of, source=replace(of.source, bounded=True, idleness_us=50_000)))
    ]
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    host.places.at[RAW], asked = 7, host.places.asked
    cluster.queries[RAW][0].reported = FeedProgress(0, looked_s=time.monotonic() + 0.05)
    await eventually(lambda: host.places.asked > asked)
    await asyncio.sleep(0.1)  # twice its idleness
    assert await host._controls.ends() == {}, "this process found nothing since it began"
    cluster.queries[RAW][0].reported = FeedProgress(0, looked_s=time.monotonic() + 0.05)
    await eventually(lambda: host.state(RAW) is None)
    assert len(cluster.queries[RAW]) == 1


async def test_rows_that_were_counted_hold_off_the_end_of_a_stream(
    running: tuple[Host, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, cluster = running
    monkeypatch.setattr("fennel_core.sources.host.COUNT_EVERY_S", 0.01)
    of = stream_source()
    host.catalogs = [
        catalog(replace(of, source=replace(of.source, bounded=True, idleness_us=50_000)))
    ]
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    counting = asyncio.create_task(host.count())
    began_s = time.monotonic()
    cluster.queries[RAW][0].reported = FeedProgress(0, looked_s=began_s + 0.05)
    while time.monotonic() < began_s + 0.2:
        host.places.at[RAW] = host.places.at.get(RAW, 0) + 1
        cluster.queries[RAW][0].reported = FeedProgress(0, looked_s=time.monotonic())
        await asyncio.sleep(0.01)  # a row now and then, for four times its idleness
    assert await host._controls.ends() == {}
    cluster.queries[RAW][0].reported = FeedProgress(0, looked_s=time.monotonic() + 1)
    await eventually(lambda: host.state(RAW) is None)
    counting.cancel()


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_stream_that_is_resumed_around_the_note_of_its_end_is_read_on(
    running: tuple[Host, Cluster], monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    host, cluster = running
    noted, stored = list[bool](), MemorySourceControls.end

    async def end(
        controls: MemorySourceControls, topic: TopicName, reopened_at: datetime | None
    ) -> bool:
        """Note the end behind a resume, or before one that comes between two looks."""
        if is_first:
            await controls.resume([topic])
        noted.append(await stored(controls, topic, reopened_at))
        if not is_first:
            await controls.resume([topic])
        return noted[-1]

    monkeypatch.setattr(MemorySourceControls, "end", end)
    of = stream_source()
    host.catalogs = [
        catalog(replace(of, source=replace(of.source, bounded=True, idleness_us=50_000)))
    ]
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    cluster.queries[RAW][0].reported = FeedProgress(0, looked_s=time.monotonic() + 1)
    await eventually(lambda: len(cluster.queries[RAW]) == 2)
    assert noted == [not is_first]
    assert (await host._controls.ends())[RAW].ended_at is None
    await eventually(lambda: isinstance(host.state(RAW), Reading))


async def test_a_bounded_stream_ends_when_it_was_asked_in_vain_and_is_resumed(
    running: tuple[Host, Cluster],
) -> None:
    host, cluster = running
    of = stream_source()
    bounded = replace(of, source=replace(of.source, bounded=True, idleness_us=50_000))
    host.catalogs = [catalog(bounded)]
    await eventually(lambda: isinstance(host.state(RAW), Reading))
    cluster.queries[RAW][0].reported = FeedProgress(1)
    await asyncio.sleep(0.1)  # twice its idleness
    assert isinstance(host.state(RAW), Reading)
    cluster.queries[RAW][0].reported = FeedProgress(0, looked_s=time.monotonic())
    await eventually(lambda: cluster.queries[RAW][0].stopped and host.state(RAW) is None)
    assert [(each.ended, each.paused) for each in host.report()] == [(True, False)]
    await host._controls.resume([RAW])
    await eventually(lambda: len(cluster.queries[RAW]) == 2)
    cluster.queries[RAW][1].reported = FeedProgress(0, looked_s=time.monotonic() + 1)
    await eventually(lambda: [each.ended for each in host.report()] == [True])
    host.catalogs = [catalog(of)]
    await eventually(lambda: len(cluster.queries[RAW]) == 3)
    assert (await host._controls.ends())[RAW].ended_at is None
