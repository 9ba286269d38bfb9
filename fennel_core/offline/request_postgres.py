"""Requests for training data in Postgres (migrations 0013 and 0014)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar, cast

import msgspec

from fennel_core.connections import postgres
from fennel_core.connections.api_errors import WorkspaceNotFound
from fennel_core.connections.postgres import AsyncConnection, Pool, connection_of
from fennel_core.offline.request_row import (
    NewRequest,
    OfflineRequest,
    RequestDefinition,
    RequestFailure,
    RequestResult,
    admitted,
)
from fennel_core.offline.request_states import RequestState
from fennel_core.offline.request_store import RequestChange
from fennel_core.vocab.ids import BranchName, WorkspaceId

COLUMNS: Final = (
    "id, workspace, branch, actor, definition::text, created_at, state, starts, epoch,"
    " lease_until, began_at, ended_at, completion, result::text, failure::text, removed_at,"
    " run_name, failed_rows"
)
_UPDATE: Final = (
    "UPDATE offline_query SET state = %s, starts = %s, epoch = %s, lease_until = %s,"
    " began_at = %s, ended_at = %s, completion = %s, result = %s, failure = %s, removed_at = %s,"
    " run_name = %s, failed_rows = %s WHERE id = %s"
)
REMOVED_AT_ONCE: Final = 1000
"""Rows of one search for results or rows to delete; the next search has the others."""
_SELECT: Final = f"SELECT {COLUMNS} FROM offline_query"  # noqa: S608  # built from constants
_INSERT: Final = (
    "INSERT INTO offline_query (id, workspace, branch, actor, definition, created_at, state,"
    " starts, run_name, lease_until) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_OPEN_OF: Final = (
    "SELECT count(*), clock_timestamp() FROM offline_query"
    " WHERE workspace = %s AND ended_at IS NULL"
)
_LOCKED: Final = f"SELECT {COLUMNS}, clock_timestamp() FROM offline_query WHERE id = %s FOR UPDATE"  # noqa: S608  # built from constants
_REMOVABLE: Final = (
    f"{_SELECT} WHERE removed_at IS NULL AND CASE state"
    " WHEN 'done' THEN ended_at + %(kept)s <= now()"
    " ELSE ended_at IS NOT NULL AND (lease_until IS NULL OR lease_until <= now()) END"
    " ORDER BY ended_at, id LIMIT %(rows)s"
)
_FORGET: Final = """
    DELETE FROM offline_query WHERE id IN (
        SELECT id FROM offline_query
        WHERE removed_at IS NOT NULL AND ended_at + %(kept)s <= now()
        ORDER BY ended_at, id LIMIT %(rows)s FOR UPDATE SKIP LOCKED
    )
