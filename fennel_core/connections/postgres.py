"""Postgres: pools, transactions with a certain outcome, and notifications.

Four things go wrong with a database that is reached over a socket. A *statement* may never end:
every session sets the server's own time-outs, so a stuck lock ends as an error. The *server* may
stop without closing its sockets (a frozen machine, a cut cable), and then enforces no time-out: a
`BoundedConnection` that gets no response in `RESPONSE_SECONDS` is closed. The response to a
*COMMIT* may be lost, and the client then does not know whether the transaction was committed. But
Postgres does: each writing transaction has an id, and `pg_xact_status(id)` returns `committed` or
`aborted` for weeks. So a transaction reads its id before it commits, and an unknown outcome is
resolved on a new connection. Only if no connection can be had within `RESOLVE_SECONDS` does the
caller get `TransactionOutcomeUnknown`, and must resolve it from the rows it meant to write. A
*notification* that is sent while the listener is disconnected is lost. Therefore `listen` yields
`ListenStarted` after every (re)connection, so that callers re-read what they cache, and then each
`Notification`.

Statements run in autocommit unless they are inside `in_transaction`, so a pool never holds an idle
transaction (which would stop vacuum).
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar, cast

import psycopg
from psycopg import sql
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.errors import _WaitTimeout
from psycopg.rows import Row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from fennel_core.connections.errors import (
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)

STATEMENT_TIMEOUT_MS: Final = 15_000
LOCK_TIMEOUT_MS: Final = 10_000
IDLE_IN_TRANSACTION_MS: Final = 60_000
CONNECT_SECONDS: Final = 5
UNACKNOWLEDGED_MS: Final = 20_000
"""A connection ends when what was sent is not acknowledged for so long: a cut cable."""
RESOLVE_SECONDS: Final = 20.0
CHECK_INTERVAL_SECONDS: Final = 0.1
"""How often psycopg lets a waiting statement be interrupted."""
RESPONSE_SECONDS: Final = STATEMENT_TIMEOUT_MS / 1000 + 2.0
"""Longest wait for the response to a statement; the server's own time-out ends it earlier."""
POOL_RECONNECT_SECONDS: Final = 3.0
"""How long a pool retries a connection by itself, with pauses that double. After that the next
borrower makes it try at once: the library's default (5 minutes) leaves pauses of two minutes, in
which a database that is back is not noticed.
"""
RECONNECT_SECONDS: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
LISTEN_CHECK_SECONDS: Final = 10.0
"""How often an idle listener checks its connection: a cut cable sends no error."""
RETRIED: Final = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)

AsyncConnection = psycopg.AsyncConnection[tuple[object, ...]]
Pool = AsyncConnectionPool[psycopg.AsyncConnection[tuple[object, ...]]]
T = TypeVar("T")


class BoundedConnection(psycopg.AsyncConnection[Row]):
    """A connection that waits at most `RESPONSE_SECONDS` for a response of the server.

    After that it is closed and the call raises `psycopg.OperationalError`. The server may still run
    the statement when it continues, as after any connection that is lost: `in_transaction` finds
    out.
    """

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = CHECK_INTERVAL_SECONDS,
        timeout: float | None = None,  # noqa: ASYNC109  # the signature is psycopg's
    ) -> T:
        """See `psycopg.AsyncConnection.wait`, which every statement goes through."""
        limit_s = RESPONSE_SECONDS if timeout is None else timeout
        try:
            return await super().wait(gen, interval, limit_s)
        except _WaitTimeout as silent:
            if timeout is not None:
                raise
            self.pgconn.finish()
            raise psycopg.OperationalError(
                f"the server did not respond within {limit_s:g} s"
            ) from silent


@dataclass(frozen=True, slots=True)
class ListenStarted:
    """The listener is connected. Earlier notifications may be lost: re-read what you cache."""


@dataclass(frozen=True, slots=True)
class Notification:
    """One notification."""

    channel: str
    payload: str


ListenEvent = ListenStarted | Notification


