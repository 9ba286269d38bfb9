"""Pointer rows in Postgres (migration 0005).

Theory. A pointer is added under a lock on the job partition's row, and only while that row carries
the writer's epoch: a claim by somebody else comes before it (then nothing is added) or after it
(then the snapshot was the owner's).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from fennel_core.snapshots.store import Pointer, StoreError
from fennel_core.vocab.ids import Epoch, JobId, JobPartition, PartitionIndex

ADD = """
    WITH owner AS (
        SELECT job_id, part, epoch FROM job_partition WHERE job_id = %(job)s AND part = %(part)s
            AND epoch = %(epoch)s FOR UPDATE
    )
    INSERT INTO snapshot (job_id, part, epoch, manifest, sha256) SELECT job_id, part, epoch,
        %(manifest)s, %(sha256)s FROM owner
    RETURNING number
"""
OF = """
    SELECT job_id, part, number, epoch, manifest, sha256, taken_at FROM snapshot WHERE job_id = %s
        AND part = %s ORDER BY number DESC
"""


class PostgresPointers:
    """See `snapshots.store.Pointers`."""

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[TupleRow]]) -> None:
        self._pool = pool

    async def add(
        self, job: JobId, part: PartitionIndex, epoch: Epoch, manifest: str, sha256: str
    ) -> bool:
        values = {"job": job, "part": part, "epoch": epoch, "manifest": manifest, "sha256": sha256}
        async with self._connection() as connection:
            return await (await connection.execute(ADD, values)).fetchone() is not None

    async def of(self, job: JobId, part: PartitionIndex) -> list[Pointer]:
        async with self._connection() as connection:
            rows = await (await connection.execute(OF, (job, part))).fetchall()
        return [
            Pointer(JobId(r[0]), PartitionIndex(r[1]), r[2], Epoch(r[3]), r[4], r[5], r[6])
            for r in rows
        ]

    async def places(self) -> list[JobPartition]:
        async with self._connection() as connection:
            rows = await (
                await connection.execute(
                    "SELECT DISTINCT job_id, part FROM snapshot ORDER BY job_id, part"
                )
            ).fetchall()
        return [(JobId(job), PartitionIndex(part)) for job, part in rows]

    async def jobs(self) -> set[JobId]:
        async with self._connection() as connection:
            return {
                JobId(job)
                for (job,) in await (await connection.execute("SELECT id FROM job")).fetchall()
            }

    async def now(self) -> datetime:
        async with self._connection() as connection:
            row = await (await connection.execute("SELECT now()")).fetchone()
        assert row is not None, "a SELECT without FROM has one row"
        found: datetime = row[0]
        return found

    async def remove(self, pointers: Sequence[Pointer]) -> None:
        async with self._connection() as connection:
            await connection.execute(
                "DELETE FROM snapshot WHERE number = ANY(%s)",
                ([pointer.number for pointer in pointers],),
            )

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[TupleRow]]:
        try:
            async with self._pool.connection() as connection:
                yield connection
        except (psycopg.Error, PoolTimeout) as failed:
            raise StoreError(f"Postgres: {failed}") from failed
