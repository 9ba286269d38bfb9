"""Lookups against slots that lose partitions, fail and return."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fennel_core.connections.erasures import ErasableKeys
from fennel_core.connections.frames import RemoteError
from fennel_core.connections.slot_protocol import RefusalCode
from fennel_core.query.errors import (
    ErasuresUnknown,
    JobParked,
    PartitionUnavailable,
    SlotCallFailed,
    ViewOutdated,
)
from fennel_core.query.lookups import JobLookup, Lookups, ReadOutcome, row_bytes, transpose
from fennel_core.query.owners import Owners, Parked
from fennel_core.query.slot_connections import SlotConnections
from fennel_core.vocab.ids import JobId
from fennel_core.vocab.keys import partition_of
from tests.support.fake_slots import ERASABLE, FakeRegistry, FakeSlot, encode, nothing_hidden
from tests.support.polling import eventually

JOB = JobId("job")
PARTITIONS = 4
KEYS = [encode([n]) for n in range(40)]
NOW = 1000
HANG_S = 60
"""Far longer than a test may take: what waits that long hangs."""


class World:
    def __init__(self, folder: Path, timeout_s: float = 1.0, silence_s: float = 1.0) -> None:
        self.first, self.second = FakeSlot(folder / "a.sock"), FakeSlot(folder / "b.sock")
        self.registry = FakeRegistry()
        self.outcome = ReadOutcome()
        self.slots = SlotConnections(silence_s)
        self.lookups = Lookups(self.slots, Owners(self.registry), timeout_s, nothing_hidden)
        for slot in (self.first, self.second):
            for n in range(40):
                slot.put(JOB, [n], 10, [n, n * n])

    async def values(
        self, keys: Sequence[bytes] = KEYS, as_of: int | list[int] = NOW
    ) -> list[bytes | None]:
        [rows] = await self.lookups.fetch(
            [JobLookup(JOB, PARTITIONS, keys, as_of, ERASABLE)], self.outcome
        )
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
        [
            JobLookup(JOB, PARTITIONS, KEYS, NOW, ERASABLE),
            JobLookup(JOB, PARTITIONS, KEYS[:1], NOW, ERASABLE),
        ],
        world.outcome,
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
    with pytest.raises(SlotCallFailed, match="unknown operation"):
        await world.values()
    assert len(world.first.requests) == 1


async def test_a_frozen_slot_is_noticed_and_then_costs_no_request_its_patience(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, timeout_s=HANG_S, silence_s=0.05)

    async def frozen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(HANG_S)  # it accepts and never responds

    server = await asyncio.start_unix_server(frozen, str(tmp_path / "f.sock"))
    world.registry.addresses = {(JOB, part): str(tmp_path / "f.sock") for part in range(PARTITIONS)}
    async with asyncio.timeout(HANG_S / 2):
        for _ in range(10):
            with pytest.raises(PartitionUnavailable, match="does not respond"):
                await world.values()
    async with world.second:
        world.registry.own(world.second, JOB, PARTITIONS)
        assert await world.values() == rows_of(range(40)), "a new owner is asked at once"
        await world.slots.close()
    server.close()


async def test_a_slot_that_works_on_a_lookup_is_waited_for_and_asked_once(tmp_path: Path) -> None:
    world = World(tmp_path, timeout_s=0.05, silence_s=0.05)
    async with world.first:
        world.registry.own(world.first, JOB, PARTITIONS)
        world.first.release.clear()
        reading = asyncio.create_task(world.values())
        await asyncio.sleep(0.2)  # longer than the search for an owner may take
        world.first.release.set()
        assert await reading == rows_of(range(40))
        assert len(world.first.requests) == 1
        await world.slots.close()


async def test_a_cancelled_lookup_is_cancelled_at_every_slot(world: World) -> None:
    world.registry.own(world.first, JOB, 2)
    world.registry.addresses |= {(JOB, 2): world.second.path, (JOB, 3): world.second.path}
    for slot in (world.first, world.second):
        slot.release.clear()
    reading = asyncio.create_task(world.values())
    await eventually(lambda: world.first.running == world.second.running == 1)
    reading.cancel()
    await eventually(lambda: world.first.running == world.second.running == 0)


async def test_a_failure_at_one_slot_cancels_the_lookup_at_the_others(world: World) -> None:
    world.registry.own(world.first, JOB, 2)
    world.registry.addresses |= {(JOB, 2): world.second.path, (JOB, 3): world.second.path}
    world.second.release.clear()

    def parked(op: str, item: Sequence[Any]) -> None:
        raise RemoteError(RefusalCode.PARKED, "division by zero")

    world.first.misbehave = parked
    with pytest.raises(JobParked):
        await world.values()
    await eventually(lambda: world.second.running == 0)


async def test_the_last_known_owners_serve_while_the_registry_is_unreachable(world: World) -> None:
    world.registry.own(world.first, JOB, PARTITIONS)
    assert await world.values() == rows_of(range(40))
    world.registry.unreachable = True
    refusals = iter([True])

    def replaying(op: str, item: Sequence[Any]) -> None:
        if next(refusals, False):
            raise RemoteError(RefusalCode.NOT_OWNER, "replaying")

    world.first.misbehave = replaying
    assert await world.values() == rows_of(range(40))


async def test_a_job_that_was_destroyed_asks_for_a_newer_view_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, timeout_s=HANG_S)
    async with world.first:
        world.registry.own(world.first, JOB, PARTITIONS)

        def gone(op: str, item: Sequence[Any]) -> None:
            raise RemoteError(RefusalCode.NOT_OWNER, "not mine")

        world.first.misbehave = gone
        world.registry.addresses.clear()
        world.registry.destroyed.add(JOB)
        async with asyncio.timeout(HANG_S / 2):
            with pytest.raises(ViewOutdated, match="no longer exists"):
                await world.values()
        await world.slots.close()


@pytest.mark.parametrize("stale", [True, False])
async def test_rows_of_a_slot_without_a_live_lease_are_marked(world: World, stale: bool) -> None:
    world.registry.own(world.first, JOB, 2)
    world.registry.addresses |= {(JOB, 2): world.second.path, (JOB, 3): world.second.path}
    world.second.stale = stale
    await world.values()
    assert world.outcome.stale is stale


async def test_erased_keys_are_absent_and_unknown_erasures_are_refused(world: World) -> None:
    world.registry.own(world.first, JOB, PARTITIONS)
    world.lookups = Lookups(
        world.slots, Owners(world.registry), 1.0, lambda of, keys: [0, len(keys) - 1]
    )
    assert await world.values() == [None, *rows_of(range(1, 39)), None]

    def unknown(of: ErasableKeys, keys: Sequence[bytes]) -> Sequence[int]:
        raise ErasuresUnknown()

    world.lookups = Lookups(world.slots, Owners(world.registry), 1.0, unknown)
    with pytest.raises(ErasuresUnknown):
        await world.values()


async def test_concurrent_lookups_share_one_read_of_owners(world: World) -> None:
    world.registry.own(world.first, JOB, PARTITIONS)
    answers = await asyncio.gather(*(world.values() for _ in range(20)))
    assert all(answer == rows_of(range(40)) for answer in answers)
    assert world.registry.reads <= 2


def test_missing_rows_take_the_values_of_an_absent_key() -> None:
    rows = [encode([5, "a", None]), None]
    assert transpose(rows, row_bytes([None, 7])) == [(5, None), ("a", None), (None, 7)]
