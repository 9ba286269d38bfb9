"""A server that stops responding without closing its sockets holds no caller for ever."""

from __future__ import annotations

import psycopg
import pytest
from psycopg_pool import PoolTimeout
from psycopg_pool.base import AttemptWithBackoff

from fennel_core.connections import postgres, tokens
from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.connections.postgres import Pool, bounded_connection, in_transaction, pool
from tests.support.polling import eventually
from tests.support.postgres import frozen, refusing

SOON_S = 0.2
AN_HOUR_S = 3600.0


class Rules:
    dev_tokens = True
    only_on_loopback = True
    admin_digest = None


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "RESPONSE_SECONDS", SOON_S)
    monkeypatch.setattr(postgres, "CONNECT_SECONDS", 2)
    monkeypatch.setattr(postgres, "RESOLVE_SECONDS", SOON_S)


async def one(opened: Pool) -> object:
    async with opened.connection() as connection:
        return await (await connection.execute("SELECT 1")).fetchone()


@pytest.mark.usefixtures("impatient")
async def test_a_statement_without_a_response_is_an_error_and_the_pool_is_usable_afterwards(
    database: str,
) -> None:
    async with pool(database, name="test", size=1) as opened:
        assert await one(opened) == (1,)
        with frozen(database):
            with pytest.raises(psycopg.OperationalError, match="did not respond within"):
                await one(opened)
            with pytest.raises(PoolTimeout):
                await one(opened)
        assert await one(opened) == (1,)


@pytest.mark.usefixtures("impatient")
async def test_a_transaction_that_gets_no_response_writes_nothing_later(database: str) -> None:
    async def work(connection: postgres.AsyncConnection) -> None:
        with frozen(database):
            await connection.execute("CREATE TABLE late (n int)")

    async with pool(database, name="test", size=2) as opened:
        assert await one(opened) == (1,)
        with pytest.raises(psycopg.OperationalError, match="did not respond within"):
            await in_transaction(opened, work)
        async with opened.connection() as connection:
            found = await connection.execute("SELECT to_regclass('late')")
            assert await found.fetchone() == (None,)


@pytest.mark.usefixtures("impatient")
async def test_a_connection_outside_of_a_pool_is_bounded_as_well(database: str) -> None:
    async with await bounded_connection(database, name="test") as connection:
        with frozen(database), pytest.raises(psycopg.OperationalError, match="did not respond"):
            await connection.execute("SELECT 1")


@pytest.mark.usefixtures("impatient")
async def test_a_token_that_is_not_cached_is_refused_while_the_server_is_frozen(
    database: str,
) -> None:
    async with pool(database, name="test", size=1) as opened:
        assert await one(opened) == (1,)
        with frozen(database):
            for name in ("one", "two"):  # the second one finds no connection
                with pytest.raises(DatabaseUnavailable):
                    await tokens.access_of(opened, Rules(), f"Bearer dev-{name}")
        access = await tokens.access_of(opened, Rules(), "Bearer dev-one")
        assert access.workspace == "one"


async def test_a_pool_notices_that_the_server_is_back_however_long_it_was_away(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "CONNECT_SECONDS", SOON_S)
    monkeypatch.setattr(postgres, "POOL_RECONNECT_SECONDS", SOON_S)
    # Pauses double, so they are long after a long outage: as if this one had lasted an hour.
    monkeypatch.setattr(AttemptWithBackoff, "INITIAL_DELAY", AN_HOUR_S)
    async with pool(database, name="test", size=2) as opened:
        assert await one(opened) == (1,)
        with refusing(database):
            for _ in range(3):
                with pytest.raises((PoolTimeout, psycopg.OperationalError)):
                    await one(opened)

        async def back() -> bool:
            try:
                return await one(opened) == (1,)
            except PoolTimeout:
                return False  # its last attempt before it gives up

        await eventually(back)
