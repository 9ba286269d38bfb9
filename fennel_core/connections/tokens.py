"""Authenticate: find the workspace of a bearer token.

The token row is found by the token's SHA-256, so a comparison leaks nothing about how close a guess
was, and the digests are compared once more in constant time. Every request authenticates, so
results are cached per process. Up to `FRESH_SECONDS` a cached result is used as it is; after that
one task reads Postgres again while requests still use it; after `USABLE_SECONDS` requests wait for
that task. So a token of a deleted workspace stops working within a second, and a busy server never
waits for Postgres. Concurrent requests with one token share one read. While Postgres does not
respond, cached results stay in use and no request waits; the first read that succeeds decides
again. Only successes are cached: a new token works at once, and wrong tokens cannot fill the
memory.

In development (`dev_tokens`, loopback only) the token `dev-<name>` opens workspace `<name>` and
creates it at first use.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
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
from fennel_core.vocab.ids import WorkspaceId

FRESH_SECONDS: Final = 0.3
USABLE_SECONDS: Final = 0.9
WAIT_SECONDS: Final = 1.0
"""Longest wait for Postgres with a token that is cached."""
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


@dataclass(frozen=True, slots=True)
class _Known:
    workspace: WorkspaceId
    read_at: float


@dataclass(slots=True)
class _TokenCache:
    known: OrderedDict[bytes, _Known] = field(default_factory=OrderedDict)
    reads: dict[bytes, asyncio.Task[WorkspaceId]] = field(default_factory=dict)
    responds: bool = True
    """Whether the last read had a response in time."""


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
    when the token is not cached and Postgres cannot be reached. `clock` returns monotonic seconds.
    """
    token = bearer(header)
    digest = digest_of(token)
    memory = _caches.get(pool)
    if memory is None:
        memory = _caches.setdefault(pool, _TokenCache())
    known = memory.known.get(digest)
    now = clock()
    if known is not None and now - known.read_at < FRESH_SECONDS:
        return known.workspace
    read = memory.reads.get(digest)
    if read is None:
        read = memory.reads[digest] = asyncio.create_task(_read(pool, settings, token))
        read.add_done_callback(partial(_has_read, memory, digest, now))
    if known is None:
        return await asyncio.shield(read)
    if now - known.read_at < USABLE_SECONDS or not memory.responds:
        return known.workspace
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            return await asyncio.shield(read)
    except (DatabaseUnavailable, TimeoutError):
        memory.responds = False
        return known.workspace


def _has_read(
    memory: _TokenCache, digest: bytes, began: float, task: asyncio.Task[WorkspaceId]
) -> None:
    """Cache the result of a read that began at `began`, so that it never counts as newer."""
    del memory.reads[digest]
    if task.cancelled():
        return
    failed = task.exception()
    memory.responds = not isinstance(failed, DatabaseUnavailable)
    if failed is None:
        memory.known[digest] = _Known(task.result(), began)
        memory.known.move_to_end(digest)
        while len(memory.known) > KEPT_TOKENS:
            memory.known.popitem(last=False)
    elif memory.responds:
        memory.known.pop(digest, None)


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
