"""Workspaces: the tenants. Making one, listing them, and starting the end of one.

Theory. A workspace is a row, its branch `main` and its tokens, made in one transaction, so none of
them ever exists without the others. A token is 256 random bits; only its SHA-256 is stored, so the
database cannot give it away, and it is shown once. Deleting is two steps: here the workspace turns
to `deleting`, which closes every door at once (its tokens stop within a second, see `tokens.py`);
the destruction ledger then removes what it had, and the row goes last.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, cast

from fennel_core.connections.postgres import AsyncConnection, Pool, in_transaction
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import MAIN_BRANCH, WorkspaceId

_NAME: Final = re.compile(r"[a-z0-9-]{1,63}")
TOKEN_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Workspace:
    """One workspace as listed; `state` is `open` or `deleting`."""

    name: WorkspaceId
    state: str
    created_at: datetime


def new_token() -> str:
    """A fresh bearer token: 256 random bits, safe in a header."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def digest_of(token: str) -> bytes:
    """What is stored of a token. No salt and no stretching: 256 random bits cannot be guessed from
    their hash.
    """
    return hashlib.sha256(token.encode()).digest()


def checked_name(name: str) -> WorkspaceId:
    """`name` as an id; ApiError 400 `workspace-name` otherwise. It becomes part of topic, object
    and folder names.
    """
    if _NAME.fullmatch(name) is None:
        raise ApiError(
            400,
            "workspace-name",
            f"workspace `{name}`: a name is 1 to 63 of the characters a-z, 0-9 and `-`",
        )
    return WorkspaceId(name)


async def ensure(connection: AsyncConnection, name: WorkspaceId) -> bool:
    """Make `name` and its branch `main` inside the caller's transaction; True when it was not there
    before.
    """
    cursor = await connection.execute(
        "INSERT INTO workspace (name) VALUES (%s) ON CONFLICT DO NOTHING", (name,)
    )
    if cursor.rowcount != 1:
        return False
    await connection.execute(
        "INSERT INTO branch (workspace, name) VALUES (%s, %s)", (name, MAIN_BRANCH)
    )
    return True


async def create(pool: Pool, name: str, make_token: Callable[[], str] = new_token) -> str:
    """Make workspace `name` with branch `main` and return its first token, which cannot be read
    again.

    ApiError 400 for a bad name, 409 `workspace-exists` when it is there (or still being deleted).
    """
    workspace, token = checked_name(name), make_token()

    async def work(connection: AsyncConnection) -> None:
        if not await ensure(connection, workspace):
            raise ApiError(
                409,
                "workspace-exists",
                f"workspace `{workspace}` already exists: choose another name, or "
                "add a token to it",
            )
        await connection.execute(
            "INSERT INTO token (digest, workspace) VALUES (%s, %s)", (digest_of(token), workspace)
        )

    await in_transaction(pool, work)
    return token


async def add_token(pool: Pool, name: str, make_token: Callable[[], str] = new_token) -> str:
    """A further token of an open workspace (to rotate: add, hand out, `revoke_others`); ApiError
    404 when there is no such workspace.
    """
    workspace, token = checked_name(name), make_token()
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "INSERT INTO token (digest, workspace) SELECT %s, name FROM workspace "
            "WHERE name = %s AND state = 'open'",
            (digest_of(token), workspace),
        )
    if cursor.rowcount != 1:
        raise _not_found(workspace)
    return token


async def revoke_others(pool: Pool, name: str, kept: str) -> int:
    """Remove every token of `name` but `kept` and return how many there were; they stop working
    within a second.
    """
    workspace = checked_name(name)
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "DELETE FROM token WHERE workspace = %s AND digest <> %s", (workspace, digest_of(kept))
        )
    return cursor.rowcount


async def list_all(pool: Pool) -> tuple[Workspace, ...]:
    """Every workspace, by name."""
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT name, state, created_at FROM workspace ORDER BY name"
        )
        rows = await cursor.fetchall()
    return tuple(
        Workspace(WorkspaceId(str(name)), str(state), cast(datetime, created_at))
        for name, state, created_at in rows
    )


async def mark_deleting(pool: Pool, name: str) -> WorkspaceId:
    """Close every door of workspace `name`: from here its end is certain. ApiError 404 when there
    is none; repeating it changes nothing.
    """
    workspace = checked_name(name)
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "UPDATE workspace SET state = 'deleting' WHERE name = %s", (workspace,)
        )
    if cursor.rowcount != 1:
        raise _not_found(workspace)
    return workspace


def _not_found(workspace: WorkspaceId) -> ApiError:
    return ApiError(
        404, "workspace-not-found", f"workspace `{workspace}` does not exist or is being deleted"
    )