"""
T = TypeVar("T")


class PostgresRequests:
    """Implement `RequestStore` with the table `offline_query`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def add(self, new: NewRequest, limit: int) -> OfflineRequest:
        async def work(connection: AsyncConnection) -> OfflineRequest:
            # The others that add to this workspace wait, so the number holds until the end.
            workspace = await connection.execute(
                "SELECT FROM workspace WHERE name = %s AND state = 'open' FOR NO KEY UPDATE",
                (new.workspace,),
            )
            if workspace.rowcount == 0:
                raise WorkspaceNotFound(new.workspace)
            found = await connection.execute(f"{_SELECT} WHERE id = %s", (new.id,))
            if (values := await found.fetchone()) is not None:
                return request_of_row(values)
            counted = await (await connection.execute(_OPEN_OF, (new.workspace,))).fetchone()
            waiting, now = cast(tuple[int, datetime], counted)
            row = admitted(new, waiting, limit, now)
            definition = _json(row.definition)
            place = (row.id, row.workspace, row.branch, row.actor, definition, row.created_at)
            run = (row.state, row.starts, row.run_name, row.lease_until)
            await connection.execute(_INSERT, (*place, *run))
            return row

        return await postgres.in_transaction(self._pool, work)

    async def read(self, id_: str) -> OfflineRequest | None:
        found = await self._select(f"{_SELECT} WHERE id = %s", (id_,))
        return found[0] if found else None

    async def change(self, id_: str, change: RequestChange) -> OfflineRequest | None:
        async def work(connection: AsyncConnection) -> OfflineRequest | None:
            found = await connection.execute(_LOCKED, (id_,))
            values = await found.fetchone()
            if values is None:
                return None
            row, now = request_of_row(values[:-1]), cast(datetime, values[-1])
            changed = change(row, now)
            if changed != row:
                await connection.execute(_UPDATE, _values(changed))
            return changed

        return await postgres.in_transaction(self._pool, work)

    async def newest(self, workspace: WorkspaceId | None, rows: int) -> tuple[OfflineRequest, ...]:
        return await self._select(
            f"{_SELECT} WHERE (%s::text IS NULL OR workspace = %s)"
            " ORDER BY created_at DESC, id DESC LIMIT %s",
            (workspace, workspace, rows),
        )

    async def count_open(self, workspace: WorkspaceId) -> int:
        async with connection_of(self._pool) as connection:
            counted = await (await connection.execute(_OPEN_OF, (workspace,))).fetchone()
        return cast(tuple[int, datetime], counted)[0]

    async def open_requests(self) -> tuple[OfflineRequest, ...]:
        return await self._select(f"{_SELECT} WHERE ended_at IS NULL ORDER BY created_at, id", ())

    async def removable(self, kept: timedelta) -> tuple[OfflineRequest, ...]:
        return await self._select(_REMOVABLE, {"kept": kept, "rows": REMOVED_AT_ONCE})

    async def removals(self, ids: Collection[str]) -> Mapping[str, bool]:
        query = "SELECT id, removed_at IS NOT NULL FROM offline_query WHERE id = ANY(%s)"
        async with connection_of(self._pool) as connection:
            rows = await (await connection.execute(query, (sorted(ids),))).fetchall()
        return {str(id_): bool(removed) for id_, removed in rows}

    async def forget(self, kept: timedelta) -> int:
        async with connection_of(self._pool) as connection:
            done = await connection.execute(_FORGET, {"kept": kept, "rows": REMOVED_AT_ONCE})
        return done.rowcount

    async def now(self) -> datetime:
        return await postgres.now(self._pool)

    async def _select(
        self, query: str, values: tuple[Any, ...] | dict[str, Any]
    ) -> tuple[OfflineRequest, ...]:
        async with connection_of(self._pool) as connection:
            rows = await (await connection.execute(query, values)).fetchall()
        return tuple(map(request_of_row, rows))


def request_of_row(values: tuple[Any, ...]) -> OfflineRequest:
    """Return the request of a row with `COLUMNS`."""
    id_, workspace, branch, actor, definition, created_at, state, *rest = values
    starts, epoch, lease_until, began_at, ended_at, completion, result, failure, *newer = rest
    return OfflineRequest(
        id_,
        WorkspaceId(workspace),
        BranchName(branch),
        actor,
        msgspec.json.decode(definition, type=RequestDefinition),
        created_at,
        RequestState(state),
        starts,
        epoch,
        lease_until,
        began_at,
        ended_at,
        completion,
        _parsed(result, RequestResult),
        _parsed(failure, RequestFailure),
        *newer,
    )


def _values(row: OfflineRequest) -> tuple[Any, ...]:
    """Return the values of `_UPDATE`."""
    return (
        row.state,
        row.starts,
        row.epoch,
        row.lease_until,
        row.began_at,
        row.ended_at,
        row.completion,
        None if row.result is None else _json(row.result),
        None if row.failure is None else _json(row.failure),
        row.removed_at,
        row.run_name,
        row.failed_rows,
        row.id,
    )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _parsed(text: str | None, kind: type[T]) -> T | None:
    return None if text is None else msgspec.json.decode(text, type=kind)
