"""Issue, list, rotate and revoke tokens.

A token is 256 random bits, of which only the SHA-256 is stored; it is shown once. Its id is a part
of that digest, so it names the token and opens nothing. An `owner` is the workspace of the tokens,
or None for those of the installation (role `operator`).

To rotate a token: `rotate` issues one with the same name, role and lifetime and lets the old one
expire after an overlap in which both are valid. A read token is issued by another token for a
short time, for a program that reads DataFrames. It cannot issue another, does not outlive the token
that issued it, and ends when that one is revoked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, cast

from fennel_core.connections.api_errors import (
    TokenNotFound,
    TokenRequestInvalid,
    WorkspaceNotFound,
)
from fennel_core.connections.postgres import AsyncConnection, Pool, in_transaction
from fennel_core.connections.roles import Access, Permission, Role
from fennel_core.connections.workspaces import digest_of, new_token
from fennel_core.vocab.ids import WorkspaceId

NAME_LENGTH: Final = 100
LONGEST_LIFETIME_S: Final = 10 * 365 * 86_400
READ_TOKEN_S: Final = 900
"""Default lifetime of a read token: a notebook's cell, or a short job."""
LONGEST_READ_TOKEN_S: Final = 12 * 3600
LONGEST_OVERLAP_S: Final = 30 * 86_400
READ_TOKENS_KEPT: Final = timedelta(days=1)
"""Expired read tokens are listed for so long."""


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token; `token` is shown once and not stored."""

    id: str
    token: str
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ListedToken:
    """A token without its value. `last_used_at` is at most a minute behind."""

    id: str
    name: str
    role: Role
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    is_read_token: bool


def checked_token_name(name: str) -> str:
    """Return `name`; TokenRequestInvalid if it is too long or not printable."""
    if len(name) > NAME_LENGTH or not name.isprintable():
        raise TokenRequestInvalid(
            f"the name of a token has at most {NAME_LENGTH} printable characters"
        )
    return name


def checked_role(text: str, *, of_workspace: bool) -> Role:
    """Return the role of that name for a token of a workspace, or of the installation.

    Raises TokenRequestInvalid.
    """
    valid = [role for role in Role if (role is not Role.OPERATOR) == of_workspace]
    if text not in valid:
        raise TokenRequestInvalid(f"unknown role `{text}`; valid roles: {', '.join(valid)}")
    return Role(text)


def checked_seconds(name: str, value: float, longest_s: float) -> float:
    """Return a number of seconds from 0 to `longest_s`; TokenRequestInvalid for any other."""
    if not 0 <= value <= longest_s:
        raise TokenRequestInvalid(f"`{name}` must be between 0 and {longest_s:g} seconds")
    return value


async def issue(
    pool: Pool,
    owner: WorkspaceId | None,
    role: Role,
    name: str,
    lifetime_s: float | None,
    make_token: Callable[[], str] = new_token,
) -> IssuedToken:
    """Issue a token. `lifetime_s` None: it never expires. Raises WorkspaceNotFound."""
    token = make_token()
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "INSERT INTO token (digest, workspace, role, name, expires_at)"
            " SELECT %(digest)s, %(owner)s, %(role)s, %(name)s,"
            " now() + make_interval(secs => %(lifetime)s)"
            " WHERE %(owner)s::text IS NULL OR EXISTS"
            " (SELECT FROM workspace WHERE name = %(owner)s AND state = 'open')"
            " RETURNING id, expires_at",
            {
                "digest": digest_of(token),
                "owner": owner,
                "role": role,
                "name": name,
                "lifetime": lifetime_s,
            },
        )
        row = await cursor.fetchone()
    if row is None:
        assert owner is not None, "a token of the installation depends on no workspace"
        raise WorkspaceNotFound(owner)
    return IssuedToken(str(row[0]), token, cast(datetime | None, row[1]))


async def issue_read_token(
    pool: Pool,
    access: Access,
    lifetime_s: float = READ_TOKEN_S,
    make_token: Callable[[], str] = new_token,
) -> IssuedToken:
    """Issue a read token of the workspace that `access` opens.

    Raises RoleInsufficient, and TokenRequestInvalid if `access` is a read token itself.
    """
    workspace, token = access.workspace_for(Permission.READ), make_token()
    if access.is_read_token:
        raise TokenRequestInvalid(
            f"{access.actor} is a read token, which issues no other; use the token that issued it"
        )

    async def work(connection: AsyncConnection) -> IssuedToken:
        await connection.execute(
            "DELETE FROM token WHERE workspace = %s AND is_read_token AND expires_at < now() - %s",
            (workspace, READ_TOKENS_KEPT),
        )
        cursor = await connection.execute(
            "INSERT INTO token (digest, workspace, role, name, expires_at, parent, is_read_token)"
            " VALUES (%s, %s, %s, %s, least(now() + make_interval(secs => %s),"
            " to_timestamp(%s)), %s, true) RETURNING id, expires_at",
            (
                *(digest_of(token), workspace, Role.QUERY, f"read token of {access.actor}"),
                *(lifetime_s, access.expires_s, access.digest),
            ),
        )
        row = await cursor.fetchone()
        assert row is not None, "RETURNING of one row"
        return IssuedToken(str(row[0]), token, cast(datetime, row[1]))

    return await in_transaction(pool, work)


async def list_tokens(pool: Pool, owner: WorkspaceId | None) -> tuple[ListedToken, ...]:
    """Return the tokens of an owner in order of creation."""
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT id, name, role, created_at, expires_at, last_used_at, is_read_token FROM token"
            " WHERE workspace IS NOT DISTINCT FROM %s ORDER BY created_at, id",
            (owner,),
        )
        rows = await cursor.fetchall()
    return tuple(
        ListedToken(
            str(row[0]),
            str(row[1]),
            Role(str(row[2])),
            cast(datetime, row[3]),
            cast(datetime | None, row[4]),
            cast(datetime | None, row[5]),
            bool(row[6]),
        )
        for row in rows
    )


async def rotate(
    pool: Pool,
    owner: WorkspaceId | None,
    id_: str,
    overlap_s: float,
    make_token: Callable[[], str] = new_token,
) -> IssuedToken:
    """Issue a token like `id_`, which itself expires after `overlap_s`.

    The new one has the lifetime that the old one was created with. Raises TokenNotFound.
    """
    token = make_token()

    async def work(connection: AsyncConnection) -> IssuedToken:
        cursor = await connection.execute(
            "UPDATE token SET expires_at = least(expires_at, now() + make_interval(secs => %s))"
            " FROM (SELECT digest, expires_at - created_at AS lifetime FROM token WHERE id = %s"
            " AND workspace IS NOT DISTINCT FROM %s AND NOT is_read_token FOR UPDATE) old"
            " WHERE token.digest = old.digest RETURNING token.role, token.name, old.lifetime",
            (overlap_s, id_, owner),
        )
        old = await cursor.fetchone()
        if old is None:
            raise TokenNotFound(id_)
        cursor = await connection.execute(
            "INSERT INTO token (digest, workspace, role, name, expires_at)"
            " VALUES (%s, %s, %s, %s, now() + %s) RETURNING id, expires_at",
            (digest_of(token), owner, *old),
        )
        row = await cursor.fetchone()
        assert row is not None, "RETURNING of one row"
        return IssuedToken(str(row[0]), token, cast(datetime | None, row[1]))

    return await in_transaction(pool, work)


async def revoke(pool: Pool, owner: WorkspaceId | None, id_: str) -> None:
    """Delete a token and the read tokens that it issued; they stop working within a second.

    Raises TokenNotFound.
    """
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "DELETE FROM token WHERE id = %s AND workspace IS NOT DISTINCT FROM %s", (id_, owner)
        )
    if cursor.rowcount != 1:
        raise TokenNotFound(id_)
