"""The job registry in Postgres."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import psycopg
from psycopg_pool import PoolTimeout

from fennel_core.bank.registry import PartitionReport, RegisteredJob, RegistryState, Slot
from fennel_core.bank.wakeups import OWNERS_CHANNEL, payload_of
from fennel_core.connections.errors import (
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.connections.postgres import (
    AsyncConnection,
    Pool,
    connection_of,
    in_transaction,
)
from fennel_core.schedule.lease import Lease
from fennel_core.vocab.ids import (
    Epoch,
    JobId,
    JobPartition,
    Millis,
    PartitionIndex,
    SlotId,
    SlotName,
)

T = TypeVar("T")

WAKE_SLOTS = "SELECT pg_notify('registry', '')"
WAKE_READERS = "SELECT pg_notify(%s, %s)"
REPEATABLE_READ = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"

HEARTBEAT = """
    INSERT INTO slot (id, name, engine, address, lease_until)
    VALUES (%(id)s, %(name)s, %(engine)s, %(address)s, now() + %(lease)s * interval '1 ms')
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until RETURNING (xmax = 0) AS joined
"""
RENEW = """
    WITH mine AS MATERIALIZED (
        SELECT job_id, part FROM job_partition WHERE slot_id = %(id)s AND lease_until > now()
        ORDER BY job_id, part FOR UPDATE
    )
    UPDATE job_partition p SET lease_until = now() + %(lease)s * interval '1 ms'
    FROM mine WHERE (p.job_id, p.part) = (mine.job_id, mine.part)
"""

JOBS = """
    SELECT j.id, j.desired, p.part, p.epoch, p.slot_id, (extract(epoch FROM p.lease_until - now())
        * 1000)::bigint
    FROM job j JOIN job_partition p ON p.job_id = j.id ORDER BY j.id, p.part
"""
CLAIM = """
    WITH free AS MATERIALIZED (
        SELECT p.job_id, p.part
        FROM job_partition p
        JOIN unnest(%(jobs)s::text[], %(parts)s::int[], %(epochs)s::bigint[])
            AS w (job_id, part, epoch) ON (p.job_id, p.part, p.epoch) = (w.job_id, w.part, w.epoch)
        WHERE p.slot_id IS NULL OR p.slot_id = %(slot)s OR p.lease_until <= now()
        ORDER BY p.job_id, p.part FOR UPDATE OF p
    )
    UPDATE job_partition p
    SET epoch = p.epoch + 1, slot_id = %(slot)s,
        lease_until = now() + %(lease)s * interval '1 ms',
        status = 'replaying', lag = NULL, applied = '{}', error = NULL, updated_at = now()
    FROM free WHERE (p.job_id, p.part) = (free.job_id, free.part)
    RETURNING p.job_id, p.part, p.epoch
"""
RESUME = """
    UPDATE job_partition p SET lease_until = now() + %(lease)s * interval '1 ms'
    FROM unnest(%(jobs)s::text[], %(parts)s::int[], %(epochs)s::bigint[]) AS w (job_id, part, epoch)
    WHERE p.job_id = w.job_id AND p.part = w.part AND p.epoch = w.epoch AND p.slot_id = %(slot)s
    RETURNING p.job_id, p.part
"""
RELEASE = """
    WITH held AS MATERIALIZED (
        SELECT p.job_id, p.part
        FROM job_partition p
        JOIN unnest(%(jobs)s::text[], %(parts)s::int[], %(epochs)s::bigint[])
            AS w (job_id, part, epoch) ON (p.job_id, p.part, p.epoch) = (w.job_id, w.part, w.epoch)
        WHERE p.slot_id = %(slot)s ORDER BY p.job_id, p.part FOR UPDATE OF p
    )
    UPDATE job_partition p
    SET slot_id = NULL, lease_until = NULL, status = 'idle', lag = NULL, applied = '{}',
        updated_at = now()
    FROM held WHERE (p.job_id, p.part) = (held.job_id, held.part)
