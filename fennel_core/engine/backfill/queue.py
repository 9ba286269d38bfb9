"""The queue of backfill requests, between the owner of a job partition and the driver.

Life cycle of a row: `requested` -> `running` -> `staged` or `failed`; `requested` -> `expired` if
no driver claims it in time. A `failed` or `expired` backfill that is needed is requested again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from fennel_core.connections import postgres
from fennel_core.connections.postgres import Pool
from fennel_core.vocab.ids import JobId, JobPartition, PartitionIndex

CHANNEL: Final = "backfill"
CLAIM_SECONDS: Final = 60
"""A claim that is not renewed for this long lapses, and the backfill is computed again; the first
of two results counts.
"""
REQUEST: Final = """
    INSERT INTO backfill AS b (job_id, part, row_count) VALUES (%s, %s, %s)
    ON CONFLICT (job_id, part) DO UPDATE
    SET state = 'requested', row_count = excluded.row_count, error = NULL, updated_at = now()
    WHERE %s AND b.state IN ('failed', 'expired')
"""
FIND: Final = """
    SELECT b.job_id, b.part, b.state, b.manifest, b.error
    FROM backfill b JOIN unnest(%s::text[], %s::int[]) AS w (job_id, part) USING (job_id, part)
"""
EXPIRE: Final = """
    UPDATE backfill SET state = 'expired', updated_at = now()
    WHERE job_id = %s AND part = %s AND state = 'requested'
"""
CLAIM: Final = """
    UPDATE backfill
    SET state = 'running', claimed_until = now() + make_interval(secs => %s), updated_at = now()
    WHERE state = 'requested' OR (state = 'running' AND claimed_until < now())
    RETURNING job_id, part
"""
RENEW: Final = """
    UPDATE backfill SET claimed_until = now() + make_interval(secs => %s)
    WHERE job_id = %s AND part = %s AND state = 'running'
"""
FINISH: Final = """
    UPDATE backfill SET state = %s, manifest = %s, error = %s, updated_at = now()
    WHERE job_id = %s AND part = %s AND state = 'running'
"""
DELETED_JOBS: Final = """
    SELECT DISTINCT job_id FROM backfill b WHERE NOT EXISTS (SELECT FROM job WHERE id = b.job_id)
"""


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """The row of one backfill; see the module for `state`.

    `manifest` is the key of the manifest once staged; `error` is the reason of a failure.
    """

    state: str
    manifest: str | None
    error: str | None


class BackfillQueue:
    """Rows of the table `backfill`.

    Every method raises SystemUnavailable if Postgres cannot be used.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def request(
        self, job: JobId, part: PartitionIndex, rows: int, *, retry: bool = False
    ) -> None:
        """Request a backfill unless there is one; with `retry` also if that failed or expired."""
        async with postgres.connection_of(self._pool) as connection:
            await connection.execute(REQUEST, (job, part, rows, retry))
            await connection.execute("SELECT pg_notify(%s, '')", (CHANNEL,))

    async def find(self, job: JobId, part: PartitionIndex) -> BackfillRequest | None:
        """Return the row of a job partition, or None if there is none."""
        return (await self.find_all([(job, part)])).get((job, part))

    async def find_all(
        self, partitions: Collection[JobPartition]
    ) -> dict[JobPartition, BackfillRequest]:
        """Return the rows of job partitions; those without one are absent."""
        keys = sorted(partitions)
        columns = ([job for job, _ in keys], [part for _, part in keys])
        async with postgres.connection_of(self._pool) as connection:
            rows: list[Any] = await (await connection.execute(FIND, columns)).fetchall()
        return {
            (JobId(job), PartitionIndex(part)): BackfillRequest(state, manifest, error)
            for job, part, state, manifest, error in rows
        }

    async def expire(self, job: JobId, part: PartitionIndex) -> None:
        """Withdraw a request that no driver has claimed."""
        async with postgres.connection_of(self._pool) as connection:
            await connection.execute(EXPIRE, (job, part))

    async def claim(self) -> list[JobPartition]:
        """Claim every requested backfill, and every running one whose claim has lapsed."""
        async with postgres.connection_of(self._pool) as connection:
            rows = await (await connection.execute(CLAIM, (CLAIM_SECONDS,))).fetchall()
        return [(JobId(str(job)), PartitionIndex(int(str(part)))) for job, part in rows]

    async def renew_claim(self, job: JobId, part: PartitionIndex) -> None:
        """Extend the claim of a driver that is still computing."""
        async with postgres.connection_of(self._pool) as connection:
            await connection.execute(RENEW, (CLAIM_SECONDS, job, part))

    async def complete(self, job: JobId, part: PartitionIndex, manifest: str) -> None:
        """Record the staged result; of two drivers only the first one counts."""
        await self._finish(job, part, "staged", manifest, None)

    async def fail(self, job: JobId, part: PartitionIndex, error: str) -> None:
        """Record the reason of a failure."""
        await self._finish(job, part, "failed", None, error)

    async def _finish(
        self, job: JobId, part: PartitionIndex, state: str, manifest: str | None, error: str | None
    ) -> None:
        async with postgres.connection_of(self._pool) as connection:
            await connection.execute(FINISH, (state, manifest, error, job, part))

    async def orphans(self) -> set[JobId]:
        """Return the deleted jobs that still have backfills."""
        async with postgres.connection_of(self._pool) as connection:
            rows = await (await connection.execute(DELETED_JOBS)).fetchall()
        return {JobId(str(job)) for (job,) in rows}

    async def delete(self, job: JobId) -> None:
        """Delete the rows of a job."""
        async with postgres.connection_of(self._pool) as connection:
            await connection.execute("DELETE FROM backfill WHERE job_id = %s", (job,))
