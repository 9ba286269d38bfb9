"""Lookups against slots that lose partitions, fail and return."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fennel_core.connections.frames import RemoteError
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.query.errors import JobParked, PartitionUnavailable
from fennel_core.query.lookups import JobLookup, Lookups, row_bytes, transpose
from fennel_core.query.owners import Owners, Parked
from fennel_core.query.slot_connections import SlotConnections
from fennel_core.vocab.ids import JobId
from fennel_core.vocab.keys import partition_of
from tests.support.fake_slots import FakeRegistry, FakeSlot, encode

JOB = JobId("job")
PARTITIONS = 4
KEYS = [encode([n]) for n in range(40)]
NOW = 1000


class World:
    def __init__(self, folder: Path, timeout_s: float = 1.0) -> None:
        self.first, self.second = FakeSlot(folder / "a.sock"), FakeSlot(folder / "b.sock")
        self.registry = FakeRegistry()
        self.slots = SlotConnections()
        self.lookups = Lookups(self.slots, Owners(self.registry), timeout_s)
        for slot in (self.first, self.second):
            for n in range(40):
                slot.put(JOB, [n], 10, [n, n * n])

    async def values(
        self, keys: Sequence[bytes] = KEYS, as_of: int | list[int] = NOW
    ) -> list[bytes | None]:
        [rows] = await self.lookups.fetch([JobLookup(JOB, PARTITIONS, keys, as_of)])
        return rows


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    async with made.first, made.second:
        yield made
        await made.slots.close()


def rows_of(numbers: Sequence[int]) -> list[bytes]:
    return [encode([10, n, n * n]) for n in numbers]


async def test_rows_have_the_order_of_their_keys_over_all_owners(world: World) -> None:
    world.registry.own(world.first, JOB, 2)
    world.registry.addresses |= {(JOB, 2): world.second.path, (JOB, 3): world.second.path}
    assert await world.values() == rows_of(range(40))


async def test_each_owner_gets_one_request_with_its_own_keys_only(world: World) -> None:
    world.registry.own(world.first, JOB, 2)
    world.registry.addresses |= {(JOB, 2): world.second.path, (JOB, 3): world.second.path}
    await world.lookups.fetch(
        [JobLookup(JOB, PARTITIONS, KEYS, NOW), JobLookup(JOB, PARTITIONS, KEYS[:1], NOW)]
    )
    for slot, parts in ((world.first, {0, 1}), (world.second, {2, 3})):
        [(op, argument)] = slot.requests
        assert op == "lookup"
        assert {part for _, part, _, _ in argument["items"]} <= parts
        assert all(
            partition_of(key, PARTITIONS) == part
            for _, part, keys, _ in argument["items"]
            for key in keys
        )


async def test_an_absent_key_has_no_row(world: World) -> None:
    world.registry.own(world.first, JOB, PARTITIONS)
    assert await world.values([encode([1]), encode([99])]) == [*rows_of([1]), None]


async def test_each_key_may_have_its_own_time(world: World) -> None:
    world.registry.own(world.first, JOB, PARTITIONS)
    assert await world.values([KEYS[3], KEYS[3], KEYS[4]], [9, 10, 11]) == [None, *rows_of([3, 4])]


async def test_a_lookup_is_repeated_at_the_new_owner(world: World) -> None:
    world.registry.own(world.first, JOB, PARTITIONS)
    assert await world.values() == rows_of(range(40))

    def moved(op: str, item: Sequence[Any]) -> None:
        raise RemoteError(RefusalCode.NOT_OWNER, "not mine")

    world.first.misbehave = moved
    world.registry.own(world.second, JOB, PARTITIONS)
    assert await world.values() == rows_of(range(40))


async def test_a_broken_connection_is_replaced(world: World) -> None:
    world.registry.own(world.first, JOB, PARTITIONS)
    await world.values()
    await world.first.__aexit__()
    for channel in world.slots._open.values():
        channel._writer.transport.abort()
    world.registry.own(world.second, JOB, PARTITIONS)
    assert await world.values() == rows_of(range(40))


async def test_an_unreachable_owner_is_retried_until_it_is_replaced(
    world: World,
) -> None:
    world.registry.addresses = {(JOB, part): "/nowhere/s.sock" for part in range(PARTITIONS)}

    async def later() -> None:
        await asyncio.sleep(0.1)  # the owner is away for a while
        world.registry.own(world.first, JOB, PARTITIONS)

    moving = asyncio.create_task(later())
    assert await world.values() == rows_of(range(40))
    await moving


async def test_a_partition_without_owner_is_refused_at_the_deadline(tmp_path: Path) -> None:
    world = World(tmp_path, timeout_s=0.1)
    began = asyncio.get_running_loop().time()
    with pytest.raises(PartitionUnavailable, match="no owner yet"):
        await world.values()
    assert asyncio.get_running_loop().time() - began < 1


async def test_a_parked_job_fails_a_lookup_at_once_with_its_error(world: World) -> None:
    world.registry.own(world.first, JOB, PARTITIONS)

    def parked(op: str, item: Sequence[Any]) -> None:
        raise RemoteError(RefusalCode.PARKED, "division by zero")

    world.first.misbehave = parked
    with pytest.raises(JobParked, match="division by zero"):
        await world.values()


async def test_a_job_that_is_parked_in_the_registry_is_not_waited_for(world: World) -> None:
    world.registry.parked = {(JOB, part): Parked("boom") for part in range(PARTITIONS)}
    began = asyncio.get_running_loop().time()
    with pytest.raises(JobParked, match="boom"):
        await world.values()
    assert asyncio.get_running_loop().time() - began < 0.5


async def test_an_unknown_operation_is_raised_without_a_retry(world: World) -> None:
    world.registry.own(world.first, JOB, PARTITIONS)

    def unknown(op: str, item: Sequence[Any]) -> None:
        raise RemoteError(RefusalCode.UNKNOWN_OPERATION, "unknown operation `lookup`")

    world.first.misbehave = unknown
    with pytest.raises(RemoteError, match="unknown operation"):
        await world.values()
    assert len(world.first.requests) == 1


async def test_a_frozen_slot_holds_a_lookup_only_until_the_deadline(tmp_path: Path) -> None:
    world = World(tmp_path, timeout_s=0.2)
    frozen = await asyncio.start_unix_server(
        lambda reader, writer: asyncio.sleep(10),  # longer than the deadline
        str(tmp_path / "f.sock"),
    )
    world.registry.addresses = {(JOB, part): str(tmp_path / "f.sock") for part in range(PARTITIONS)}
    with pytest.raises(PartitionUnavailable, match="does not respond"):
        await world.values()
    frozen.close()
    await world.slots.close()


async def test_concurrent_lookups_share_one_read_of_owners(world: World) -> None:
    world.registry.own(world.first, JOB, PARTITIONS)
    answers = await asyncio.gather(*(world.values() for _ in range(20)))
    assert all(answer == rows_of(range(40)) for answer in answers)
    assert world.registry.reads <= 2


def test_missing_rows_take_the_values_of_an_absent_key() -> None:
    rows = [encode([5, "a", None]), None]
    assert transpose(rows, row_bytes([None, 7])) == [(5, None), ("a", None), (None, 7)]