"""
REPORT = """
    WITH held AS MATERIALIZED (
        SELECT p.job_id, p.part, w.status, w.lag, w.error, w.applied
        FROM job_partition p
        JOIN unnest(%(jobs)s::text[], %(parts)s::int[], %(epochs)s::bigint[], %(statuses)s::text[],
            %(lags)s::bigint[], %(errors)s::text[], %(applied)s::text[])
            AS w (job_id, part, epoch, status, lag, error, applied)
            ON (p.job_id, p.part, p.epoch) = (w.job_id, w.part, w.epoch)
        WHERE p.slot_id = %(slot)s ORDER BY p.job_id, p.part FOR UPDATE OF p
    )
    UPDATE job_partition p
    SET status = held.status, lag = held.lag, error = held.error, applied = held.applied::jsonb,
        updated_at = now()
    FROM held WHERE (p.job_id, p.part) = (held.job_id, held.part)
"""
REMOVE = """
    WITH held AS MATERIALIZED (
        SELECT job_id, part FROM job_partition WHERE slot_id = ANY(%(slots)s::text[])
        ORDER BY job_id, part FOR UPDATE
    )
    UPDATE job_partition p
    SET slot_id = NULL, lease_until = NULL, status = 'idle', lag = NULL, applied = '{}'
    FROM held WHERE (p.job_id, p.part) = (held.job_id, held.part) RETURNING p.job_id
