"""The job registry in Postgres."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from fennel_core.bank.registry import PartitionReport, RegisteredJob, RegistryState, Slot
from fennel_core.connections.postgres import AsyncConnection, Pool, connection_of
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

WAKE = "SELECT pg_notify('registry', '')"

HEARTBEAT = """
    INSERT INTO slot (id, name, engine, address, lease_until)
    VALUES (%(id)s, %(name)s, %(engine)s, %(address)s, now() + %(lease)s * interval '1 ms')
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until RETURNING (xmax = 0) AS joined
"""
RENEW = (
    "UPDATE job_partition SET lease_until = now() + %(lease)s * interval '1 ms' WHERE "
    "slot_id = %(id)s AND lease_until > now()"
)

JOBS = """
    SELECT j.id, j.desired, p.part, p.epoch, p.slot_id, (extract(epoch FROM p.lease_until - now())
        * 1000)::bigint
    FROM job j JOIN job_partition p ON p.job_id = j.id ORDER BY j.id, p.part
"""
CLAIM = """
    UPDATE job_partition p SET epoch = p.epoch + 1, slot_id = %(slot)s, lease_until = now() +
        %(lease)s * interval '1 ms',
           status = 'replaying', lag = NULL, applied = '{}', error = NULL, updated_at = now()
    FROM unnest(%(jobs)s::text[], %(parts)s::int[], %(epochs)s::bigint[]) AS w (job_id, part, epoch)
    WHERE p.job_id = w.job_id AND p.part = w.part AND p.epoch = w.epoch
      AND (p.slot_id IS NULL OR p.slot_id = %(slot)s OR p.lease_until <= now())
    RETURNING p.job_id, p.part, p.epoch
"""
RELEASE = """
    UPDATE job_partition p SET slot_id = NULL, lease_until = NULL, status = 'idle', lag = NULL,
        applied = '{}', updated_at = now()
    FROM unnest(%(jobs)s::text[], %(parts)s::int[], %(epochs)s::bigint[]) AS w (job_id, part, epoch)
    WHERE p.job_id = w.job_id AND p.part = w.part AND p.epoch = w.epoch AND p.slot_id = %(slot)s
"""
REPORT = """
    UPDATE job_partition p SET status = w.status, lag = w.lag, error = w.error,
        applied = w.applied::jsonb, updated_at = now()
    FROM unnest(%(jobs)s::text[], %(parts)s::int[], %(epochs)s::bigint[], %(statuses)s::text[],
        %(lags)s::bigint[], %(errors)s::text[], %(applied)s::text[])
         AS w (job_id, part, epoch, status, lag, error, applied)
    WHERE p.job_id = w.job_id AND p.part = w.part AND p.epoch = w.epoch AND p.slot_id = %(slot)s
"""


def _columns(keys: Sequence[tuple[JobPartition, Epoch]], slot: SlotId) -> dict[str, object]:
    return {
        "jobs": [job for (job, _), _ in keys],
        "parts": [part for (_, part), _ in keys],
        "epochs": [epoch for _, epoch in keys],
        "slot": slot,
    }


class PostgresRegistry:
    """See `bank.registry.Registry`; the schema is migration 0001."""

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
        async with connection_of(self._pool) as connection, connection.transaction():
            row = await (await connection.execute(HEARTBEAT, values)).fetchone()
            await connection.execute(RENEW, values)
            if row is not None and row[0]:
                await connection.execute(WAKE)

    async def read(self, me: SlotId) -> RegistryState:
        async with connection_of(self._pool) as connection, connection.transaction():
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
        async with connection_of(self._pool) as connection, connection.transaction():
            won: list[Any] = await (
                await connection.execute(CLAIM, {**_columns(wanted, slot), "lease": lease_ms})
            ).fetchall()
            await connection.execute(WAKE)
        return {(JobId(job), PartitionIndex(part)): Epoch(epoch) for job, part, epoch in won}

    async def release(self, held: Sequence[tuple[JobPartition, Epoch]], slot: SlotId) -> None:
        async with connection_of(self._pool) as connection, connection.transaction():
            await connection.execute(RELEASE, _columns(held, slot))
            await connection.execute(WAKE)

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
        async with connection_of(self._pool) as connection:
            await connection.execute(REPORT, values)

    async def expire_predecessors(self, id_prefix: str, survivor: SlotId) -> None:
        async with connection_of(self._pool) as connection, connection.transaction():
            dead = "SELECT id FROM slot WHERE starts_with(id, %s) AND id <> %s"
            cursor = await connection.execute(dead, (id_prefix, survivor))
            for (slot,) in await cursor.fetchall():
                await _remove(connection, SlotId(str(slot)))

    async def deregister(self, slot: SlotId) -> None:
        async with connection_of(self._pool) as connection, connection.transaction():
            await _remove(connection, slot)


async def _remove(connection: AsyncConnection, slot: SlotId) -> None:
    await connection.execute(
        "UPDATE job_partition SET slot_id = NULL, lease_until = NULL, status = "
        "'idle', lag = NULL, applied = '{}' WHERE slot_id = %s",
        (slot,),
    )
    await connection.execute("DELETE FROM slot WHERE id = %s", (slot,))
    await connection.execute(WAKE)
