"""The supervisor's reports to the registry, and rebuilds on request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from fennel_core.bank.memory_registry import MemoryRegistry
from fennel_core.bank.registry import PartitionReport, Slot
from fennel_core.connections.errors import ObjectStoreUnavailable, SystemUnavailable
from fennel_core.connections.garbage import DeletionLimit
from fennel_core.engine.errors import RebuildRequested
from fennel_core.engine.local_state import LocalStateGarbage
from fennel_core.engine.supervisor import YOUNG_MS, HostedPartition, Supervisor
from fennel_core.vocab.ids import (
    EngineId,
    Epoch,
    JobId,
    JobPartition,
    Millis,
    Offset,
    PartitionIndex,
    SlotId,
    SlotName,
    TopicName,
)
from tests.support.polling import eventually

KEY = (JobId("job"), PartitionIndex(0))
ME = Slot(SlotId("me"), SlotName("e-0"), EngineId("e"), "here")


def garbage() -> LocalStateGarbage:
    return LocalStateGarbage(Millis(0), DeletionLimit(0, 0))


class LossyRegistry(MemoryRegistry):
    """A registry whose response can be lost after it has carried out the request."""

    responds = True

    async def report(
        self, reports: Mapping[JobPartition, tuple[Epoch, PartitionReport]], slot: SlotId
    ) -> None:
        await super().report(reports, slot)
        if not self.responds:
            raise SystemUnavailable("the response was lost")


@dataclass
class Running:
    """The attributes of a runner that reports use."""

    lag: int
    status: str = "running"
    applied: dict[TopicName, Offset] = field(default_factory=dict)


class Clock:
    def monotonic_ms(self) -> int:
        return 0

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(0)


async def test_an_unconfirmed_report_is_sent_again_even_if_the_status_changed_back() -> None:
    registry = LossyRegistry(lambda: 0)
    registry.add(KEY[0], b"", 1)
    await registry.heartbeat(ME, Millis(1000))
    epoch = (await registry.claim([(KEY, Epoch(0))], ME.id, Millis(1000)))[KEY]
    runner_factory: Any = None
    runner: Any = Running(0)
    supervisor = Supervisor(ME, registry, runner_factory, Clock(), Millis(1000), 1000, garbage())
    supervisor.hosted[KEY] = HostedPartition(epoch, runner=runner)
    for lag, responds in ((0, True), (6, False), (0, True)):
        runner.lag, registry.responds = lag, responds
        reporting = asyncio.gather(supervisor._report(), return_exceptions=True)
        await reporting
        assert registry.reports()[KEY][1].lag == lag


class FakeRunner:
    """Runs until it is cancelled, or fails at once."""

    lag = 0
    status = "running"
    applied: ClassVar = {}

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    async def run(self) -> None:
        if self.fails:
            raise ValueError("no such column")
        await asyncio.Event().wait()


@dataclass
class RecordingFactory:
    """A runner factory that records the order of its calls."""

    fails: bool
    calls: list[str] = field(default_factory=list)

    async def make(self, job: JobId, part: PartitionIndex, epoch: Epoch) -> Any:
        self.calls.append("make")
        return FakeRunner(self.fails)

    def discard_state(self, job: JobId, part: PartitionIndex, why: Exception) -> None:
        self.calls.append(f"discard: {why}")

    async def close(self, runner: Any) -> None:
        self.calls.append("close")

    def jobs_with_state(self) -> set[JobId]:
        return set()

    async def delete_state(self, job: JobId) -> None:
        raise AssertionError("the job is wanted")

    async def superseded(self, running: Mapping[JobPartition, Epoch]) -> list[Path]:
        return []

    async def delete_superseded(self, state: Path) -> bool:
        raise AssertionError("there is none")


class FailingFactory(RecordingFactory):
    """A runner factory that cannot restore the state."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(fails=True)
        self.failure = failure

    async def make(self, job: JobId, part: PartitionIndex, epoch: Epoch) -> Any:
        self.calls.append("make")
        raise self.failure


class FrozenClock(Clock):
    """A clock on which every sleep lasts for ever."""

    async def sleep(self, ms: int) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("parked", [False, True])