"""


def _columns(keys: Sequence[tuple[JobPartition, Epoch]], slot: SlotId) -> dict[str, object]:
    return {
        "jobs": [job for (job, _), _ in keys],
        "parts": [part for (_, part), _ in keys],
        "epochs": [epoch for _, epoch in keys],
        "slot": slot,
    }


class PostgresRegistry:
    """See `bank.registry.Registry`; the schema is migration 0001.

    Every statement locks the rows of job partitions in the order of their keys before it changes
    them, because heartbeats, reports, claims and releases of many slots meet in these rows.
    Deadlocks with other writers (a job that is deleted) are retried.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def heartbeat(self, slot: Slot, lease_ms: Millis) -> None:
        values = {
            "id": slot.id,
            "name": slot.name,
            "engine": slot.engine,
            "address": slot.address,
            "lease": lease_ms,
        }

        async def renew(connection: AsyncConnection) -> None:
            row = await (await connection.execute(HEARTBEAT, values)).fetchone()
            await connection.execute(RENEW, values)
            if row is not None and row[0]:
                await connection.execute(WAKE_SLOTS)

        await self._write(renew)

    async def read(self, me: SlotId) -> RegistryState:
        async with connection_of(self._pool) as connection, connection.transaction():
            await connection.execute(REPEATABLE_READ)
            slots: list[Any] = await (
                await connection.execute(
                    "SELECT name, id, stopping FROM slot WHERE lease_until > now() ORDER BY life"
                )
            ).fetchall()
            rows: list[Any] = await (await connection.execute(JOBS)).fetchall()
        jobs = tuple(
            RegisteredJob(
                JobId(job),
                desired,
                {PartitionIndex(r[2]): Lease(Epoch(r[3]), r[4], Millis(r[5] or 0)) for r in group},
            )
            for (job, desired), group in groupby(rows, key=lambda r: (r[0], r[1]))
        )
        running = {SlotName(name): SlotId(slot) for name, slot, stopping in slots if not stopping}
        return RegistryState(running, jobs, any(stops for _, slot, stops in slots if slot == me))

    async def spec(self, job: JobId) -> bytes | None:
        async with connection_of(self._pool) as connection:
            cursor = await connection.execute("SELECT spec FROM job WHERE id = %s", (job,))
            row: Any = await cursor.fetchone()
        return bytes(row[0]) if row else None

    async def claim(
        self, wanted: Sequence[tuple[JobPartition, Epoch]], slot: SlotId, lease_ms: Millis
    ) -> dict[JobPartition, Epoch]:
        values = {**_columns(wanted, slot), "lease": lease_ms}

        async def claim_free(connection: AsyncConnection) -> list[Any]:
            won = await (await connection.execute(CLAIM, values)).fetchall()
            if won:
                # Only readers have to know: to other slots a lease that is held is as good as one
                # that is about to be.
                await _wake_readers(connection, (str(row[0]) for row in won))
            return won

        return {
            (JobId(job), PartitionIndex(part)): Epoch(epoch)
            for job, part, epoch in await self._write(claim_free)
        }

    async def resume(
        self, held: Sequence[tuple[JobPartition, Epoch]], slot: SlotId, lease_ms: Millis
    ) -> frozenset[JobPartition]:
        async with connection_of(self._pool) as connection:
            values = {**_columns(held, slot), "lease": lease_ms}
            rows: list[Any] = await (await connection.execute(RESUME, values)).fetchall()
        return frozenset((JobId(job), PartitionIndex(part)) for job, part in rows)

    async def release(self, held: Sequence[tuple[JobPartition, Epoch]], slot: SlotId) -> None:
        async def free_held(connection: AsyncConnection) -> None:
            await connection.execute(RELEASE, _columns(held, slot))
            await connection.execute(WAKE_SLOTS)
            await _wake_readers(connection, (job for (job, _), _ in held))

        await self._write(free_held)

    async def report(
        self, reports: Mapping[JobPartition, tuple[Epoch, PartitionReport]], slot: SlotId
    ) -> None:
        values = _columns([(key, epoch) for key, (epoch, _) in reports.items()], slot)
        newest = [report for _, report in reports.values()]
        values |= {
            "statuses": [r.status for r in newest],
            "lags": [r.lag for r in newest],
            "errors": [r.error for r in newest],
            "applied": [json.dumps(r.applied) for r in newest],
        }

        async def store(connection: AsyncConnection) -> None:
            await connection.execute(REPORT, values)

        await self._write(store)

    async def expire_predecessors(self, id_prefix: str, survivor: SlotId) -> None:
        async def expire(connection: AsyncConnection) -> None:
            dead = "SELECT id FROM slot WHERE starts_with(id, %s) AND id <> %s"
            cursor = await connection.execute(dead, (id_prefix, survivor))
            await _remove(connection, [SlotId(str(slot)) for (slot,) in await cursor.fetchall()])

        await self._write(expire)

    async def deregister(self, slot: SlotId) -> None:
        await self._write(lambda connection: _remove(connection, [slot]))

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run `work` in a transaction; a deadlock is retried, other failures may be repeated.

        An unknown outcome is reported as SystemUnavailable: every change is guarded by an epoch, so
        the caller reads the registry and decides again.
        """
        try:
            return await in_transaction(self._pool, work, resolve_seconds=0.0)
        except (
            psycopg.Error,
            PoolTimeout,
            TransactionAborted,
            TransactionOutcomeUnknown,
        ) as failed:
            raise SystemUnavailable(f"Postgres: {failed}") from failed


async def _remove(connection: AsyncConnection, slots: Sequence[SlotId]) -> None:
    """Free what these processes hold, then forget them."""
    if not slots:
        return
    freed = await (await connection.execute(REMOVE, {"slots": list(slots)})).fetchall()
    await connection.execute("DELETE FROM slot WHERE id = ANY(%s)", (list(slots),))
    await connection.execute(WAKE_SLOTS)
    if freed:
        await _wake_readers(connection, (str(job) for (job,) in freed))


async def _wake_readers(connection: AsyncConnection, jobs: Iterable[str]) -> None:
    """Tell query servers which jobs have other owners."""
    payload = payload_of(map(JobId, jobs))
    await connection.execute(WAKE_READERS, (OWNERS_CHANNEL, payload))
