"""Stored connectors in Postgres (migration 0029); see `store.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, LiteralString

import psycopg

from fennel_core.connections.postgres import AsyncConnection, Pool, connection_of
from fennel_core.connectors.store import StoredConnector
from fennel_core.vocab.ids import WorkspaceId

CHANNEL: Final = "connector"
"""Notified when a connector was changed or removed."""
ALL: Final[LiteralString] = """
    SELECT workspace, name, message, number, changed_at, changed_by FROM connector
    ORDER BY workspace, name
"""
OF: Final[LiteralString] = """
    SELECT workspace, name, message, number, changed_at, changed_by FROM connector
    WHERE workspace = %s ORDER BY name
"""
ADD: Final[LiteralString] = """
    INSERT INTO connector (workspace, name, message, number, changed_by)
    VALUES (%(workspace)s, %(name)s, %(message)s, 1, %(by)s) ON CONFLICT DO NOTHING
    RETURNING pg_notify(%(channel)s, '')
"""
CHANGE: Final[LiteralString] = """
    UPDATE connector
    SET message = %(message)s, number = number + 1, changed_at = now(), changed_by = %(by)s
    WHERE workspace = %(workspace)s AND name = %(name)s AND number = %(before)s
    RETURNING pg_notify(%(channel)s, '')
"""
REMOVE: Final[LiteralString] = """
    DELETE FROM connector
    WHERE workspace = %(workspace)s AND name = %(name)s AND number = %(before)s
    RETURNING pg_notify(%(channel)s, '')
"""


class PostgresConnectorStore:
    """`ConnectorStore` in the table `connector`."""

    def __init__(self, by: Pool | AsyncConnection) -> None:
        """`by`: a connection if the calls belong to its transaction."""
        self._by = by

    def _connection(self) -> AbstractAsyncContextManager[AsyncConnection]:
        if isinstance(self._by, psycopg.AsyncConnection):
            return nullcontext(self._by)
        return connection_of(self._by)

    async def all(self) -> Sequence[StoredConnector]:
        async with self._connection() as connection:
            return await all_connectors(connection)

    async def of(self, workspace: WorkspaceId) -> Mapping[str, StoredConnector]:
        async with self._connection() as connection:
            rows = await (await connection.execute(OF, (workspace,))).fetchall()
        return {each.name: each for each in map(_row, rows)}

    async def put(
        self, workspace: WorkspaceId, name: str, message: bytes, by: str, before: int
    ) -> bool:
        values = {"workspace": workspace, "name": name, "message": message, "by": by}
        return await self._changed(CHANGE if before else ADD, {**values, "before": before})

    async def remove(self, workspace: WorkspaceId, name: str, before: int) -> bool:
        return await self._changed(REMOVE, {"workspace": workspace, "name": name, "before": before})

    async def _changed(self, statement: LiteralString, values: Mapping[str, object]) -> bool:
        async with self._connection() as connection:
            cursor = await connection.execute(statement, {**values, "channel": CHANNEL})
            return cursor.rowcount == 1


async def all_connectors(connection: AsyncConnection) -> list[StoredConnector]:
    """Return the connectors of every workspace."""
    return [_row(row) for row in await (await connection.execute(ALL)).fetchall()]


def _row(row: tuple[Any, ...]) -> StoredConnector:
    workspace, name, message, number, at, by = row
    return StoredConnector(WorkspaceId(workspace), name, bytes(message), number, at, by)
