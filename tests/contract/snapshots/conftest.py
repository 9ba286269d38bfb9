"""A bucket and pointer rows, in memory and for real."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from fennel_core.connections import s3
from fennel_core.connections.postgres import pool
from fennel_core.snapshots.memory import MemoryObjects, MemoryPointers
from fennel_core.snapshots.postgres import PostgresPointers
from fennel_core.snapshots.s3 import S3Objects
from fennel_core.snapshots.store import Objects, Pointers
from fennel_core.vocab.ids import Epoch, JobPartition
from tests.support.postgres import database, empty_database, postgres_server
from tests.support.s3 import s3_server

__all__ = ["database", "empty_database", "postgres_server", "s3_server"]


@dataclass(frozen=True)
class Rows:
    """Pointer rows, and how a test plays the registry: `own(place, epoch)` makes somebody the
    owner, `gone(job)` removes the job.
    """

    pointers: Pointers
    own: Callable[[JobPartition, int], Awaitable[None]]
    gone: Callable[[str], Awaitable[None]]


@pytest.fixture(params=["memory", "s3"])
def objects(request: pytest.FixtureRequest) -> Objects:
    if request.param == "memory":
        return MemoryObjects(lambda: datetime.now(UTC))
    client, bucket = s3.client(request.getfixturevalue("s3_server")), f"test-{uuid.uuid4().hex[:8]}"
    s3.ensure_bucket(client, bucket)
    return S3Objects(client, bucket)


@pytest.fixture(params=["memory", "postgres"])
async def rows(request: pytest.FixtureRequest) -> AsyncIterator[Rows]:
    if request.param == "memory":
        twin = MemoryPointers(lambda: datetime.now(UTC), {})

        async def own(place: JobPartition, epoch: int) -> None:
            twin.epochs[place] = Epoch(epoch)

        async def gone(job: str) -> None:
            twin.epochs = {place: epoch for place, epoch in twin.epochs.items() if place[0] != job}

        yield Rows(twin, own, gone)
        return
    async with pool(request.getfixturevalue("database"), name="test", size=2) as connections:

        async def own_row(place: JobPartition, epoch: int) -> None:
            async with connections.connection() as connection:
                await connection.execute(
                    "INSERT INTO job (id, workspace, spec) VALUES (%s, 'w', '') ON "
                    "CONFLICT DO NOTHING",
                    (place[0],),
                )
                await connection.execute(
                    "INSERT INTO job_partition (job_id, part, epoch) VALUES (%s, %s, %s)"
                    " ON CONFLICT (job_id, part) DO UPDATE SET epoch = excluded.epoch",
                    (*place, epoch),
                )

        async def gone_row(job: str) -> None:
            async with connections.connection() as connection:
                await connection.execute("DELETE FROM job WHERE id = %s", (job,))

        yield Rows(PostgresPointers(connections), own_row, gone_row)
