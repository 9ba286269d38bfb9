"""Authenticate: find what a bearer token opens (`roles.Access`).

The token row is found by the token's SHA-256, so a comparison leaks nothing about how close a guess
was, and the digests are compared once more in constant time. Every request authenticates, so
results are cached per process. Up to `FRESH_SECONDS` a cached result is used as it is; after that
one task reads Postgres again while requests still use it; after `USABLE_SECONDS` requests wait for
that task. So a token of a deleted workspace stops working within a second, and a busy server never
waits for Postgres. Concurrent requests with one token share one read. While Postgres does not
respond, cached results stay in use and no request waits; the first read that succeeds decides
again, and an expiry that is known holds all the same. Only successes are cached: a new token works
at once, and wrong tokens cannot fill the memory.

The last use of a token is written by a task of its own, at most once a minute, which no request
waits for; a write that fails is repeated with a later request.

In development (`dev_tokens`, loopback only) the token `dev-<name>` opens workspace `<name>` as its
administrator, and creates it at first use. The token of the setting `admin_token` has the role
`operator`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final, Protocol, cast
from weakref import WeakKeyDictionary

import psycopg
from psycopg_pool import PoolTimeout

from fennel_core.connections.api_errors import (
    DatabaseUnavailable,
    TokenExpired,
    TokenMissing,
    TokenUnknown,
)
from fennel_core.connections.postgres import AsyncConnection, Pool, in_transaction
from fennel_core.connections.roles import Access, Role
from fennel_core.connections.workspaces import checked_name, digest_of, ensure
from fennel_core.settings.hosts import DEV_PREFIX
from fennel_core.vocab.ids import WorkspaceId

FRESH_SECONDS: Final = 0.3
USABLE_SECONDS: Final = 0.9
WAIT_SECONDS: Final = 1.0
"""Longest wait for Postgres with a token that is cached."""
KEPT_TOKENS: Final = 10_000
USE_WRITTEN_SECONDS: Final = 60.0
"""A use is written if the last one that was written is older."""
_SCHEME: Final = "bearer "

log = logging.getLogger(__name__)


class TokenSettings(Protocol):
    """The settings that authentication reads."""

    @property
    def dev_tokens(self) -> bool: ...
    @property
    def only_on_loopback(self) -> bool: ...
    @property
    def admin_digest(self) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class _Known:
    access: Access
    read_at: float


@dataclass(slots=True)
class _TokenCache:
    known: OrderedDict[bytes, _Known] = field(default_factory=OrderedDict)
    reads: dict[bytes, asyncio.Task[Access]] = field(default_factory=dict)
    writes: set[asyncio.Task[None]] = field(default_factory=set)
    """Last uses that are being written."""
    responds: bool = True
    """Whether the last read had a response in time."""


_caches: WeakKeyDictionary[Pool, _TokenCache] = WeakKeyDictionary()


async def access_of(
    pool: Pool,
    settings: TokenSettings,
    header: str | None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> Access:
    """Return what the token in the `Authorization` header `header` opens.

    `TokenMissing` without a bearer token, `TokenUnknown` for a token that opens nothing,
    `TokenExpired`, 400 for a development token with a bad workspace name, 503
    `database-unavailable` when the token is not cached and Postgres cannot be reached. `clock`
    returns monotonic seconds, `wall` seconds since 1970.
    """
    token = bearer(header)
    memory = _caches.get(pool)
    if memory is None:
        memory = _caches.setdefault(pool, _TokenCache())
    access = await _cached(memory, pool, settings, token, clock)
    if access.expires_s is not None and wall() >= access.expires_s:
        raise TokenExpired(access.actor)
    return access


async def _cached(
    memory: _TokenCache,
    pool: Pool,
    settings: TokenSettings,
    token: str,
    clock: Callable[[], float],
) -> Access:
    digest = digest_of(token)
    known = memory.known.get(digest)
    now = clock()
    if known is not None and now - known.read_at < FRESH_SECONDS:
        return known.access
    if _is_operators(settings, digest):
        return OPERATOR
    read = memory.reads.get(digest)
    if read is None:
        read = memory.reads[digest] = asyncio.create_task(_read(memory, pool, settings, token))
        read.add_done_callback(partial(_has_read, memory, digest, now))
    if known is None:
        return await asyncio.shield(read)
    if now - known.read_at < USABLE_SECONDS or not memory.responds:
        return known.access
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            return await asyncio.shield(read)
    except (DatabaseUnavailable, TimeoutError):
        memory.responds = False
        return known.access


def _has_read(memory: _TokenCache, digest: bytes, began: float, task: asyncio.Task[Access]) -> None:
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


OPERATOR: Final = Access(None, Role.OPERATOR, "FENNEL_ADMIN_TOKEN")
"""What the token of the setting `admin_token` opens."""


def _is_operators(settings: TokenSettings, digest: bytes) -> bool:
    """Return whether it is the token of the setting; without one, every token is refused."""
    expected = settings.admin_digest
    return expected is not None and hmac.compare_digest(digest, expected)


async def _read(memory: _TokenCache, pool: Pool, settings: TokenSettings, token: str) -> Access:
    try:
        if settings.dev_tokens and settings.only_on_loopback and token.startswith(DEV_PREFIX):
            workspace = await _open_dev(pool, checked_name(token.removeprefix(DEV_PREFIX)))
            return Access(workspace, Role.ADMIN, f"development token dev-{workspace}")
        found = await _find(pool, digest_of(token))
    except (psycopg.OperationalError, PoolTimeout) as lost:
        raise DatabaseUnavailable("the platform's database cannot be reached; try again") from lost
    if found is None:
        raise TokenUnknown(
            "unknown token: it is wrong, or its workspace was deleted",
        )
    if found.used_s_ago is None or found.used_s_ago >= USE_WRITTEN_SECONDS:
        write = asyncio.create_task(_write_use(pool, digest_of(token)))
        memory.writes.add(write)
        write.add_done_callback(memory.writes.discard)
    return found.access


@dataclass(frozen=True, slots=True)
class _Found:
    """A token's row. `used_s_ago`: seconds since the last use that was written."""

    access: Access
    used_s_ago: float | None


