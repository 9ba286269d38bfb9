"""Authenticate: find the workspace of a bearer token.

The token row is found by the token's SHA-256, so a comparison leaks nothing about how close a guess
was, and the digests are compared once more in constant time. Every request authenticates, so
results are cached per process. Up to `FRESH_SECONDS` a cached result is used as it is; after that
one task reads Postgres again while requests still use it; after `USABLE_SECONDS` it is not used any
more. So a token of a deleted workspace stops working within a second, and a busy server never waits
for Postgres. Only successes are cached: a new token works at once, and wrong tokens cannot fill the
memory.

In development (`dev_tokens`, loopback only) the token `dev-<name>` opens workspace `<name>` and
creates it at first use.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import psycopg
from psycopg_pool import PoolTimeout
from pydantic import SecretStr

from fennel_core.connections.api_errors import (
    DatabaseUnavailable,
    NotAdministrator,
    TokenMissing,
    TokenUnknown,
)
from fennel_core.connections.postgres import AsyncConnection, Pool, in_transaction
from fennel_core.connections.workspaces import checked_name, digest_of, ensure
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import WorkspaceId

FRESH_SECONDS: Final = 0.3
USABLE_SECONDS: Final = 0.9
KEPT_TOKENS: Final = 10_000
DEV_PREFIX: Final = "dev-"
_SCHEME: Final = "bearer "


class TokenSettings(Protocol):
    """The settings that authentication reads."""

    @property
    def dev_tokens(self) -> bool: ...
    @property
    def only_on_loopback(self) -> bool: ...
    @property
    def admin_token(self) -> SecretStr: ...


@dataclass(slots=True)
class _Known:
    workspace: WorkspaceId
    read_at: float
    refreshing: bool = False


@dataclass(slots=True)
class _TokenCache:
    known: dict[bytes, _Known] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


_caches: WeakKeyDictionary[Pool, _TokenCache] = WeakKeyDictionary()


async def workspace_of(
    pool: Pool,
    settings: TokenSettings,
    header: str | None,
    clock: Callable[[], float] = time.monotonic,
) -> WorkspaceId:
    """Return the workspace of the token in the `Authorization` header `header`.

    `TokenMissing` without a bearer token, `TokenUnknown` for a token without
    a workspace, 400 for a development token with a bad workspace name, 503 `database-unavailable`
    when Postgres cannot be reached. `clock` returns monotonic seconds.
    """
    token = bearer(header)
    digest = digest_of(token)
    memory = _caches.get(pool)
    if memory is None:
        memory = _caches.setdefault(pool, _TokenCache())
    known = memory.known.get(digest)
    now = clock()
    if known is not None and now - known.read_at < USABLE_SECONDS:
        if now - known.read_at >= FRESH_SECONDS and not known.refreshing:
            known.refreshing = True
            task = asyncio.create_task(_refresh(memory, digest, pool, settings, token, now))
            memory.tasks.add(task)
            task.add_done_callback(memory.tasks.discard)
        return known.workspace
    workspace = await _read(pool, settings, token)
    if len(memory.known) >= KEPT_TOKENS:
        memory.known.clear()
    memory.known[digest] = _Known(workspace, now)
    return workspace


def bearer(header: str | None) -> str:
    """Return the token of an `Authorization` header or raise TokenMissing."""
    if (
        header is None
        or header[: len(_SCHEME)].lower() != _SCHEME
        or not (token := header[len(_SCHEME) :].strip())
    ):
        raise TokenMissing()
    return token


def require_admin(settings: TokenSettings, header: str | None) -> None:
    """Raise NotAdministrator unless `header` has the administrator's token.

    An empty `admin_token` setting refuses every token.
    """
    expected = settings.admin_token.get_secret_value()
    given = bearer(header)
    if not expected or not hmac.compare_digest(given.encode(), expected.encode()):
        raise NotAdministrator()


async def _refresh(
    memory: _TokenCache, digest: bytes, pool: Pool, settings: TokenSettings, token: str, now: float
) -> None:
    """Read the token again while requests use the cached result.

    `now` was taken before the read, so the result never counts as newer than it is.
    """
    try:
        memory.known[digest] = _Known(await _read(pool, settings, token), now)
    except ApiError as refused:
        if refused.status == 503:
            # Use the cached result until it is too old; the next request tries again.
            memory.known[digest].refreshing = False
        else:
            memory.known.pop(digest, None)


async def _read(pool: Pool, settings: TokenSettings, token: str) -> WorkspaceId:
    try:
        if settings.dev_tokens and settings.only_on_loopback and token.startswith(DEV_PREFIX):
            return await _open_dev(pool, checked_name(token.removeprefix(DEV_PREFIX)))
        found = await _find(pool, digest_of(token))
    except (psycopg.OperationalError, PoolTimeout) as lost:
        raise DatabaseUnavailable("the platform's database cannot be reached; try again") from lost
    if found is None:
        raise TokenUnknown(
            "unknown token: it is wrong, or its workspace was deleted",
        )
    return found


async def _find(pool: Pool, digest: bytes) -> WorkspaceId | None:
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT t.digest, w.name FROM token t JOIN workspace w ON w.name = "
            "t.workspace WHERE t.digest = %s AND w.state = 'open'",
            (digest,),
        )
        row = await cursor.fetchone()
    if row is None or not isinstance(row[0], bytes) or not hmac.compare_digest(row[0], digest):
        return None
    return WorkspaceId(str(row[1]))


async def _open_dev(pool: Pool, workspace: WorkspaceId) -> WorkspaceId:
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT state FROM workspace WHERE name = %s", (workspace,)
        )
        row = await cursor.fetchone()
    if row is None:

        async def work(transaction: AsyncConnection) -> None:
            await ensure(transaction, workspace)

        await in_transaction(pool, work)
    elif row[0] != "open":
        raise TokenUnknown(
            f"workspace `{workspace}` is being deleted; its token works again after that",
        )
    return workspace
