"""The contract of a job registry, for the in-memory and the Postgres implementation.

Ownership changes only by compare-and-set, under one clock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import pytest

from fennel_core.bank import postgres_registry
from fennel_core.bank.memory_registry import MemoryRegistry
from fennel_core.bank.postgres_registry import PostgresRegistry
from fennel_core.bank.registry import PartitionReport, Registry, Slot
from fennel_core.connections import postgres
from fennel_core.connections.errors import SystemUnavailable
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

LEASE = Millis(400)
JOB = JobId("w.job.abc.1")
A, B = (
    Slot(SlotId(name), SlotName(f"engine-{name}"), EngineId("engine"), f"run/{name}.sock")
    for name in "ab"
)
FIRST, SECOND = (JOB, PartitionIndex(0)), (JOB, PartitionIndex(1))
NEVER = Epoch(0)


@dataclass
class World:
    registry: Registry
    expire_leases: Callable[[], Awaitable[None]]
    """Let every lease expire."""
    condemn: Callable[[], Awaitable[None]]
    stored: Callable[[], Awaitable[PartitionReport]]
    """The report stored for the first partition."""


@pytest.fixture(params=["memory", "postgres"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        now = [0]
        in_memory = MemoryRegistry(lambda: now[0])
        in_memory.add(JOB, b"spec", 2)

        async def expire_leases() -> None:
            now[0] += LEASE + 1

        async def condemn() -> None:
            in_memory.condemn(JOB)

        async def stored() -> PartitionReport:
            return in_memory.reports()[FIRST][1]

        yield World(in_memory, expire_leases, condemn, stored)
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

        async def stored_row() -> PartitionReport:
            async with pool.connection() as connection:
                row = await (
                    await connection.execute(
                        "SELECT status, lag, error, applied FROM job_partition WHERE part = 0"
                    )
                ).fetchone()
            assert row is not None
            return PartitionReport(*row)

        yield World(
            PostgresRegistry(pool),
            # Leases end by Postgres's own clock, so the test has to wait for it.
            lambda: asyncio.sleep((LEASE + 100) / 1000),
            condemn_row,
            stored_row,
        )


async def test_a_slot_is_listed_until_its_lease_expires(world: World) -> None:
    await world.registry.heartbeat(A, LEASE)
    assert (await world.registry.read(A.id)).slots == {A.name: A.id}
    await world.expire_leases()
    assert (await world.registry.read(A.id)).slots == {}


async def test_of_several_processes_of_a_slot_the_last_that_registered_counts(
    world: World,
) -> None:
    first, second = (
        Slot(SlotId(life), SlotName("engine-0"), EngineId("engine"), "run/0.sock")
        for life in ("z-first", "a-second")
    )
    for slot in (first, second, first):
        await world.registry.heartbeat(slot, LEASE)
    assert (await world.registry.read(first.id)).slots == {first.name: second.id}
    await world.registry.deregister(second.id)
    assert (await world.registry.read(first.id)).slots == {first.name: first.id}


async def test_one_claim_per_epoch_succeeds(world: World) -> None:
    wanted = [(FIRST, NEVER), (SECOND, NEVER)]
    assert await world.registry.claim(wanted, A.id, LEASE) == {FIRST: 1, SECOND: 1}
    assert await world.registry.claim(wanted, B.id, LEASE) == {}
    assert await world.registry.claim([(FIRST, Epoch(1))], B.id, LEASE) == {}, (
        "a live lease of another slot holds"
    )


async def test_claiming_an_expired_lease_raises_the_epoch(world: World) -> None:
    await world.registry.claim([(FIRST, NEVER)], A.id, LEASE)
    await world.expire_leases()
    assert await world.registry.claim([(FIRST, Epoch(1))], B.id, LEASE) == {FIRST: 2}


async def test_a_slot_can_claim_its_own_lease_again(world: World) -> None:
    await world.registry.claim([(FIRST, NEVER)], A.id, LEASE)
    assert await world.registry.claim([(FIRST, Epoch(1))], A.id, LEASE) == {FIRST: 2}


async def test_a_heartbeat_renews_live_leases_but_not_expired_ones(world: World) -> None:
    await world.registry.claim([(FIRST, NEVER)], A.id, LEASE)
    await world.registry.heartbeat(A, Millis(60_000))
    await world.expire_leases()
    assert (await world.registry.read(A.id)).jobs[0].leases[PartitionIndex(0)].live
    await world.registry.claim([(SECOND, NEVER)], B.id, LEASE)
    await world.expire_leases()
    await world.registry.heartbeat(B, Millis(60_000))
    assert not (await world.registry.read(B.id)).jobs[0].leases[PartitionIndex(1)].live


async def test_an_ended_lease_is_resumed_by_its_holder_unless_another_slot_claimed_it(
    world: World,
) -> None:
    await world.registry.claim([(FIRST, NEVER), (SECOND, NEVER)], A.id, LEASE)
    await world.expire_leases()
    await world.registry.claim([(SECOND, Epoch(1))], B.id, LEASE)
    held = [(FIRST, Epoch(1)), (SECOND, Epoch(1))]
    assert await world.registry.resume(held, A.id, LEASE) == {FIRST}
    leases = (await world.registry.read(A.id)).jobs[0].leases
    assert [(lease.slot, lease.epoch, lease.live) for lease in leases.values()] == [
        (A.id, 1, True),
        (B.id, 2, True),
    ]
    assert await world.registry.resume([], A.id, LEASE) == set()


async def test_only_its_holder_releases_a_lease_which_is_then_free_at_once(world: World) -> None:
    await world.registry.claim([(FIRST, NEVER)], A.id, LEASE)
    await world.registry.release([(FIRST, Epoch(1))], B.id)
    assert (await world.registry.read(A.id)).jobs[0].leases[PartitionIndex(0)].slot == A.id
    await world.registry.release([(FIRST, Epoch(1))], A.id)
    assert await world.registry.claim([(FIRST, Epoch(1))], B.id, LEASE) == {FIRST: 2}


async def test_deregistering_a_slot_releases_its_leases(world: World) -> None:
    await world.registry.heartbeat(A, LEASE)
    await world.registry.claim([(FIRST, NEVER), (SECOND, NEVER)], A.id, LEASE)
    await world.registry.deregister(A.id)
    seen = await world.registry.read(A.id)
    assert seen.slots == {}
    assert [lease.live for lease in seen.jobs[0].leases.values()] == [False, False]


async def test_expiring_predecessors_releases_their_leases_only(
    world: World,
) -> None:
    dead, successor, other = (
        Slot(SlotId(name), SlotName(name), EngineId("engine"), "run/0.sock")
        for name in ("e-0-x-1", "e-0-x-2", "e-0-xy-1")
    )
    for slot in (dead, successor, other):
        await world.registry.heartbeat(slot, LEASE)
    await world.registry.claim([(FIRST, NEVER)], dead.id, LEASE)
    await world.registry.claim([(SECOND, NEVER)], other.id, LEASE)
    await world.registry.expire_predecessors("e-0-x-", successor.id)
    seen = await world.registry.read(successor.id)
    assert set(seen.slots.values()) == {successor.id, other.id}
    (entry,) = seen.jobs
    assert entry.leases[FIRST[1]].slot is None
    assert entry.leases[SECOND[1]].slot == other.id
    assert await world.registry.claim([(FIRST, Epoch(1))], successor.id, LEASE) == {FIRST: Epoch(2)}


async def test_reports_of_a_former_owner_are_ignored(world: World) -> None:
    await world.registry.claim([(FIRST, NEVER)], A.id, LEASE)
    await world.expire_leases()
    await world.registry.claim([(FIRST, Epoch(1))], B.id, LEASE)
    parked = PartitionReport("parked", None, "boom")
    await world.registry.report({FIRST: (Epoch(2), parked)}, B.id)
    assert await world.stored() == parked
    await world.registry.report({FIRST: (Epoch(1), PartitionReport("running", 0, None))}, A.id)
    assert await world.stored() == parked


@pytest.mark.parametrize("end", ["release", "deregister", "claim"])
async def test_the_applied_offsets_of_a_report_end_with_the_ownership(
    world: World, end: str
) -> None:
    await world.registry.claim([(FIRST, NEVER)], A.id, LEASE)
    report = PartitionReport("running", 3, None, {TopicName("w.topic.abc.1"): Offset(12)})
    await world.registry.report({FIRST: (Epoch(1), report)}, A.id)
    assert await world.stored() == report
    match end:
        case "release":
            await world.registry.release([(FIRST, Epoch(1))], A.id)
        case "deregister":
            await world.registry.deregister(A.id)
        case _:
            await world.registry.claim([(FIRST, Epoch(1))], A.id, LEASE)
    status = "replaying" if end == "claim" else "idle"
    assert await world.stored() == PartitionReport(status, None, None)


async def test_a_job_has_its_specification_and_its_desired_state(world: World) -> None:
    assert await world.registry.spec(JOB) == b"spec"
    assert await world.registry.spec(JobId("unknown")) is None
    await world.condemn()
    assert (await world.registry.read(A.id)).jobs[0].desired == "remove"


@pytest.mark.parametrize(
    "call",
    [
        lambda registry: registry.heartbeat(A, LEASE),
        lambda registry: registry.read(A.id),
        lambda registry: registry.spec(JOB),
        lambda registry: registry.claim([(FIRST, NEVER)], A.id, LEASE),
        lambda registry: registry.release([(FIRST, NEVER)], A.id),
        lambda registry: registry.report({}, A.id),
        lambda registry: registry.expire_predecessors("e-", A.id),
        lambda registry: registry.deregister(A.id),
    ],
)
async def test_an_unreachable_database_is_system_unavailable(
    call: Callable[[Registry], Awaitable[object]],
) -> None:
    async with postgres.pool("postgresql://nobody@127.0.0.1:9/none", name="test") as closed:
        pass
    with pytest.raises(SystemUnavailable):
        await call(PostgresRegistry(closed))


JOBS = [JobId(f"w.job.{number}.1") for number in range(40)]
MANY = [(job, PartitionIndex(part)) for job in JOBS for part in range(4)]


@pytest.fixture
async def many(database: str) -> AsyncIterator[postgres.Pool]:
    """A database with many job partitions, whose rows are stored in the reverse of their order."""
    async with postgres.pool(database, name="test", size=12) as pool:
        async with pool.connection() as connection:
            for job in JOBS[::-1]:
                await connection.execute(
                    "INSERT INTO job (id, workspace, spec) VALUES (%s, 'w', 'spec')", (job,)
                )
                await connection.execute(
                    "INSERT INTO job_partition (job_id, part) SELECT %s, p FROM "
                    "generate_series(3, 0, -1) p",
                    (job,),
                )
        yield pool


async def test_concurrent_statements_of_slots_do_not_deadlock(
    many: postgres.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        postgres_registry, "in_transaction", partial(postgres.in_transaction, attempts=1)
    )
    registry, orders = PostgresRegistry(many), random.Random(1)  # noqa: S311  # repeatable, and no secret
    epochs = await registry.claim([(key, NEVER) for key in MANY], A.id, Millis(60_000))
    await registry.heartbeat(A, Millis(60_000))
    assert len(epochs) == len(MANY)

    def shuffled() -> list[tuple[JobPartition, Epoch]]:
        return orders.sample(sorted(epochs.items()), len(MANY))

    report = PartitionReport("running", 1, None)
    for _ in range(25):
        await asyncio.gather(
            registry.heartbeat(A, Millis(60_000)),
            *(registry.report({k: (e, report) for k, e in shuffled()}, A.id) for _ in range(4)),
            *(registry.release(shuffled(), B.id) for _ in range(2)),
            *(registry.claim(shuffled(), B.id, LEASE) for _ in range(2)),
        )
    seen = await registry.read(A.id)
    assert all(lease.slot == A.id for job in seen.jobs for lease in job.leases.values())


async def test_the_victim_of_a_deadlock_tries_again(many: postgres.Pool) -> None:
    registry, first, last = PostgresRegistry(many), min(MANY), max(MANY)
    lock = "SELECT FROM job_partition WHERE job_id = %s AND part = %s FOR UPDATE"
    async with many.connection() as other:
        await other.execute("SET deadlock_timeout = '60s'")  # the registry is the victim
        async with other.transaction():
            await other.execute(lock, last)
            claiming = asyncio.create_task(
                registry.claim([(first, NEVER), (last, NEVER)], A.id, LEASE)
            )

            async def waits() -> bool:
                async with many.connection() as watching:
                    row = await (
                        await watching.execute(
                            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                            "AND datname = current_database()"
                        )
                    ).fetchone()
                return row is not None and row[0] == 1

            await eventually(waits, within_s=10)
            await other.execute(lock, first)
        await other.execute("RESET deadlock_timeout")
    assert await claiming == {first: 1, last: 1}


async def test_a_claim_wakes_readers_but_no_slot(many: postgres.Pool, database: str) -> None:
    registry, woken = PostgresRegistry(many), []
    async with aclosing(
        postgres.listen(database, ["registry", "owners"], name="test-listener")
    ) as events:
        assert isinstance(await anext(events), postgres.ListenStarted)
        await registry.claim([(MANY[0], NEVER)], A.id, LEASE)
        await registry.claim([(MANY[0], NEVER)], B.id, LEASE)
        await registry.release([(MANY[0], Epoch(1))], A.id)
        for _ in range(3):
            event = await asyncio.wait_for(anext(events), 5)
            assert isinstance(event, postgres.Notification)
            woken.append((event.channel, event.payload))
    named = ("owners", MANY[0][0])
    assert woken == [named, ("registry", ""), named]
