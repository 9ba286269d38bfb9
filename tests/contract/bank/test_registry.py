"""One suite for the registry's twin and for Postgres: ownership changes only by compare-and-set,
under one clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from fennel_core.bank.memory_registry import MemoryRegistry
from fennel_core.bank.postgres_registry import PostgresRegistry
from fennel_core.bank.registry import PartitionReport, Registry, Slot
from fennel_core.connections import postgres
from fennel_core.vocab.ids import EngineId, Epoch, JobId, Millis, PartitionIndex, SlotId

LEASE = Millis(400)
JOB = JobId("w.job.abc.1")
A, B = (Slot(SlotId(name), EngineId("engine"), f"run/{name}.sock") for name in "ab")
FIRST, SECOND = (JOB, PartitionIndex(0)), (JOB, PartitionIndex(1))
NEVER = Epoch(0)


@dataclass
class World:
    registry: Registry
    lapse: Callable[[], Awaitable[None]]
    """Let every lease end."""
    condemn: Callable[[], Awaitable[None]]
    stored: Callable[[], Awaitable[tuple[str, str | None]]]
    """Status and error stored for the first partition."""


@pytest.fixture(params=["memory", "postgres"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        now = [0]
        twin = MemoryRegistry(lambda: now[0])
        twin.add(JOB, b"spec", 2)

        async def lapse() -> None:
            now[0] += LEASE + 1

        async def condemn() -> None:
            twin.condemn(JOB)

        async def stored() -> tuple[str, str | None]:
            report = twin.reports()[FIRST][1]
            return report.status, report.error

        yield World(twin, lapse, condemn, stored)
        return
    dsn: str = request.getfixturevalue("database")
    async with postgres.pool(dsn, name="test", size=2) as pool:
        async with pool.connection() as connection:
            await connection.execute(
                "INSERT INTO job (id, workspace, spec) VALUES (%s, 'w', 'spec')", (JOB,)
            )
            await connection.execute(
                "INSERT INTO job_partition (job_id, part) SELECT %s, p FROM "
                "generate_series(0, 1) p",
                (JOB,),
            )

        async def condemn_row() -> None:
            async with pool.connection() as connection:
                await connection.execute("UPDATE job SET desired = 'remove' WHERE id = %s", (JOB,))

        async def stored_row() -> tuple[str, str | None]:
            async with pool.connection() as connection:
                row = await (
                    await connection.execute(
                        "SELECT status, error FROM job_partition WHERE part = 0"
                    )
                ).fetchone()
            assert row is not None
            return str(row[0]), None if row[1] is None else str(row[1])

        yield World(
            PostgresRegistry(pool),
            lambda: asyncio.sleep((LEASE + 100) / 1000),
            condemn_row,
            stored_row,
        )


async def test_a_slot_is_seen_until_its_lease_ends(world: World) -> None:
    await world.registry.heartbeat(A, LEASE)
    assert (await world.registry.read(A.id)).slots == (A.id,)
    await world.lapse()
    assert (await world.registry.read(A.id)).slots == ()


async def test_a_claim_is_won_once_per_epoch_seen(world: World) -> None:
    wanted = [(FIRST, NEVER), (SECOND, NEVER)]
    assert await world.registry.claim(wanted, A.id, LEASE) == {FIRST: 1, SECOND: 1}
    assert await world.registry.claim(wanted, B.id, LEASE) == {}
    assert await world.registry.claim([(FIRST, Epoch(1))], B.id, LEASE) == {}, (
        "a live lease of another slot holds"
    )


async def test_a_lapsed_lease_can_be_claimed_and_the_epoch_grows(world: World) -> None:
    await world.registry.claim([(FIRST, NEVER)], A.id, LEASE)
    await world.lapse()
    assert await world.registry.claim([(FIRST, Epoch(1))], B.id, LEASE) == {FIRST: 2}


async def test_a_slot_may_claim_its_own_lease_anew(world: World) -> None:
    await world.registry.claim([(FIRST, NEVER)], A.id, LEASE)
    assert await world.registry.claim([(FIRST, Epoch(1))], A.id, LEASE) == {FIRST: 2}


async def test_a_heartbeat_renews_live_leases_and_never_revives_a_lapsed_one(world: World) -> None:
    await world.registry.claim([(FIRST, NEVER)], A.id, LEASE)
    await world.registry.heartbeat(A, Millis(60_000))
    await world.lapse()
    assert (await world.registry.read(A.id)).jobs[0].leases[PartitionIndex(0)].live
    await world.registry.claim([(SECOND, NEVER)], B.id, LEASE)
    await world.lapse()
    await world.registry.heartbeat(B, Millis(60_000))
    assert not (await world.registry.read(B.id)).jobs[0].leases[PartitionIndex(1)].live


async def test_a_released_lease_is_free_at_once_and_only_its_holder_releases(world: World) -> None:
    await world.registry.claim([(FIRST, NEVER)], A.id, LEASE)
    await world.registry.release([(FIRST, Epoch(1))], B.id)
    assert (await world.registry.read(A.id)).jobs[0].leases[PartitionIndex(0)].slot == A.id
    await world.registry.release([(FIRST, Epoch(1))], A.id)
    assert await world.registry.claim([(FIRST, Epoch(1))], B.id, LEASE) == {FIRST: 2}


async def test_leaving_gives_everything_back(world: World) -> None:
    await world.registry.heartbeat(A, LEASE)
    await world.registry.claim([(FIRST, NEVER), (SECOND, NEVER)], A.id, LEASE)
    await world.registry.deregister(A.id)
    seen = await world.registry.read(A.id)
    assert seen.slots == ()
    assert [lease.live for lease in seen.jobs[0].leases.values()] == [False, False]


async def test_burying_gives_back_what_the_dead_of_a_family_held_and_nothing_else(
    world: World,
) -> None:
    dead, heir, other = (
        Slot(SlotId(name), EngineId("engine"), "run/0.sock")
        for name in ("e-0-x-1", "e-0-x-2", "e-0-xy-1")
    )
    for slot in (dead, heir, other):
        await world.registry.heartbeat(slot, LEASE)
    await world.registry.claim([(FIRST, NEVER)], dead.id, LEASE)
    await world.registry.claim([(SECOND, NEVER)], other.id, LEASE)
    await world.registry.expire_predecessors("e-0-x-", heir.id)
    seen = await world.registry.read(heir.id)
    assert set(seen.slots) == {heir.id, other.id}
    (entry,) = seen.jobs
    assert entry.leases[FIRST[1]].slot is None
    assert entry.leases[SECOND[1]].slot == other.id
    assert await world.registry.claim([(FIRST, Epoch(1))], heir.id, LEASE) == {FIRST: Epoch(2)}


async def test_reports_of_a_former_owner_are_not_stored(world: World) -> None:
    await world.registry.claim([(FIRST, NEVER)], A.id, LEASE)
    await world.lapse()
    await world.registry.claim([(FIRST, Epoch(1))], B.id, LEASE)
    await world.registry.report({FIRST: (Epoch(2), PartitionReport("parked", None, "boom"))}, B.id)
    assert await world.stored() == ("parked", "boom")
    await world.registry.report({FIRST: (Epoch(1), PartitionReport("running", 0, None))}, A.id)
    assert await world.stored() == ("parked", "boom")


async def test_specs_and_the_wish_to_be_gone_are_read_back(world: World) -> None:
    assert await world.registry.spec(JOB) == b"spec"
    assert await world.registry.spec(JobId("unknown")) is None
    await world.condemn()
    assert (await world.registry.read(A.id)).jobs[0].desired == "remove"
