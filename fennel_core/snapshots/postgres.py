"""Pointer rows in Postgres (migration 0005).

Theory. A pointer is added under a lock on the job partition's row, and only while that row has the
writer's epoch. A concurrent claim by another slot is either before it (then no pointer is added) or
after it (then the snapshot was taken by the owner of that time).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final, LiteralString, cast

from fennel_core.connections import postgres
from fennel_core.connections.postgres import Pool
from fennel_core.snapshots.store import Pointer
from fennel_core.vocab.ids import Epoch, JobId, JobPartition, PartitionIndex

ADD: Final = """
    WITH owner AS (
        SELECT job_id, part, epoch FROM job_partition
        WHERE job_id = %(job)s AND part = %(part)s AND epoch = %(epoch)s FOR UPDATE
    )
    INSERT INTO snapshot (job_id, part, epoch, manifest, sha256)
    SELECT job_id, part, epoch, %(manifest)s, %(sha256)s FROM owner
    RETURNING number
"""
OF: Final = """
    SELECT job_id, part, number, epoch, manifest, sha256, taken_at, incomplete
    FROM snapshot
    WHERE job_id = %s AND part = %s ORDER BY number DESC
"""
ALL: Final = """
    SELECT job_id, part, number, epoch, manifest, sha256, taken_at, incomplete
    FROM snapshot
    ORDER BY number DESC
"""
PARTITIONS: Final = "SELECT DISTINCT job_id, part FROM snapshot ORDER BY job_id, part"


class PostgresPointers:
    """`Pointers` in the table `snapshot`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def add(
        self, job: JobId, part: PartitionIndex, epoch: Epoch, manifest: str, sha256: str
    ) -> bool:
        values = {"job": job, "part": part, "epoch": epoch, "manifest": manifest, "sha256": sha256}
        async with postgres.connection_of(self._pool) as connection:
            return await (await connection.execute(ADD, values)).fetchone() is not None

    async def of(self, job: JobId, part: PartitionIndex) -> list[Pointer]:
        return [_pointer(row) for row in await self._rows(OF, (job, part))]

    async def all(self) -> dict[JobPartition, list[Pointer]]:
        found: dict[JobPartition, list[Pointer]] = {}
        for pointer in map(_pointer, await self._rows(ALL)):
            found.setdefault((pointer.job, pointer.part), []).append(pointer)
        return found

    async def partitions(self) -> list[JobPartition]:
        return [(JobId(job), PartitionIndex(part)) for job, part in await self._rows(PARTITIONS)]

    async def jobs(self) -> set[JobId]:
        return {JobId(job) for (job,) in await self._rows("SELECT id FROM job")}

    async def now(self) -> datetime:
        return await postgres.now(self._pool)

    async def mark_incomplete(self, numbers: Collection[int], incomplete: bool) -> None:
        async with postgres.connection_of(self._pool) as connection:
            await connection.execute(
                "UPDATE snapshot SET incomplete = %s WHERE number = ANY(%s)",
                (incomplete, list(numbers)),
            )

    async def remove(self, pointers: Sequence[Pointer]) -> None:
        numbers = [pointer.number for pointer in pointers]
        async with postgres.connection_of(self._pool) as connection:
            await connection.execute("DELETE FROM snapshot WHERE number = ANY(%s)", (numbers,))

    async def _rows(
        self, statement: LiteralString, values: tuple[object, ...] = ()
    ) -> list[tuple[Any, ...]]:
        async with postgres.connection_of(self._pool) as connection:
            rows = await (await connection.execute(statement, values)).fetchall()
        return cast(list[tuple[Any, ...]], rows)


def _pointer(row: tuple[Any, ...]) -> Pointer:
    return Pointer(JobId(row[0]), PartitionIndex(row[1]), row[2], Epoch(row[3]), *row[4:])