async def test_a_requested_rebuild_starts_at_once_whether_the_partition_runs_or_is_parked(
    parked: bool,
) -> None:
    registry = MemoryRegistry(lambda: 0)
    registry.add(KEY[0], b"", 1)
    await registry.heartbeat(ME, Millis(1000))
    factory: Any = RecordingFactory(parked)
    supervisor = Supervisor(ME, registry, factory, FrozenClock(), Millis(1000), 1000, garbage())
    await supervisor.tick()
    async with asyncio.timeout(10):
        while supervisor.hosted[KEY].report().status != ("parked" if parked else "running"):
            await asyncio.sleep(0)
        factory.fails = False
        assert (
            await supervisor.rebuild(KEY, RebuildRequested("requested"))
            == supervisor.hosted[KEY].epoch
            == 1
        )
        while supervisor.hosted[KEY].report().status != "running":
            await asyncio.sleep(0)
    assert sorted(factory.calls[:3]) == ["close", "discard: requested", "make"]
    assert factory.calls[3:] == ["make"], "the store was closed before it is opened again"
    await supervisor.shut_down()


@pytest.mark.parametrize(
    ("failure", "status", "reason"),
    [
        (ObjectStoreUnavailable("S3: no route"), "parked", "ObjectStoreUnavailable: S3: no route"),
        (SystemUnavailable("Kafka: no route"), "replaying", None),
    ],
)
async def test_an_unreachable_bucket_is_reported_and_an_unreachable_broker_waited_for(
    failure: Exception, status: str, reason: str | None
) -> None:
    registry = MemoryRegistry(lambda: 0)
    registry.add(KEY[0], b"", 1)
    await registry.heartbeat(ME, Millis(1000))
    factory: Any = FailingFactory(failure)
    supervisor = Supervisor(ME, registry, factory, FrozenClock(), Millis(1000), 1000, garbage())
    await supervisor.tick()
    await eventually(lambda: factory.calls == ["make"])
    assert supervisor.hosted[KEY].report() == PartitionReport(status, None, reason)
    await supervisor.shut_down()


async def test_a_slot_does_not_rebuild_a_partition_it_does_not_own() -> None:
    factory: Any = RecordingFactory(False)
    supervisor = Supervisor(
        ME, MemoryRegistry(lambda: 0), factory, Clock(), Millis(1000), 1000, garbage()
    )
    assert await supervisor.rebuild(KEY, RebuildRequested("requested")) is None
    supervisor.hosted[KEY] = HostedPartition(Epoch(1), lost=True)
    assert await supervisor.rebuild(KEY, RebuildRequested("requested")) is None
    assert factory.calls == []


class SlowlyClosingFactory(RecordingFactory):
    """A runner factory whose stores close when the test says so."""

    def __init__(self) -> None:
        super().__init__(fails=False)
        self.may_close = asyncio.Event()

    async def close(self, runner: Any) -> None:
        await self.may_close.wait()


async def test_a_partition_that_is_rebuilt_while_a_lapsed_lease_is_resumed_is_lost_too() -> None:
    now_ms = 0
    registry = MemoryRegistry(lambda: now_ms)
    registry.add(KEY[0], b"", 1)
    clock: Any = FrozenClock()
    clock.monotonic_ms = lambda: now_ms
    factory = SlowlyClosingFactory()
    supervisor = Supervisor(ME, registry, cast(Any, factory), clock, Millis(1000), 1000, garbage())
    await supervisor._renew()
    await supervisor.tick()
    await eventually(lambda: supervisor.hosted[KEY].report().status == "running")
    now_ms = 2000
    await registry.heartbeat(replace(ME, id=SlotId("other")), Millis(1000))
    await registry.claim([(KEY, Epoch(1))], SlotId("other"), Millis(1000))

    rebuilding = asyncio.create_task(supervisor.rebuild(KEY, RebuildRequested("requested")))
    await eventually(lambda: KEY not in supervisor.hosted)
    renewing = asyncio.create_task(supervisor._renew())
    await asyncio.sleep(0.01)  # the renewal runs until it waits for the rebuild
    factory.may_close.set()
    await asyncio.gather(rebuilding, renewing)
    assert supervisor.lease_is_live()
    assert supervisor.hosted[KEY].lost, "another slot owns it since before the rebuild"
    await supervisor.shut_down()


