"""What the bulk lane remembers between an owner that asks for a load and the driver that has it
computed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg_pool import PoolTimeout

from fennel_core.bank.registry import RegistryUnavailable
from fennel_core.connections.postgres import AsyncConnection, Pool
from fennel_core.vocab.ids import JobId, PartitionIndex

CHANNEL: Final = "bulk"
CLAIM_SECONDS: Final = 60
"""After this long without a sign from its driver a load is computed once more; the first of two
counts.
"""
Place = tuple[JobId, PartitionIndex]


@dataclass(frozen=True, slots=True)
class Asked:
    """How a load stands: `wanted`, `running`, `staged` (then `manifest` is its key), `failed` or
    `refused` (then `error` says why).
    """

    state: str
    manifest: str | None
    error: str | None


class Loads:
    """Rows of `bulk_load`. Every method raises RegistryUnavailable when Postgres cannot be
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
            raise RegistryUnavailable(f"bulk loads: {failed}") from failed

    async def ask(
        self, job: JobId, part: PartitionIndex, rows: int, *, again: bool = False
    ) -> None:
        """Ask for a load, unless it was asked for before; `again`: also if that came to nothing."""
        async with self._connection() as connection:
            statement = """
                INSERT INTO bulk_load AS l (job_id, part, row_count) VALUES (%s, %s, %s) ON
                    CONFLICT (job_id, part) DO UPDATE
                SET state = 'wanted', row_count = excluded.row_count, error = NULL, updated_at =
                    now()
                WHERE %s AND l.state IN ('failed', 'refused')
            """
            await connection.execute(statement, (job, part, rows, again))
            await connection.execute("SELECT pg_notify(%s, '')", (CHANNEL,))

    async def asked(self, job: JobId, part: PartitionIndex) -> Asked | None:
        async with self._connection() as connection:
            question = (
                "SELECT state, manifest, error FROM bulk_load WHERE job_id = %s AND part = %s"
            )
            row = await (await connection.execute(question, (job, part))).fetchone()
        if row is None:
            return None
        state, manifest, error = row
        return Asked(
            str(state),
            None if manifest is None else str(manifest),
            None if error is None else str(error),
        )

    async def refuse(self, job: JobId, part: PartitionIndex) -> None:
        """Nobody took it up: whoever asked goes on without."""
        async with self._connection() as connection:
            statement = (
                "UPDATE bulk_load SET state = 'refused', updated_at = now() WHERE job_id "
                "= %s AND part = %s AND state = 'wanted'"
            )
            await connection.execute(statement, (job, part))

    async def claim(self) -> list[Place]:
        """Take up everything that is wanted, or whose driver died."""
        async with self._connection() as connection:
            statement = """
                UPDATE bulk_load SET state = 'running', claimed_until = now() + make_interval(secs
                    => %s), updated_at = now()
                WHERE state = 'wanted' OR (state = 'running' AND claimed_until < now()) RETURNING
                    job_id, part
            """
            rows = await (await connection.execute(statement, (CLAIM_SECONDS,))).fetchall()
        return [(JobId(str(job)), PartitionIndex(int(str(part)))) for job, part in rows]

    async def keep(self, job: JobId, part: PartitionIndex) -> None:
        """The driver is still at work."""
        async with self._connection() as connection:
            statement = """
                UPDATE bulk_load SET claimed_until = now() + make_interval(secs => %s)
                WHERE job_id = %s AND part = %s AND state = 'running'
            """
            await connection.execute(statement, (CLAIM_SECONDS, job, part))

    async def staged(self, job: JobId, part: PartitionIndex, manifest: str) -> None:
        """Only the first of two that computed the same load counts."""
        await self._finish(job, part, "staged", manifest, None)

    async def failed(self, job: JobId, part: PartitionIndex, error: str) -> None:
        await self._finish(job, part, "failed", None, error)

    async def _finish(
        self, job: JobId, part: PartitionIndex, state: str, manifest: str | None, error: str | None
    ) -> None:
        async with self._connection() as connection:
            statement = """
                UPDATE bulk_load SET state = %s, manifest = %s, error = %s, updated_at = now()
                WHERE job_id = %s AND part = %s AND state = 'running'
            """
            await connection.execute(statement, (state, manifest, error, job, part))

    async def left_over(self) -> set[JobId]:
        """Jobs that are gone and still have loads."""
        async with self._connection() as connection:
            question = (
                "SELECT DISTINCT job_id FROM bulk_load l WHERE NOT EXISTS (SELECT FROM "
                "job WHERE id = l.job_id)"
            )
            rows = await (await connection.execute(question)).fetchall()
        return {JobId(str(job)) for (job,) in rows}

    async def forget(self, job: JobId) -> None:
        async with self._connection() as connection:
            await connection.execute("DELETE FROM bulk_load WHERE job_id = %s", (job,))
