"""What the query server makes of errors of its database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import psycopg
import pytest

from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.connections.postgres import Pool
from fennel_core.query.postgres import QUERY_LOG_TOPIC, PostgresReader
from fennel_core.vocab.ids import WorkspaceId


class RefusingWrites:
    """A pool and its connection: reads find no rows, writes raise `error`."""

    def __init__(self, error: psycopg.Error) -> None:
        self._error = error

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[RefusingWrites]:
        yield self

    async def execute(self, statement: str, _values: object) -> RefusingWrites:
        if statement != QUERY_LOG_TOPIC:
            raise self._error
        return self

    async def fetchall(self) -> list[tuple[object, ...]]:
        return []


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.ReadOnlySqlTransaction("a standby"),
        psycopg.errors.InsufficientPrivilege("revoked"),
        psycopg.errors.UndefinedTable("before the migration"),
    ],
)
async def test_a_topic_that_cannot_be_requested_does_not_end_the_server(
    error: psycopg.Error,
) -> None:
    reads = PostgresReader(cast(Pool, RefusingWrites(error)))
    with pytest.raises(DatabaseUnavailable, match=str(error)):
        await reads.query_log_topic(WorkspaceId("w"))
