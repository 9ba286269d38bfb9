"""Rows of workspaces and assets, for tests that need no commit."""

from __future__ import annotations

from collections.abc import Collection

from fennel_core.connections.postgres import Pool
from fennel_core.vocab.ids import TopicName

WORKSPACE = "INSERT INTO workspace (name, partitions) VALUES (%s, 2)"
ASSET = """
    INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title, blueprint)
    VALUES (%s, %s, %s, %s, %s, 'live', '', '')
"""


async def store_assets(
    pool: Pool, topics: Collection[TopicName], workspaces: Collection[str]
) -> None:
    """Store workspaces, and topics of them by their names."""
    async with pool.connection() as connection:
        for name in workspaces:
            await connection.execute(WORKSPACE, (name,))
        for topic in topics:
            workspace, kind, identity, number = topic.split(".")
            await connection.execute(ASSET, (topic, workspace, kind, identity, int(number)))
