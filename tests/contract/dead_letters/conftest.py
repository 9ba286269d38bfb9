"""Counts of dead letters in memory and in a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fennel_core.connections.postgres import pool
from fennel_core.dead_letters.counts import DeadLetterCounts
from fennel_core.dead_letters.memory import MemoryDeadLetterCounts
from fennel_core.dead_letters.postgres import PostgresDeadLetterCounts
from fennel_core.vocab.ids import TopicName, WorkspaceId

TOPICS = (TopicName("shop.dead.x.1"), TopicName("other.dead.x.2"))


@pytest.fixture(params=["memory", "postgres"])
async def counts(request: pytest.FixtureRequest) -> AsyncIterator[DeadLetterCounts]:
    """The topics of two workspaces with two partitions each, and a third that is deleted."""
    if request.param == "memory":
        living = {topic: (WorkspaceId(topic.split(".")[0]), 2) for topic in TOPICS}
        yield MemoryDeadLetterCounts(living)
        return
    async with pool(request.getfixturevalue("database"), name="test", size=8) as connections:
        async with connections.connection() as connection:
            for topic in (*TOPICS, "gone.dead.x.3"):
                workspace, kind, identity, number = topic.split(".")
                await connection.execute(
                    "INSERT INTO workspace (name, partitions) VALUES (%s, 2)", (workspace,)
                )
                await connection.execute(
                    "INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title, "
                    "blueprint) VALUES (%s, %s, %s, %s, %s, %s, '', '')",
                    (
                        topic,
                        workspace,
                        kind,
                        identity,
                        int(number),
                        "deleted" if workspace == "gone" else "live",
                    ),
                )
        yield PostgresDeadLetterCounts(connections)