def conninfo(dsn: str, *, name: str, statement_timeout_ms: int = STATEMENT_TIMEOUT_MS) -> str:
    """Return `dsn` with server-side time-outs, a connect time-out and keep-alives.

    `name` is the application name that `pg_stat_activity` shows.
    """
    options = (
        f"-c statement_timeout={statement_timeout_ms} -c lock_timeout={LOCK_TIMEOUT_MS}"
        f" -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_MS}"
    )
    return make_conninfo(
        dsn,
        application_name=name,
        connect_timeout=CONNECT_SECONDS,
        keepalives_idle=10,
        keepalives_interval=3,
        keepalives_count=3,
        tcp_user_timeout=UNACKNOWLEDGED_MS,
        options=options,
    )


def pool(
    dsn: str, *, name: str, size: int = 8, statement_timeout_ms: int = STATEMENT_TIMEOUT_MS
) -> Pool:
    """Return a closed pool of 1 to `size` autocommit connections.

    Open it with `async with pool(...) as p:` or `await p.open(wait=True)`. Waiting longer than
    `CONNECT_SECONDS` for a connection raises `psycopg_pool.PoolTimeout`.
    """
    return AsyncConnectionPool(
        conninfo(dsn, name=name, statement_timeout_ms=statement_timeout_ms),
        connection_class=BoundedConnection[tuple[object, ...]],
        check=_refuse_closed,
        min_size=1,
        max_size=size,
        open=False,
        timeout=CONNECT_SECONDS,
        reconnect_timeout=POOL_RECONNECT_SECONDS,
        kwargs={"autocommit": True},
        name=name,
    )


async def _refuse_closed(connection: AsyncConnection) -> None:
    """Raise `psycopg.OperationalError` if the server has closed the idle connection.

    A server that was restarted has closed all of them; the pool then takes another. The server is
    asked only if it has sent something: what it says when it closes, and seldom a notice.
    """
    waiting = select.poll()
    waiting.register(connection.pgconn.socket, select.POLLIN)
    if waiting.poll(0):
        await AsyncConnectionPool.check_connection(connection)


async def bounded_connection(dsn: str, *, name: str) -> AsyncConnection:
    """Open one autocommit connection that is not of a pool; use it as a context manager."""
    return await BoundedConnection[tuple[object, ...]].connect(
        conninfo(dsn, name=name), autocommit=True
    )


def connect(
    dsn: str, *, name: str, statement_timeout_ms: int = STATEMENT_TIMEOUT_MS
) -> psycopg.Connection[tuple[object, ...]]:
    """Open one blocking autocommit connection; use it as a context manager.

    It is meant for command-line programs and Airflow tasks.
    """
    return psycopg.connect(
        conninfo(dsn, name=name, statement_timeout_ms=statement_timeout_ms), autocommit=True
    )


@asynccontextmanager
async def connection_of(source: Pool) -> AsyncIterator[AsyncConnection]:
    """Borrow a connection; every failure of Postgres inside the block is SystemUnavailable."""
    try:
        async with source.connection() as connection:
            yield connection
    except (psycopg.Error, PoolTimeout) as failed:
        raise SystemUnavailable(f"Postgres: {failed}") from failed


async def now(source: Pool) -> datetime:
    """Return the database's current time; SystemUnavailable if it cannot be read."""
    async with connection_of(source) as connection:
        row = await (await connection.execute("SELECT now()")).fetchone()
    assert row is not None, "a SELECT without FROM returns one row"
    return cast(datetime, row[0])


async def in_transaction(
    source: Pool,
    work: Callable[[AsyncConnection], Awaitable[T]],
    *,
    attempts: int = 3,
    resolve_seconds: float = RESOLVE_SECONDS,
) -> T:
    """Run `work(connection)` in one transaction and return its result once the commit is certain.

    `work` may run up to `attempts` times, because deadlocks and serialization failures are rolled
    back and retried: its effects must be repeatable. Exceptions of `work` roll back and propagate.
    Raises `TransactionAborted` when the response to COMMIT was lost and the server reports that it
    rolled back, and `TransactionOutcomeUnknown` when the server did not report within
    `resolve_seconds`.
    """
    for attempt in range(1, attempts + 1):
        try:
            return await _once(source, work, resolve_seconds)
        except RETRIED:
            if attempt == attempts:
                raise
            await asyncio.sleep(0.01 * attempt)
    raise AssertionError("attempts must be at least 1")