async def _find(pool: Pool, digest: bytes) -> _Found | None:
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT t.digest, t.workspace, t.role, t.id, t.name, t.expires_at, t.is_read_token,"
            " extract(epoch FROM now() - t.last_used_at)::float"
            " FROM token t LEFT JOIN workspace w ON w.name = t.workspace"
            " WHERE t.digest = %s AND (t.workspace IS NULL OR w.state = 'open')",
            (digest,),
        )
        row = await cursor.fetchone()
    if row is None or not isinstance(row[0], bytes) or not hmac.compare_digest(row[0], digest):
        return None
    expires = cast(datetime | None, row[5])
    name = f" ({row[4]})" if row[4] else ""
    return _Found(
        Access(
            None if row[1] is None else WorkspaceId(str(row[1])),
            Role(str(row[2])),
            f"token {row[3]}{name}",
            digest,
            None if expires is None else expires.timestamp(),
            bool(row[6]),
        ),
        cast(float | None, row[7]),
    )


async def _write_use(pool: Pool, digest: bytes) -> None:
    """Write the present as the last use, unless another server has done so."""
    try:
        async with pool.connection() as connection:
            await connection.execute(
                "UPDATE token SET last_used_at = now() WHERE digest = %s AND"
                " (last_used_at IS NULL OR last_used_at <= now() - make_interval(secs => %s))",
                (digest, USE_WRITTEN_SECONDS),
            )
    except (psycopg.Error, PoolTimeout) as lost:
        log.warning("the last use of a token was not written: %s", lost)


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
