"""The barrier over a chain of jobs whose slots and topics the test advances by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fennel_core.blueprints.spec import Catalog, Job, Output, SourceBinding
from fennel_core.connections.frames import RemoteError
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.operators.spec import TableSpec
from fennel_core.query.barrier import Barrier, layers, source_partitions, targets
from fennel_core.query.errors import BarrierTimeout, JobParked, ViewOutdated
from fennel_core.query.owners import Owners, Parked
from fennel_core.query.slot_connections import SlotConnections
from fennel_core.vocab.ids import Identity, JobId, TopicName
from tests.support.fake_slots import FakeRegistry, FakeSlot
from tests.support.featuresets import USERS
from tests.support.polling import eventually
from tests.support.query_world import PARTITIONS, WORKSPACE, FakePlatform


def job(name: str, inputs: Sequence[str], outputs: Sequence[str] = ()) -> Job:
    return Job(
        id=JobId(name),
        workspace=WORKSPACE,
        inputs=tuple(map(TopicName, inputs)),
        outputs=tuple(Output(TopicName(topic), ()) for topic in outputs),
        step=TableSpec(USERS.schema),
        replaylog=TopicName(f"{name}.log"),
        dead_letters=TopicName(f"{name}.dead"),
        partitions=PARTITIONS,
        title=f"title of {name}",
    )


MAP, JOIN, TABLE = (
    job("map", ["source"], ["mapped"]),
    job("join", ["mapped", "other"], ["joined"]),
    job("table", ["joined"]),
)


SOURCE = SourceBinding(
    identity=Identity("s"),
    webhook="w",
    endpoint="e",
    source=None,  # type: ignore[arg-type]  # the barrier looks at topics only
    dataset=USERS.name,
    schema=USERS.schema,
    topic=TopicName("source"),
    raw_topic=TopicName("raw"),
    dead_letters=TopicName("dead"),
)


class Chain:
    """source → map → join (with other) → table, all on one slot."""

    def __init__(self, folder: Path) -> None:
        self.platform, self.registry, self.slots = FakePlatform(), FakeRegistry(), SlotConnections()
        self.slot = FakeSlot(folder / "s.sock")
        self.platform.jobs = {each.id: each for each in (MAP, JOIN, TABLE)}
        for name in self.platform.jobs:
            self.registry.own(self.slot, name, PARTITIONS)
        self.barrier = Barrier(self.platform, self.platform, Owners(self.registry), self.slots)
        self.catalog = Catalog(WORKSPACE, (), (), (MAP.id, JOIN.id, TABLE.id), PARTITIONS)

    def end(self, topic: str, offset: int, part: int = 0) -> None:
        self.platform.topic_ends[TopicName(topic), part] = offset

    def waited_for(self, name: str) -> bool:
        """Return whether the slot has received a `wait` for a partition of the job."""
        return any(
            op == "wait" and item[0] == name
            for op, argument in self.slot.requests
            for item in argument["items"]
        )

    def apply(self, name: str, part: int = 0, **offsets: int) -> None:
        self.slot.applied[name, part] = offsets


@pytest.fixture
async def chain(tmp_path: Path) -> AsyncIterator[Chain]:
    made = Chain(tmp_path)
    async with made.slot:
        yield made
        await made.slots.close()


def test_a_job_is_in_the_layer_after_all_its_inputs() -> None:
    direct = job("direct", ["source"])
    assert layers([MAP, direct, JOIN, TABLE]) == [[MAP, direct], [JOIN], [TABLE]]
    assert layers([]) == []


def test_partitions_without_input_are_not_waited_for() -> None:
    ends = {(TopicName("mapped"), part): 0 for part in range(PARTITIONS)} | {
        (TopicName("other"), part): 0 for part in range(PARTITIONS)
    }
    assert targets([JOIN], ends) == []
    [target] = targets([JOIN], ends | {(TopicName("other"), 2): 9})
    assert (target.partition, target.offsets) == ((JOIN.id, 2), {"other": 9})


async def test_the_barrier_without_logged_rows_does_not_wait(chain: Chain) -> None:
    await chain.barrier.wait(chain.catalog, 1.0)
    assert chain.slot.requests == []


async def test_the_barrier_returns_once_every_job_of_the_chain_has_applied_its_input(
    chain: Chain,
) -> None:
    chain.end("source", 10)
    waiting = asyncio.create_task(chain.barrier.wait(chain.catalog, 5.0))
    await eventually(lambda: chain.waited_for("map"))
    assert not waiting.done()
    chain.end("mapped", 7, part=3)
    chain.apply("map", source=10)
    await eventually(lambda: chain.waited_for("join"))
    assert not waiting.done(), "the join has not applied the output of the map"
    chain.end("joined", 3, part=1)
    chain.apply("join", part=3, mapped=7)
    await eventually(lambda: chain.waited_for("table"))
    assert not waiting.done(), "the table has not applied the output of the join"
    chain.apply("table", part=1, joined=5)
    await asyncio.wait_for(waiting, 1)


async def test_ends_are_read_after_the_jobs_before_them_are_done(chain: Chain) -> None:
    chain.end("source", 10)
    chain.apply("map", source=10)
    chain.end("mapped", 0)
    await chain.barrier.wait(chain.catalog, 1.0)
    asked = [
        {topic for topic, _ in partitions} for partitions in chain.platform.end_reads if partitions
    ]
    assert asked == [{"source"}, {"mapped", "other"}, {"joined"}]


def test_a_topic_that_a_source_replay_writes_is_read_after_that_job() -> None:
    catalog = Catalog(WORKSPACE, (), (SOURCE,), (), PARTITIONS)
    assert {topic for topic, _ in source_partitions(catalog, [MAP])} == {"source"}
    assert source_partitions(catalog, [job("replay", ["raw"], ["source"]), MAP]) == []


async def test_rows_logged_during_the_call_are_not_waited_for(chain: Chain) -> None:
    chain.end("source", 10)
    waiting = asyncio.create_task(
        chain.barrier.wait(replace(chain.catalog, sources=(SOURCE,)), 5.0)
    )
    await eventually(lambda: chain.waited_for("map"))
    chain.end("source", 99)
    chain.apply("map", source=10)
    await asyncio.wait_for(waiting, 1)
    waits = [item for op, given in chain.slot.requests if op == "wait" for item in given["items"]]
    assert {offsets["source"] for name, _, offsets in waits if name == "map"} == {10}


async def test_a_parked_job_fails_the_barrier_at_once(chain: Chain) -> None:
    chain.end("source", 10)

    def parked(op: str, item: Sequence[Any]) -> None:
        raise RemoteError(RefusalCode.PARKED, "map[0] is parked: ZeroDivisionError")

    chain.slot.misbehave = parked
    began = asyncio.get_running_loop().time()
    with pytest.raises(JobParked, match="ZeroDivisionError"):
        await chain.barrier.wait(chain.catalog, 30.0)
    assert asyncio.get_running_loop().time() - began < 2


async def test_a_job_parked_in_the_registry_fails_the_barrier_at_once(
    chain: Chain,
) -> None:
    chain.end("source", 10)
    chain.registry.addresses = {}
    chain.registry.parked = {(MAP.id, 0): Parked("boom")}
    with pytest.raises(JobParked, match="boom"):
        await chain.barrier.wait(chain.catalog, 30.0)


async def test_a_deadline_names_job_partition_and_lag(chain: Chain) -> None:
    chain.end("source", 10, part=2)
    chain.apply("map", part=2, source=4)
    with pytest.raises(
        BarrierTimeout, match=r"title of map.*partition 2.*6 records behind"
    ) as late:
        await chain.barrier.wait(chain.catalog, 0.1)
    assert late.value.status == 504


async def test_the_barrier_waits_at_the_new_owner_of_a_partition(
    chain: Chain, tmp_path: Path
) -> None:
    chain.end("source", 10)

    def moved(op: str, item: Sequence[Any]) -> None:
        raise RemoteError(RefusalCode.NOT_OWNER, "not mine")

    chain.slot.misbehave = moved
    async with FakeSlot(tmp_path / "other.sock") as other:
        waiting = asyncio.create_task(chain.barrier.wait(chain.catalog, 5.0))
        await eventually(lambda: chain.waited_for("map"))
        other.applied["map", 0] = {"source": 10}
        chain.registry.own(other, "map", PARTITIONS)
        await asyncio.wait_for(waiting, 2)


async def test_a_deleted_job_makes_the_view_outdated(chain: Chain) -> None:
    del chain.platform.jobs[JOIN.id]
    with pytest.raises(ViewOutdated):
        await chain.barrier.wait(chain.catalog, 1.0)


async def test_specs_of_jobs_are_read_once(chain: Chain) -> None:
    await chain.barrier.wait(chain.catalog, 1.0)
    await chain.barrier.wait(chain.catalog, 1.0)
    assert chain.platform.job_reads == [[MAP.id, JOIN.id, TABLE.id]]
