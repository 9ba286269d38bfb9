"""The outcome of a transaction is always known, and a listener reports every gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import psycopg
import pytest
import pytest_asyncio

from fennel_core.connections.errors import TransactionAborted, TransactionOutcomeUnknown
from fennel_core.connections.postgres import (
    AsyncConnection,
    ListenStarted,
    Notification,
    Pool,
    connection_of,
    in_transaction,
    listen,
    pool,
)


@pytest_asyncio.fixture
async def open_pool(database: str) -> AsyncIterator[Pool]:
    async with pool(database, name="test", size=3) as opened:
        async with opened.connection() as connection:
            await connection.execute(
                "CREATE TABLE t (n int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)"
            )
        yield opened


async def _rows(opened: Pool) -> list[int]:
    async with opened.connection() as connection:
        return sorted(
            int(str(row[0]))
            for row in await (await connection.execute("SELECT n FROM t")).fetchall()
        )


async def _insert(connection: AsyncConnection) -> str:
    await connection.execute("INSERT INTO t VALUES (1)")
    return "done"


async def test_work_is_committed_and_its_result_returned(open_pool: Pool) -> None:
    assert await in_transaction(open_pool, _insert) == "done"
    assert await _rows(open_pool) == [1]


async def test_an_error_of_the_work_rolls_back_and_passes_through(open_pool: Pool) -> None:
    async def work(connection: AsyncConnection) -> None:
        await _insert(connection)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await in_transaction(open_pool, work)
    assert await _rows(open_pool) == []


async def test_a_commit_that_the_server_refuses_is_an_error_and_not_an_unknown_outcome(
    open_pool: Pool,
) -> None:
    async def work(connection: AsyncConnection) -> None:
        await _insert(connection)
        await _insert(connection)  # the constraint is deferred: only COMMIT notices

    with pytest.raises(psycopg.errors.UniqueViolation):
        await in_transaction(open_pool, work)
    assert await _rows(open_pool) == []


async def test_a_deadlock_is_rolled_back_and_run_again(open_pool: Pool) -> None:
    async with open_pool.connection() as connection:
        await connection.execute("INSERT INTO t VALUES (1), (2)")
        await connection.execute("ALTER TABLE t ADD hits int NOT NULL DEFAULT 0")
    runs = 0

    async def swap(first: int, second: int) -> None:
        async def work(connection: AsyncConnection) -> None:
            nonlocal runs
            runs += 1
            await connection.execute("UPDATE t SET hits = hits + 1 WHERE n = %s", (first,))
            await asyncio.sleep(0.1)  # both hold their first lock
            await connection.execute("UPDATE t SET hits = hits + 1 WHERE n = %s", (second,))

        await in_transaction(open_pool, work)

    await asyncio.gather(swap(1, 2), swap(2, 1))
    async with open_pool.connection() as connection:
        assert await (await connection.execute("SELECT hits FROM t ORDER BY n")).fetchall() == [
            (2,),
            (2,),
        ]
    assert runs == 3


class _CommitBreaks:
    """Loses the response to COMMIT, after the commit (`carried_out`) or before it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, carried_out: bool) -> None:
        real = psycopg.AsyncConnection.execute
        self.broken = 0

        async def execute(
            connection: AsyncConnection, query: object, *args: object, **more: object
        ) -> object:
            if query == "COMMIT" and not self.broken:
                self.broken += 1
                if carried_out:
                    await real(connection, "COMMIT")
                await connection.close()
                raise psycopg.OperationalError("the connection is lost")
            return await real(connection, query, *args, **more)

        monkeypatch.setattr(psycopg.AsyncConnection, "execute", execute)


async def test_a_lost_response_to_a_commit_that_happened_is_a_success(
    open_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks = _CommitBreaks(monkeypatch, carried_out=True)
    assert await in_transaction(open_pool, _insert) == "done"
    assert (breaks.broken, await _rows(open_pool)) == (1, [1])


async def test_a_commit_that_never_arrived_is_an_aborted_transaction(
    open_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks = _CommitBreaks(monkeypatch, carried_out=False)
    with pytest.raises(TransactionAborted):
        await in_transaction(open_pool, _insert)
    assert (breaks.broken, await _rows(open_pool)) == (1, [])


async def test_a_commit_without_a_reported_status_is_an_unknown_outcome(
    open_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _CommitBreaks(monkeypatch, carried_out=True)

    async def silent(source: Pool, transaction_id: str) -> None:
        return None

    monkeypatch.setattr("fennel_core.connections.postgres._status", silent)
    with pytest.raises(TransactionOutcomeUnknown):
        await in_transaction(open_pool, _insert, resolve_seconds=0.2)


async def test_a_backend_killed_at_work_is_a_plain_error_and_leaves_nothing(
    open_pool: Pool,
) -> None:
    async def work(connection: AsyncConnection) -> None:
        await _insert(connection)
        async with open_pool.connection() as other:
            await other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
        await connection.execute("SELECT 1")

    with pytest.raises(psycopg.OperationalError):
        await in_transaction(open_pool, work)
    assert await _rows(open_pool) == []


async def test_a_statement_that_never_ends_is_ended_by_the_server(database: str) -> None:
    async with (
        pool(database, name="test", statement_timeout_ms=50) as opened,
        opened.connection() as connection,
    ):
        with pytest.raises(psycopg.errors.QueryCanceled):
            await connection.execute("SELECT pg_sleep(5)")  # far longer than the limit


async def test_a_listener_reports_when_it_may_have_missed_a_notification(
    open_pool: Pool, database: str
) -> None:
    async with aclosing(listen(database, ["registry", "catalog"], name="test-listener")) as events:
        assert await anext(events) == ListenStarted()
        async with open_pool.connection() as connection:
            await connection.execute("INSERT INTO workspace (name) VALUES ('shop')")
            await connection.execute("INSERT INTO branch (workspace, name) VALUES ('shop', 'main')")
            assert await asyncio.wait_for(anext(events), 5) == Notification("catalog", "shop/main")
            await connection.execute(
                "INSERT INTO job (id, workspace, spec) VALUES ('j', 'shop', '')"
            )
            assert await asyncio.wait_for(anext(events), 5) == Notification("registry", "")
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                "application_name = 'test-listener'"
            )
        assert await asyncio.wait_for(anext(events), 5) == ListenStarted()


async def test_a_borrower_gets_no_connection_that_the_server_has_closed(database: str) -> None:
    async with pool(database, name="test", size=2) as opened:
        async with opened.connection() as first, opened.connection() as second:
            pids = [each.info.backend_pid for each in (first, second)]
        with psycopg.connect(database, autocommit=True) as server:
            for pid in pids:
                server.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        async with connection_of(opened) as connection:
            row = await (await connection.execute("SELECT 1")).fetchone()
            assert row == (1,)
            assert connection.info.backend_pid not in pids
