"""History's rows in memory and in a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fennel_core.connections.postgres import pool
from fennel_core.history.memory import MemoryHistoryFiles
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.store import HistoryFiles
from tests.support.kafka import secured_kafka

__all__ = ["secured_kafka"]


@pytest.fixture(params=["memory", "postgres"])
async def files(request: pytest.FixtureRequest) -> AsyncIterator[HistoryFiles]:
    if request.param == "memory":
        yield MemoryHistoryFiles()
        return
    async with pool(request.getfixturevalue("database"), name="test", size=8) as connections:
        yield PostgresHistoryFiles(connections)