def test_the_reason_of_a_parked_partition_stays_until_a_retry_gets_past_replay() -> None:
    runner: Any = Running(3, "replaying")
    hosted = HostedPartition(Epoch(1), error="ValueError: no such column")
    assert hosted.report() == PartitionReport("parked", None, "ValueError: no such column")
    hosted.runner = runner
    assert hosted.report() == PartitionReport("parked", None, "ValueError: no such column")
    for status in ("backfilling", "running"):
        runner.status = status
        assert hosted.report() == PartitionReport(status, 3, None)


def test_a_report_has_the_applied_offsets_of_a_running_partition_at_that_moment() -> None:
    runner: Any = Running(3, applied={TopicName("orders"): Offset(7)})
    hosted = HostedPartition(Epoch(1), runner=runner)
    report = hosted.report()
    runner.applied[TopicName("orders")] = Offset(8)
    assert report == PartitionReport("running", 3, None, {TopicName("orders"): Offset(7)})
    runner.status = "backfilling"
    assert hosted.report().applied == {}


@pytest.mark.parametrize(
    ("report", "age_ms", "settled"),
    [
        (PartitionReport("running", 9, None), YOUNG_MS, True),
        (PartitionReport("running", 0, None), YOUNG_MS - 1, False),
        (PartitionReport("running", None, None), YOUNG_MS, False),
        (PartitionReport("parked", None, "no such column"), YOUNG_MS, True),
        (PartitionReport("replaying", None, None), YOUNG_MS, False),
        (None, YOUNG_MS, False),
    ],
)
def test_reports_are_urgent_while_a_partition_is_young_or_does_not_read_yet(
    report: PartitionReport | None, age_ms: int, settled: bool
) -> None:
    hosted = HostedPartition(Epoch(1), reported=report, since_ms=5)
    assert hosted.is_settled(5 + age_ms) is settled


async def test_a_partition_that_ran_again_is_not_parked_for_an_earlier_error() -> None:
    factory: Any = RecordingFactory(fails=False)
    registry = MemoryRegistry(lambda: 0)
    supervisor = Supervisor(ME, registry, factory, Clock(), Millis(1000), 1000, garbage())
    hosted = supervisor.hosted[KEY] = HostedPartition(Epoch(1), error="ValueError: no such column")
    running = asyncio.create_task(supervisor._run_once(KEY, hosted))
    while hosted.runner is None:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert hosted.report() == PartitionReport("replaying", None, None)


@dataclass
class SetClock:
    """A clock that the test sets; sleeps return at the next turn of the event loop."""

    now_ms: int = 1000

    def monotonic_ms(self) -> int:
        return self.now_ms

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(0)


@dataclass
class Slots:
    """Two slots over one registry, each with a runner factory that records its calls."""

    clock: SetClock = field(default_factory=SetClock)

    def __post_init__(self) -> None:
        self.registry = MemoryRegistry(self.clock.monotonic_ms)
        self.registry.add(KEY[0], b"", 1)
        self.factories = [RecordingFactory(fails=False), RecordingFactory(fails=False)]
        self.supervisors = [
            Supervisor(
                Slot(SlotId(f"s{n}"), SlotName(f"e-{n}"), EngineId("e"), f"at-{n}"),
                self.registry,
                factory,  # type: ignore[arg-type]  # has the methods that are called
                self.clock,
                Millis(1000),
                1000,
                garbage(),
            )
            for n, factory in enumerate(self.factories)
        ]

    async def own(self) -> tuple[Supervisor, Supervisor]:
        """Return the supervisor that owns the partition, and the other one."""
        for each in self.supervisors:
            await each._renew()
        for each in self.supervisors:
            await each.tick()
        owner = next(each for each in self.supervisors if KEY in each.hosted)
        await eventually(lambda: owner.hosted[KEY].runner is not None)
        return owner, next(each for each in self.supervisors if each is not owner)


