"""Workspaces (tenants): create, list, and start the deletion of one.

A workspace is a row, its branch `main` and its tokens, created in one transaction, so none of them
ever exists without the others. A token is 256 random bits; only its SHA-256 is stored, so the
database cannot reveal it, and it is shown once. Deletion has two steps: `mark_deleting` sets the
state to `deleting`, which refuses every request (tokens stop within a second, see `tokens.py`); the
ledger then destroys the workspace's assets, and the row is deleted last.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, cast

from fennel_core.connections.api_errors import (
    WorkspaceExists,
    WorkspaceNameInvalid,
    WorkspaceNotFound,
)
from fennel_core.connections.postgres import AsyncConnection, Pool, in_transaction
from fennel_core.connections.roles import Role
from fennel_core.vocab.ids import MAIN_BRANCH, WorkspaceId

_NAME: Final = re.compile(r"[a-z0-9-]{1,63}")
TOKEN_BYTES: Final = 32
FIRST_TOKEN: Final = "first token"  # noqa: S105  # a name
"""Name of the token that is created with a workspace."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """One workspace as listed; `state` is `open` or `deleting`.

    `partitions`: of each of its topics and jobs; None before its first commit.
    """

    name: WorkspaceId
    state: str
    created_at: datetime
    partitions: int | None


def new_token() -> str:
    """Return a new bearer token: 256 random bits, safe in a header."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def digest_of(token: str) -> bytes:
    """Return the stored digest of a token.

    It needs no salt or key stretching: 256 random bits cannot be guessed from their hash.
    """
    return hashlib.sha256(token.encode()).digest()


def checked_name(name: str) -> WorkspaceId:
    """Return `name` as an id. Raises WorkspaceNameInvalid if it is malformed.

    It becomes part of topic, object and folder names.
    """
    if _NAME.fullmatch(name) is None:
        raise WorkspaceNameInvalid(name)
    return WorkspaceId(name)


async def ensure(connection: AsyncConnection, name: WorkspaceId) -> bool:
    """Create `name` and its branch `main` in the caller's transaction; False if it exists."""
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
    """Create workspace `name` with branch `main`; return its first token, which is not stored.

    It has the role `admin`.
    WorkspaceNameInvalid for a malformed name, WorkspaceExists if it exists or is being deleted.
    """
    workspace, token = checked_name(name), make_token()

    async def work(connection: AsyncConnection) -> None:
        if not await ensure(connection, workspace):
            raise WorkspaceExists(workspace)
        await connection.execute(
            "INSERT INTO token (digest, workspace, role, name) VALUES (%s, %s, %s, %s)",
            (digest_of(token), workspace, Role.ADMIN, FIRST_TOKEN),
        )

    await in_transaction(pool, work)
    return token


async def list_all(pool: Pool) -> tuple[Workspace, ...]:
    """Return every workspace, by name."""
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT name, state, created_at, partitions FROM workspace ORDER BY name"
        )
        rows = await cursor.fetchall()
    return tuple(
        Workspace(
            WorkspaceId(str(name)),
            str(state),
            cast(datetime, created_at),
            cast(int | None, partitions),
        )
        for name, state, created_at, partitions in rows
    )


async def mark_deleting(pool: Pool, name: str) -> WorkspaceId:
    """Start the irrevocable deletion of workspace `name`; idempotent.

    Raises WorkspaceNotFound if there is no such workspace.
    """
    workspace = checked_name(name)
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "UPDATE workspace SET state = 'deleting' WHERE name = %s", (workspace,)
        )
    if cursor.rowcount != 1:
        raise WorkspaceNotFound(workspace)
    return workspace
