"""What backfills remembers between an owner that asks for a load and the driver that has it
computed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg_pool import PoolTimeout

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.postgres import AsyncConnection, Pool
from fennel_core.vocab.ids import JobId, JobPartition, PartitionIndex

CHANNEL: Final = "backfill"
CLAIM_SECONDS: Final = 60
"""After this long without a sign from its driver a load is computed once more; the first of two
counts.
"""


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """How a load stands: `requested`, `running`, `staged` (then `manifest` is its key), `failed` or
    `expired` (then `error` says why).
    """

    state: str
    manifest: str | None
    error: str | None


class BackfillQueue:
    """Rows of `backfill`. Every method raises SystemUnavailable when Postgres cannot be
    asked.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._pool.connection() as connection:
                yield connection
        except (psycopg.Error, PoolTimeout) as failed:
            raise SystemUnavailable(f"backfills: {failed}") from failed

    async def request(
        self, job: JobId, part: PartitionIndex, rows: int, *, retry: bool = False
    ) -> None:
        """Ask for a load, unless it was asked for before; `retry`: also if that came to nothing."""
        async with self._connection() as connection:
            statement = """
                INSERT INTO backfill AS b (job_id, part, row_count) VALUES (%s, %s, %s) ON
                    CONFLICT (job_id, part) DO UPDATE
                SET state = 'requested', row_count = excluded.row_count, error = NULL, updated_at =
                    now()
                WHERE %s AND b.state IN ('failed', 'expired')
            """
            await connection.execute(statement, (job, part, rows, retry))
            await connection.execute("SELECT pg_notify(%s, '')", (CHANNEL,))

    async def find(self, job: JobId, part: PartitionIndex) -> BackfillRequest | None:
        async with self._connection() as connection:
            question = "SELECT state, manifest, error FROM backfill WHERE job_id = %s AND part = %s"
            row = await (await connection.execute(question, (job, part))).fetchone()
        if row is None:
            return None
        state, manifest, error = row
        return BackfillRequest(
            str(state),
            None if manifest is None else str(manifest),
            None if error is None else str(error),
        )

    async def expire(self, job: JobId, part: PartitionIndex) -> None:
        """Nobody took it up: whoever asked goes on without."""
        async with self._connection() as connection:
            statement = (
                "UPDATE backfill SET state = 'expired', updated_at = now() WHERE job_id "
                "= %s AND part = %s AND state = 'requested'"
            )
            await connection.execute(statement, (job, part))

    async def claim(self) -> list[JobPartition]:
        """Take up everything that is wanted, or whose driver died."""
        async with self._connection() as connection:
            statement = """
                UPDATE backfill SET state = 'running', claimed_until = now() + make_interval(secs
                    => %s), updated_at = now()
                WHERE state = 'requested' OR (state = 'running' AND claimed_until < now()) RETURNING
                    job_id, part
            """
            rows = await (await connection.execute(statement, (CLAIM_SECONDS,))).fetchall()
        return [(JobId(str(job)), PartitionIndex(int(str(part)))) for job, part in rows]

    async def renew_claim(self, job: JobId, part: PartitionIndex) -> None:
        """The driver is still at work."""
        async with self._connection() as connection:
            statement = """
                UPDATE backfill SET claimed_until = now() + make_interval(secs => %s)
                WHERE job_id = %s AND part = %s AND state = 'running'
            """
            await connection.execute(statement, (CLAIM_SECONDS, job, part))

    async def complete(self, job: JobId, part: PartitionIndex, manifest: str) -> None:
        """Only the first of two that computed the same load counts."""
        await self._finish(job, part, "staged", manifest, None)

    async def fail(self, job: JobId, part: PartitionIndex, error: str) -> None:
        await self._finish(job, part, "failed", None, error)

    async def _finish(
        self, job: JobId, part: PartitionIndex, state: str, manifest: str | None, error: str | None
    ) -> None:
        async with self._connection() as connection:
            statement = """
                UPDATE backfill SET state = %s, manifest = %s, error = %s, updated_at = now()
                WHERE job_id = %s AND part = %s AND state = 'running'
            """
            await connection.execute(statement, (state, manifest, error, job, part))

    async def orphans(self) -> set[JobId]:
        """Jobs that are gone and still have queue."""
        async with self._connection() as connection:
            question = (
                "SELECT DISTINCT job_id FROM backfill b WHERE NOT EXISTS (SELECT FROM "
                "job WHERE id = b.job_id)"
            )
            rows = await (await connection.execute(question)).fetchall()
        return {JobId(str(job)) for (job,) in rows}

    async def delete(self, job: JobId) -> None:
        async with self._connection() as connection:
            await connection.execute("DELETE FROM backfill WHERE job_id = %s", (job,))