async def _once(
    source: Pool, work: Callable[[AsyncConnection], Awaitable[T]], resolve_seconds: float
) -> T:
    async with source.connection() as connection:
        await connection.execute("BEGIN")
        try:
            result = await work(connection)
            transaction_id = await _transaction_id(connection)
        except BaseException:
            if not connection.closed:
                await connection.execute("ROLLBACK")
            raise
        try:
            await connection.execute("COMMIT")
        except psycopg.OperationalError as lost:
            if not _outcome_unknown(connection, lost):
                raise
        else:
            return result
    # The broken connection is back in the pool, which replaces it. Nothing was read from it after
    # COMMIT was sent.
    if transaction_id is None or await _committed(source, transaction_id, resolve_seconds):
        return result
    raise TransactionAborted(
        "the connection broke during COMMIT and the server rolled the transaction back; "
        "it can be run again"
    )


def _outcome_unknown(connection: AsyncConnection, error: psycopg.OperationalError) -> bool:
    """Return whether a failed COMMIT may have happened.

    A refusal (deferred constraint, serialization) leaves the connection usable; other errors leave
    the outcome open.
    """
    return (
        connection.closed
        or connection.broken
        or error.sqlstate in {"08007", "40003", "57P01", "57P02"}
    )


async def _transaction_id(connection: AsyncConnection) -> str | None:
    """The transaction's id, or None when it wrote nothing (then commit and rollback are the
    same).
    """
    cursor = await connection.execute("SELECT pg_current_xact_id_if_assigned()::text")
    row = await cursor.fetchone()
    return None if row is None or row[0] is None else str(row[0])


async def _committed(source: Pool, transaction_id: str, resolve_seconds: float) -> bool:
    deadline = asyncio.get_running_loop().time() + resolve_seconds
    while True:
        status = await _status(source, transaction_id)
        if status == "committed":
            return True
        if status == "aborted":
            return False
        if asyncio.get_running_loop().time() >= deadline:
            raise TransactionOutcomeUnknown(
                f"transaction {transaction_id}: the response to COMMIT was lost and the "
                f"outcome could not be read within {resolve_seconds:g} s"
            )
        await asyncio.sleep(0.1)


async def _status(source: Pool, transaction_id: str) -> str | None:
    """Return the status of a transaction; None when the server cannot be reached.

    It is `committed`, `aborted`, or `in progress` (the backend has not noticed the lost connection
    yet).
    """
    try:
        async with source.connection() as connection:
            cursor = await connection.execute("SELECT pg_xact_status(%s::xid8)", (transaction_id,))
            row = await cursor.fetchone()
    except (psycopg.OperationalError, PoolTimeout):
        return None
    return None if row is None else str(row[0])


async def listen(
    dsn: str, channels: Sequence[str], *, name: str, check_seconds: float = LISTEN_CHECK_SECONDS
) -> AsyncIterator[ListenEvent]:
    """Yield `ListenStarted` after each (re)connection, then each `Notification`, without end.

    Connection errors are retried with back-off.
    """
    failures = 0
    while True:
        try:
            async with await bounded_connection(dsn, name=name) as connection:
                for channel in channels:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                failures = 0
                yield ListenStarted()
                while True:
                    async for notice in connection.notifies(timeout=check_seconds):
                        yield Notification(notice.channel, notice.payload)
                    await connection.execute("SELECT 1")
        except psycopg.OperationalError:
            await asyncio.sleep(RECONNECT_SECONDS[min(failures, len(RECONNECT_SECONDS) - 1)])
            failures += 1