async def test_after_the_registry_was_away_a_slot_goes_on_with_what_it_owned() -> None:
    slots = Slots()
    owner, other = await slots.own()
    runner, epoch = owner.hosted[KEY].runner, owner.hosted[KEY].epoch
    slots.clock.now_ms += 600_000
    assert not owner.lease_is_live()
    waiting = asyncio.create_task(owner.lease_held())
    await asyncio.sleep(0)
    assert not waiting.done(), "no iteration begins without a live lease"
    await other._renew()
    await other.tick()
    assert KEY not in other.hosted, "the owner gets time to renew"
    await owner._renew()
    await owner.tick()
    assert owner.lease_is_live()
    await waiting
    assert (owner.hosted[KEY].runner, owner.hosted[KEY].epoch) == (runner, epoch)
    for each in slots.supervisors:
        await each.shut_down()


async def test_a_slot_gives_up_what_another_one_claimed_while_it_was_away() -> None:
    slots = Slots()
    owner, other = await slots.own()
    slots.clock.now_ms += 500
    await other._renew()
    slots.clock.now_ms += 999
    await other.tick()
    assert KEY in other.hosted, "its lease was live all the time, so it does not wait"
    assert not owner.hosted[KEY].lost, "it cannot know yet, and serves marked reads"
    waiting = asyncio.create_task(owner.lease_held())
    await owner._renew()
    assert owner.hosted[KEY].lost
    waiting.cancel()
    for each in slots.supervisors:
        await each.shut_down()


async def test_a_slot_claims_partitions_of_a_dead_one_after_a_lease_of_patience() -> None:
    slots = Slots()
    owner, other = await slots.own()
    slots.clock.now_ms += 600_000
    await other._renew()
    await other.tick()
    assert KEY not in other.hosted
    slots.clock.now_ms += 999
    await other._renew()
    slots.clock.now_ms += 1
    await other.tick()
    assert KEY in other.hosted
    for each in slots.supervisors:
        await each.shut_down()
    assert owner.hosted == {}


class SetClock(FrozenClock):
    """A frozen clock that a test sets."""

    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


class Leftovers(RecordingFactory):
    """A runner factory of a machine on which earlier owners have left state."""

    def __init__(self) -> None:
        super().__init__(fails=False)
        self.held, self.deleted = True, list[Path]()

    async def superseded(self, running: Mapping[JobPartition, Epoch]) -> list[Path]:
        return [Path(f"before-{epoch}") for epoch in running.values()]

    async def delete_superseded(self, state: Path) -> bool:
        self.deleted.append(state)
        return not self.held


async def test_superseded_state_is_deleted_only_of_partitions_that_run_here_and_are_owned() -> None:
    now_ms = 0
    registry = MemoryRegistry(lambda: now_ms)
    registry.add(KEY[0], b"", 1)
    factory, clock = Leftovers(), SetClock()
    supervisor = Supervisor(ME, registry, factory, clock, Millis(1000), 1000, garbage())
    supervisor.garbage = LocalStateGarbage(Millis(0), DeletionLimit(1, 0))
    await registry.heartbeat(ME, Millis(1000))
    await supervisor.tick()
    hosted = supervisor.hosted[KEY]
    await eventually(lambda: hosted.runner)

    async def deleted_at(ms: int) -> list[Path]:
        clock.now_ms = ms
        factory.deleted.clear()
        await supervisor._delete_superseded(await registry.read(ME.id))
        return factory.deleted

    assert await deleted_at(1) == [], "it has just been found"
    assert await deleted_at(2) == [Path("before-1")]
    runner: Any = hosted.runner
    runner.status = "replaying"
    assert await deleted_at(3) == [], "the state that it replays may prove unusable"
    runner.status = "running"
    assert await deleted_at(4) == []
    assert await deleted_at(5) == [Path("before-1")]
    now_ms = 5000
    other = Slot(SlotId("other"), SlotName("e-1"), EngineId("e"), "there")
    await registry.heartbeat(other, Millis(1000))
    await registry.claim([(KEY, Epoch(1))], other.id, Millis(1000))
    assert await deleted_at(6) == [], "another slot owns the partition now"
    assert await deleted_at(7) == []
    await supervisor.shut_down()
