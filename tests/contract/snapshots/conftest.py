"""Objects and pointer rows, in memory and in S3 and Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from fennel_core.connections.postgres import pool
from fennel_core.snapshots.memory import MemoryPointers
from fennel_core.snapshots.postgres import PostgresPointers
from fennel_core.snapshots.store import Pointers
from fennel_core.vocab.ids import Epoch, JobPartition
from tests.support.object_store import objects

__all__ = ["objects"]


@dataclass(frozen=True)
class Rows:
    """Pointer rows and the registry.

    `own(partition, epoch)` sets the owner of a job partition, `gone(job)` deletes the job.
    """

    pointers: Pointers
    own: Callable[[JobPartition, int], Awaitable[None]]
    gone: Callable[[str], Awaitable[None]]


@pytest.fixture(params=["memory", "postgres"])
async def rows(request: pytest.FixtureRequest) -> AsyncIterator[Rows]:
    if request.param == "memory":
        memory = MemoryPointers(lambda: datetime.now(UTC), {})

        async def own(partition: JobPartition, epoch: int) -> None:
            memory.epochs[partition] = Epoch(epoch)

        async def gone(job: str) -> None:
            memory.epochs = {
                partition: epoch
                for partition, epoch in memory.epochs.items()
                if partition[0] != job
            }

        yield Rows(memory, own, gone)
        return
    async with pool(request.getfixturevalue("database"), name="test", size=2) as connections:

        async def own_row(partition: JobPartition, epoch: int) -> None:
            async with connections.connection() as connection:
                await connection.execute(
                    "INSERT INTO job (id, workspace, spec) VALUES (%s, 'w', '') ON "
                    "CONFLICT DO NOTHING",
                    (partition[0],),
                )
                await connection.execute(
                    "INSERT INTO job_partition (job_id, part, epoch) VALUES (%s, %s, %s)"
                    " ON CONFLICT (job_id, part) DO UPDATE SET epoch = excluded.epoch",
                    (*partition, epoch),
                )

        async def gone_row(job: str) -> None:
            async with connections.connection() as connection:
                await connection.execute("DELETE FROM job WHERE id = %s", (job,))

        yield Rows(PostgresPointers(connections), own_row, gone_row)
