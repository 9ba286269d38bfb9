"""Each sink is written, parked and stopped on its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from fennel_core.blueprints.spec import Catalog, SinkBinding
from fennel_core.connections.external_kafka import ExternalKafkaUnusable
from fennel_core.connectors.references import remedy
from fennel_core.redrive.sink_replays import MemorySinkReplays, SinkReplay
from fennel_core.settings.model import Settings
from fennel_core.sinks import host as sinks_host
from fennel_core.sinks import targets
from fennel_core.sinks.controls import MemorySinkControls, RewindOrder
from fennel_core.sinks.errors import SinkEndpointUnavailable, SinkErasuresLost, SinkStopped
from fennel_core.sinks.host import SinkHost, SinkThread
from fennel_core.sinks.targets import SinkTarget, pause_s, targets_of
from fennel_core.sinks.writer import NO_ERASURES, KeyErasures, SinkWriter
from fennel_core.sources.controls import MemorySourceControls
from fennel_core.telemetry import metrics
from fennel_core.vocab.ids import DatasetName, PartitionIndex, TopicName, WorkspaceId
from fennel_core.vocab.keys import key_bytes
from fennel_core.wire.connectors import (
    S3,
    Cdc,
    JsonFormat,
    Kafka,
    KafkaTopic,
    Login,
    PlainSecret,
    S3Table,
    Sink,
    Table,
)
from tests.support.polling import eventually
from tests.support.sink_world import USERS, MemoryTopic, SinkWorld, frame

CONNECTOR = Kafka("kafka", "broker:9092", "PLAINTEXT", "PLAIN", None, "", Login(None, None))
SHOP = WorkspaceId("shop")


def binding(topic: str, name: str, connector: Kafka = CONNECTOR) -> SinkBinding:
    table = KafkaTopic(connector, topic, JsonFormat())
    sink = Sink(
        DatasetName("Users"), 1, table, Cdc.DEBEZIUM, None, None, False, False, (), None, None
    )
    place = (sink, DatasetName("Users"), USERS, (), TopicName("shop.topic.users.1"))
    return SinkBinding(TopicName(name), *place)


def catalog(*sinks: SinkBinding) -> Catalog:
    return Catalog(SHOP, (), (), (), 1, sinks)


ONE, TWO = binding("one", "shop.sink.a.1"), binding("two", "shop.sink.b.1")


def slowly() -> int:
    """Return how many messages a read takes; wait as a consumer does."""
    time.sleep(0.005)  # or idle threads of sinks would use all of a core
    return 1


@dataclass
class Listed:
    """The catalogs, without a database."""

    found: list[Catalog]
    reads: int = 0

    async def read(self) -> list[Catalog]:
        self.reads += 1
        return self.found

    def remedy(self, workspace: WorkspaceId, table: Table) -> str | None:
        return remedy(table, {"kafka": CONNECTOR} if workspace == SHOP else {})


class Host(SinkHost):
    """A host without database and Kafka; sinks into `broken` topics cannot be reached."""

    def __init__(self) -> None:
        super().__init__(Settings(), None)  # type: ignore[arg-type]  # nothing is asked
        self.listed = Listed([])
        self.controls = MemorySourceControls(
            lambda: datetime.now(UTC), {ONE.positions, TWO.positions}
        )
        self._controls = self.controls
        self.orders = MemorySinkControls(lambda: datetime.now(UTC), {ONE.positions, TWO.positions})
        self._replay_orders = MemorySinkReplays({ONE.positions, TWO.positions})
        self._orders = self.orders
        self._catalogs = self.listed  # type: ignore[assignment]  # no database
        self.broken: set[str] = set()
        self.panics: list[BaseException] = []
        self.worlds: dict[str, SinkWorld] = {}

    def writer(self, target: SinkTarget, stopping: threading.Event) -> SinkWriter[Any]:
        del stopping
        place = target.place.name
        if place in self.broken:
            raise ExternalKafkaUnusable("the cluster is away")
        if self.panics:
            raise self.panics.pop()
        topic = MemoryTopic([[frame([(1, 10, 5, 1, 1)])]], slowly)
        return self.worlds.setdefault(place, SinkWorld(topic)).writer()

    async def _wake(self, changed: asyncio.Event) -> None:
        """Nothing notifies."""

    def reasons(self) -> dict[str, str | None]:
        return {each.sink: each.reason for each in self.report()}

    def written(self) -> dict[str, int | None]:
        return {each.sink: each.events for each in self.report()}


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    async def none(_: object) -> dict[object, int]:
        return {}

    monkeypatch.setattr(sinks_host.erasures, "newest", none)
    monkeypatch.setattr(sinks_host, "LOOK_S", 0.01)
    monkeypatch.setattr(sinks_host, "STOPPING_S", 0.01)
    monkeypatch.setattr(targets, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(targets, "LONGEST_PAUSE_S", 0.05)
    host = Host()
    with capture_logs():
        task = asyncio.create_task(host.run())
        yield host
        task.cancel()
        await asyncio.to_thread(host.close)


async def test_a_broken_sink_holds_up_no_other_and_is_tried_again(host: Host) -> None:
    host.broken.add("one")
    host.listed.found = [catalog(ONE, TWO)]
    await eventually(lambda: host.written().get("kafka/two") == 1, within_s=20)
    await eventually(lambda: host.reasons().get("kafka/one") == "the cluster is away", within_s=20)
    assert host.reasons()["kafka/two"] is None
    assert host.report()[0].sink == "kafka/one", "the broken ones come first"
    host.broken.clear()
    await eventually(lambda: host.written()["kafka/one"] == 1, within_s=20)
    assert host.reasons() == {"kafka/one": None, "kafka/two": None}


async def test_a_sink_ends_with_its_last_version(host: Host) -> None:
    host.listed.found = [catalog(ONE), catalog(ONE, TWO)]
    await eventually(lambda: len(host.report()) == 2, within_s=20)
    host.listed.found = [catalog(ONE)]
    await eventually(lambda: list(host.written()) == ["kafka/one"], within_s=20)


async def test_a_paused_sink_is_not_written_and_goes_on_where_it_was(host: Host) -> None:
    await host.orders.pause((SHOP, "kafka/one"), "ann")
    host.listed.found = [catalog(ONE, TWO)]
    await eventually(lambda: host.written().get("kafka/two") == 1, within_s=20)
    assert [each.sink for each in host.report() if each.paused] == ["kafka/one"]
    assert "one" not in host.worlds
    await host.orders.resume((SHOP, "kafka/one"))
    await eventually(lambda: host.written().get("kafka/one") == 1, within_s=20)
    await host.orders.pause((SHOP, "kafka/one"), "ann")
    await eventually(lambda: ONE.positions not in host._running, within_s=20)
    await host.orders.resume((SHOP, "kafka/one"))
    await eventually(lambda: host.written().get("kafka/one") == 1, within_s=20)
    assert len(host.worlds["one"].log.records) == 1, "written once"


async def test_a_version_with_another_content_is_paused_as_the_one_before(host: Host) -> None:
    await host.orders.pause((SHOP, "kafka/one"), "ann")
    host.listed.found = [catalog(binding("one", "shop.sink.new.1"), TWO)]
    await eventually(lambda: host.written().get("kafka/two") == 1, within_s=20)
    assert "one" not in host.worlds


async def test_a_sink_is_written_again_once_for_each_rewind(host: Host) -> None:
    host.listed.found = [catalog(ONE)]
    await eventually(lambda: host.written().get("kafka/one") == 1, within_s=20)
    world = host.worlds["one"]
    for times in (2, 3):
        await host.orders.rewind([RewindOrder(ONE.positions, {0: 0}, False)])
        await eventually(lambda times=times: len(world.log.records) == times, within_s=20)
    reads = host.listed.reads
    await eventually(lambda: host.listed.reads > reads + 3, within_s=20)
    assert len(world.log.records) == 3
    assert host.reasons() == {"kafka/one": None}


async def test_a_rewind_is_pending_until_the_sink_has_carried_it_out(host: Host) -> None:
    await host.orders.pause((SHOP, "kafka/one"), "ann")
    await host.orders.rewind([RewindOrder(ONE.positions, {0: 0}, False)])
    at = (TopicName("shop.dead.x.1"), PartitionIndex(0))
    await host._replay_orders.order([SinkReplay(ONE.positions, at, 3, (0, 2**40))])
    host.listed.found = [catalog(ONE, TWO)]

    def shown() -> dict[str, tuple[bool, bool, int]]:
        return {each.sink: (each.paused, each.rewinding, each.replays) for each in host.report()}

    waiting = {"kafka/one": (True, True, 1), "kafka/two": (False, False, 0)}
    await eventually(lambda: shown() == waiting, within_s=20)
    assert ONE.positions in await host.orders.pending()
    await host._replay_orders.end([SinkReplay(ONE.positions, at, 3, None)])
    await host.orders.resume((SHOP, "kafka/one"))
    await eventually(lambda: shown().get("kafka/one") == (False, False, 0), within_s=20)
    assert not await host.orders.pending()


async def test_the_end_of_a_rewind_is_noted_without_a_wait(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.listed.found = [catalog(ONE)]
    await eventually(lambda: host.written().get("kafka/one") == 1, within_s=20)
    await host.orders.rewind([RewindOrder(ONE.positions, {0: 0}, False)])
    host._rewinds = await host.orders.rewinds()
    monkeypatch.setattr(sinks_host, "LOOK_S", 3600.0)

    async def noted() -> bool:
        return not await host.orders.pending()

    await eventually(noted, within_s=20)


async def test_the_host_reports_what_lists_of_sinks_show(host: Host) -> None:
    host.broken.add("one")
    host.listed.found = [catalog(ONE, TWO)]
    await eventually(lambda: host.written().get("kafka/two") == 1, within_s=20)

    async def reasons() -> dict[str, str | None]:
        statuses = await host.controls.statuses()
        return {name: status.reason for name, status in statuses.items()}

    wanted = {ONE.positions: "the cluster is away", TWO.positions: None}

    async def reported() -> bool:
        return await reasons() == wanted

    await eventually(reported, within_s=20)

    async def counted() -> bool:
        return [each.rows for each in (await host.controls.statuses()).values()] == [None, 1]

    await eventually(counted, within_s=20)
    broken = metrics.REGISTRY.get_sample_value(
        "fennel_sink_failures", {"workspace": SHOP, "dataset": "Users", "sink": "kafka/one"}
    )
    assert broken


async def test_the_lag_of_a_broken_sink_is_not_known(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"workspace": SHOP, "dataset": "Users", "sink": "kafka/one"}

    def behind() -> float | None:
        return metrics.REGISTRY.get_sample_value("fennel_sink_behind_messages", labels)

    def refuse(*_: object) -> None:
        raise ExternalKafkaUnusable("the cluster is away")

    host.listed.found = [catalog(ONE)]
    await eventually(lambda: behind() == 0, within_s=20)
    monkeypatch.setattr(host, "erasures_of", refuse)
    await eventually(lambda: behind() is None, within_s=20)
    assert host.report()[0].behind is None


async def test_a_changed_connector_starts_the_sink_again_where_it_was(host: Host) -> None:
    host.listed.found = [catalog(ONE)]
    await eventually(lambda: host.written().get("kafka/one") == 1, within_s=20)
    epoch = host.worlds["one"].log.epoch
    moved = replace(CONNECTOR, login=Login(None, None), security_protocol="SASL_SSL")
    host.listed.found = [catalog(binding("one", ONE.positions, moved))]
    await eventually(lambda: host.worlds["one"].log.epoch > epoch, within_s=20)
    assert len(host.worlds["one"].log.records) == 1


class Panic(BaseException):
    """A panic of a native library is no `Exception`."""


async def test_a_sink_goes_on_after_a_panic_and_a_close_that_fails(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: SinkWriter[Any]) -> None:
        raise Panic

    faults = ["before"]
    topic = MemoryTopic([[frame([(1, 10, 5, 1, 1)])]], slowly)
    host.worlds["one"] = SinkWorld(topic, fault=lambda: faults.pop() if faults else None)
    monkeypatch.setattr(SinkWriter, "close", fail)
    (target,) = targets_of([catalog(ONE)]).values()
    thread = host._running[ONE.positions] = SinkThread(host, target)
    host.panics = [Panic("index out of bounds")]
    thread.start()
    host.listed.found = [catalog(ONE)]
    await eventually(lambda: host.written().get("kafka/one") == 1, within_s=20)
    assert host._running[ONE.positions] is thread, "it was parked and went on"
    assert not host.panics
    assert not faults


async def test_a_thread_that_ended_is_started_again(host: Host) -> None:
    (target,) = targets_of([catalog(ONE)]).values()
    dead = SinkThread(host, target)
    host._running[ONE.positions] = dead
    assert host.reasons() == {"kafka/one": "its thread has ended; it is started again"}
    host.listed.found = [catalog(ONE)]
    await eventually(lambda: host.written().get("kafka/one") == 1, within_s=20)
    assert host._running[ONE.positions].is_alive()


async def test_a_new_version_waits_until_the_old_one_has_stopped_writing(host: Host) -> None:
    inside, gate = threading.Event(), threading.Event()

    def held() -> int:
        inside.set()
        gate.wait(20)
        return slowly()

    host.worlds["one"] = SinkWorld(MemoryTopic([[frame([(1, 10, 5, 1, 1)])]], held))
    host.listed.found = [catalog(ONE)]
    await asyncio.to_thread(inside.wait, 20)
    host.listed.found = [catalog(binding("one", "shop.sink.new.1"))]
    reads = host.listed.reads
    await eventually(lambda: host.listed.reads > reads + 3, within_s=20)
    assert list(host._running) == [ONE.positions]
    gate.set()
    await eventually(lambda: list(host._running) == ["shop.sink.new.1"], within_s=20)


async def test_erasures_are_read_again_if_the_sink_knows_later_ones(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(4, ("user",), b"key")]

    async def numbered(*_: object) -> list[tuple[int, tuple[str, ...], bytes]]:
        return found

    monkeypatch.setattr(sinks_host.erasures, "numbered", numbered)
    await eventually(lambda: host.listed.reads > 0, within_s=20)
    (target,) = targets_of([catalog(ONE)]).values()
    again = await asyncio.to_thread(host.erasures_of, target, NO_ERASURES, 4)
    assert again == KeyErasures(4, found)
    assert host.erasures_of(target, again, 4) is again
    with pytest.raises(SinkErasuresLost, match=r"erasures up to 5, but the last .* is 4"):
        await asyncio.to_thread(host.erasures_of, target, again, 5)


def table(name: str, every_us: int | None, connector: str = "lake") -> SinkBinding:
    to = S3Table(
        S3(connector, None, Login(None, None)), "lake", "users/", "", "delta", "", (), False, None
    )
    return replace(
        binding("one", name), sink=replace(ONE.sink, table=to, cdc=None, every_us=every_us)
    )


def test_a_table_is_written_now_and_then_and_a_topic_at_once() -> None:
    found = targets_of([catalog(ONE, table("shop.sink.c.1", 5_000_000), table("d", None, "b"))])
    topic, often, seldom = found.values()
    assert (topic.rest_s, often.rest_s, seldom.rest_s) == (0, 5, targets.DELTA_EVERY_S)
    assert often.title == "lake/lake/users"
    assert often.shared == seldom.shared, "they write one table"
    assert often.shared != topic.shared


async def test_a_sink_that_rests_writes_erasures_at_once(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered: list[tuple[int, tuple[str, ...], bytes]] = []

    async def all_of(*_: object) -> list[tuple[int, tuple[str, ...], bytes]]:
        return numbered

    async def newest(_: object) -> dict[object, int]:
        return {(SHOP, DatasetName("Users")): len(numbered)}

    monkeypatch.setattr(sinks_host.erasures, "numbered", all_of)
    monkeypatch.setattr(sinks_host.erasures, "newest", newest)
    host.listed.found = [catalog(table("shop.sink.c.1", 600_000_000))]
    await eventually(lambda: host.written().get("lake/lake/users") == 1, within_s=20)
    world = host.worlds["lake/users"]
    world.topic.partitions = [[*world.topic.partitions[0], frame([(2, 20, 6, 2, 1)])]]
    (thread,) = host._running.values()
    thread.join(0.2)  # long enough for a sink that does not rest
    assert len(world.log.records) == 1
    (key,) = key_bytes(frame([(1, 0, 0, 0, 1)]), ["user"])
    numbered.append((1, ("user",), key))
    # And the row that was due is not put off by another rest.
    await eventually(lambda: len(world.log.records) == 4, within_s=20)
    assert world.log.positions[-1].erased == 1


def test_branches_with_the_same_sink_share_it_with_the_newest_credentials() -> None:
    newest = replace(CONNECTOR, security_protocol="SASL_SSL")
    found = targets_of([catalog(binding("one", ONE.positions, newest)), catalog(ONE, TWO)])
    assert [each.table.db for each in found.values()] == [newest, CONNECTOR]


def test_a_sink_rests_for_longer_after_each_failure() -> None:
    assert [pause_s(n) for n in (1, 2, 3, 100)] == [1.0, 2.0, 4.0, 60.0]


async def test_a_broken_sink_is_written_again_with_new_credentials_and_no_other_starts_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S"):
        monkeypatch.setattr(targets, pause, 1000.0)
    host.broken.add("one")
    host.listed.found = [catalog(ONE, TWO)]
    await eventually(lambda: host.reasons().get("kafka/one") == "the cluster is away", within_s=20)
    assert host.report()[0].remedy == (
        "if its credentials have changed: fennel-core connector rotate kafka --secret "
        "sasl_plain_password=file:PATH"
    )
    await eventually(lambda: host.written().get("kafka/two") == 1, within_s=20)
    other = host._running[TWO.positions]
    host.broken.clear()
    changed = replace(CONNECTOR, login=Login(PlainSecret("ann"), PlainSecret("new")))
    host.listed.found = [catalog(binding("one", "shop.sink.a.1", changed), TWO)]
    await eventually(lambda: host.written().get("kafka/one") == 1, within_s=20)
    assert host._running[TWO.positions] is other


def gauge(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(name, labels)


async def test_metrics_have_the_sinks_by_state_and_none_that_has_ended(host: Host) -> None:
    host.broken.add("one")
    host.listed.found = [catalog(ONE, TWO)]
    behind = {"workspace": "shop", "dataset": "Users", "sink": "kafka/two"}

    def states() -> list[float | None]:
        return [gauge("fennel_sinks", state=each) for each in ("running", "broken", "paused")]

    await eventually(lambda: states() == [1, 1, 0], within_s=20)
    await eventually(lambda: gauge("fennel_sink_behind_messages", **behind) == 0, within_s=20)
    host.listed.found = [catalog(ONE)]
    await eventually(lambda: states() == [0, 1, 0], within_s=20)
    assert gauge("fennel_sink_behind_messages", **behind) is None


async def test_the_successor_of_a_sink_that_ends_waits_for_no_notification(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, gate = threading.Event(), threading.Event()

    def held() -> int:
        inside.set()
        gate.wait(20)
        return slowly()

    host.worlds["one"] = SinkWorld(MemoryTopic([[frame([(1, 10, 5, 1, 1)])]], held))
    host.listed.found = [catalog(ONE)]
    await asyncio.to_thread(inside.wait, 20)
    host.listed.found = [catalog(binding("one", "shop.sink.new.1"))]
    await eventually(lambda: host._ending, within_s=20)
    monkeypatch.setattr(sinks_host, "LOOK_S", 3600.0)
    gate.set()
    await eventually(lambda: list(host._running) == ["shop.sink.new.1"], within_s=20)


async def test_a_sink_that_rests_carries_out_a_rewind_at_once(host: Host) -> None:
    lake = table("shop.sink.c.1", 600_000_000)
    host.orders.sinks = {lake.positions}
    host.listed.found = [catalog(lake)]
    await eventually(lambda: host.written().get("lake/lake/users") == 1, within_s=20)
    await host.orders.rewind([RewindOrder(lake.positions, {0: 0}, False)])
    await eventually(lambda: len(host.worlds["lake/users"].log.records) == 2, within_s=20)


async def test_failures_are_counted_in_a_row(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(SinkThread, "_park", lambda _, __, failures: counted.append(failures))
    faults = ["before", "before", None, "before"]
    topic = MemoryTopic([[frame([(1, 10, 5, 1, 1)])]], slowly)
    world = host.worlds["one"] = SinkWorld(topic, fault=lambda: faults.pop(0) if faults else None)
    host.listed.found = [catalog(ONE)]
    await eventually(lambda: len(world.log.records) == 1, within_s=20)
    topic.partitions = [[*topic.partitions[0], frame([(2, 20, 6, 2, 1)])]]
    await eventually(lambda: len(world.log.records) == 2, within_s=20)
    assert counted == [1, 2, 1]


async def test_a_sink_that_was_stopped_within_a_step_is_not_broken(host: Host) -> None:
    (target,) = targets_of([catalog(ONE)]).values()
    host.panics = [SinkStopped("the sink ends")]
    thread = SinkThread(host, target)
    thread.start()
    await eventually(lambda: not thread.is_alive(), within_s=20)
    assert (thread.report.reason, thread.report.failures) == (None, 0)


class Waits(threading.Event):
    """Remembers for how long it was waited for, and waits for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return True


def test_a_broken_sink_waits_for_as_long_as_the_endpoint_asks() -> None:
    (target,) = targets_of([catalog(ONE)]).values()
    thread = SinkThread(Host(), target)
    waits = thread._stopping = Waits()
    thread._park(SinkEndpointUnavailable("hooks/rows", "busy", 40.0), 1)
    thread._park(SinkEndpointUnavailable("hooks/rows", "busy\n " * 200, 0.0), 3)
    assert waits.seconds == [40.0, pause_s(3)]
    assert len(thread.report.reason or "") == sinks_host.REASON_CHARS


async def test_a_sink_that_ends_closes_its_session(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[SinkWriter[Any]] = []
    monkeypatch.setattr(SinkWriter, "close", lambda writer: closed.append(writer))
    host.listed.found = [catalog(ONE)]
    await eventually(lambda: host.written().get("kafka/one") == 1, within_s=20)
    assert not closed
    host.listed.found = []
    await eventually(lambda: len(closed) == 1, within_s=20)
