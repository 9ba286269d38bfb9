"""Erasures on their way from Postgres into reads, and reads while they cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import psycopg
import pytest

from fennel_core.connections import erasures, postgres
from fennel_core.connections.erasures import ErasableKeys
from fennel_core.connections.postgres import Pool
from fennel_core.query.erasure_counters import ErasureCounters, new_memory
from fennel_core.query.erasures import Erasures
from fennel_core.query.errors import ErasuresUnknown
from fennel_core.vocab.ids import DatasetName, WorkspaceId
from tests.support.polling import eventually

WORKSPACE, OTHER, USERS = WorkspaceId("w"), WorkspaceId("v"), DatasetName("Users")
ANN, BOB = msgspec.msgpack.encode(["ann"]), msgspec.msgpack.encode(["bob"])
KEYS = ErasableKeys(WORKSPACE, USERS, ("user",))
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@asynccontextmanager
async def with_workspace(dsn: str) -> AsyncIterator[Pool]:
    async with postgres.pool(dsn, name="test") as pool:
        async with pool.connection() as connection:
            await connection.execute("INSERT INTO workspace (name) VALUES (%s)", (WORKSPACE,))
        yield pool


async def test_an_erasure_hides_rows_once_read_and_elsewhere_after_a_notification(
    database: str,
) -> None:
    async with with_workspace(database) as pool:
        here, there = Erasures(database), Erasures(database)
        following = asyncio.create_task(there.run())
        await here.announce(WORKSPACE)
        assert list(here.hidden(KEYS, [ANN, BOB])) == []
        await eventually(lambda: there.problem() is None)
        for erased, expected in ((ANN, [0]), (ANN, [0]), (BOB, [0, 1])):
            await erasures.add(pool, WORKSPACE, USERS, ["user"], [erased])
            await here.announce(WORKSPACE)
            assert list(here.hidden(KEYS, [ANN, BOB])) == expected
            await eventually(lambda wanted=expected: list(there.hidden(KEYS, [ANN, BOB])) == wanted)
        following.cancel()
        assert set(await erasures.read(pool, OTHER)) == set()


async def test_servers_are_told_when_the_erasures_of_a_deleted_workspace_leave(
    database: str,
) -> None:
    """Else they would hide rows of a workspace that is created under the same name."""
    async with with_workspace(database) as pool:
        await erasures.add(pool, WORKSPACE, USERS, ["user"], [ANN, BOB])
        server = Erasures(database)
        assert await server.try_read()
        assert list(server.hidden(KEYS, [ANN, BOB])) == [0, 1]
        events = postgres.listen(database, (erasures.CHANNEL,), name="test")
        assert await anext(events) == postgres.ListenStarted()
        async with pool.connection() as connection:
            await connection.execute("DELETE FROM workspace WHERE name = %s", (WORKSPACE,))
            await connection.execute("INSERT INTO workspace (name) VALUES (%s)", (WORKSPACE,))
        told = await asyncio.wait_for(anext(events), 10)
        assert told == postgres.Notification(erasures.CHANNEL, WORKSPACE)
        assert await server.try_read((WORKSPACE,))
        assert list(server.hidden(KEYS, [ANN, BOB])) == []


async def test_while_postgres_is_away_the_last_complete_list_stays_in_use(database: str) -> None:
    async with with_workspace(database) as pool:
        await erasures.add(pool, WORKSPACE, USERS, ["user"], [ANN])
        known = Erasures(database)
        assert await known.try_read()
        known._dsn = NOWHERE
        assert not await known.try_read()
        assert list(known.hidden(KEYS, [ANN, BOB])) == [0]
        assert known.problem() is None


async def test_an_accepted_erasure_that_cannot_be_read_refuses_reads_of_its_workspace(
    database: str,
) -> None:
    async with with_workspace(database) as pool:
        known = Erasures(database)
        assert await known.try_read()
        await erasures.add(pool, WORKSPACE, USERS, ["user"], [ANN])
        known._dsn = NOWHERE
        await known.announce(WORKSPACE)
        with pytest.raises(ErasuresUnknown):
            known.hidden(KEYS, [BOB])
        assert list(known.hidden(ErasableKeys(OTHER, USERS, ("user",)), [ANN])) == []
        known._dsn = database
        running = asyncio.create_task(known.run())
        await eventually(lambda: known.problem() is None)
        assert list(known.hidden(KEYS, [ANN, BOB])) == [0]
        running.cancel()


async def test_a_postgres_that_responds_without_the_list_refuses_every_read(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Erasures(database)
    assert await known.try_read()
    read = erasures.read_over

    async def locked(*_: object) -> None:
        raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")

    monkeypatch.setattr(erasures, "read_over", locked)
    assert not await known.try_read()
    with pytest.raises(ErasuresUnknown):
        known.hidden(KEYS, [ANN])
    monkeypatch.setattr(erasures, "read_over", read)
    assert await known.try_read()
    assert list(known.hidden(KEYS, [ANN])) == []


async def test_a_notification_reads_the_erasures_of_its_workspace_only(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = erasures.read_over, []

    async def recorded(connection: postgres.AsyncConnection, wanted: object = None) -> object:
        reads.append(wanted)
        return await read(connection, wanted)  # type: ignore[arg-type]  # as it was given

    monkeypatch.setattr(erasures, "read_over", recorded)
    async with with_workspace(database) as pool:
        known = Erasures(database)
        running = asyncio.create_task(known.run())
        # The second one follows the start of the listener: it gets the notification below.
        await eventually(lambda: len(reads) >= 2)
        await eventually(lambda: known.problem() is None)
        await erasures.add(pool, WORKSPACE, USERS, ["user"], [ANN])
        await eventually(lambda: {WORKSPACE} in reads)
        await eventually(lambda: list(known.hidden(KEYS, [ANN])) == [0])
        assert set(map(repr, reads)) == {"None", repr({WORKSPACE})}, "all of it at the start only"
        running.cancel()


async def test_after_a_failed_read_everything_is_read_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of one workspace does not end the refusals that a failure of Postgres began."""
    read, reads = erasures.read_over, []

    async def recorded(connection: postgres.AsyncConnection, wanted: object = None) -> object:
        reads.append(wanted)
        if wanted is not None:
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        return await read(connection)

    async with with_workspace(database) as pool:
        known = Erasures(database)
        assert await known.try_read()
        monkeypatch.setattr(erasures, "read_over", recorded)
        await erasures.add(pool, WORKSPACE, USERS, ["user"], [ANN])
        await known.announce(WORKSPACE)
        with pytest.raises(ErasuresUnknown):
            known.hidden(ErasableKeys(OTHER, USERS, ("user",)), [ANN])
        assert await known.try_read((OTHER,))
        assert reads == [{WORKSPACE}, None]
        assert list(known.hidden(KEYS, [ANN, BOB])) == [0]


async def test_an_interrupted_read_forgets_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of an erasure may disconnect while it is read."""
    read, hung = erasures.read_over, asyncio.Event()

    async def hanging(*_: object) -> None:
        hung.set()
        await asyncio.Event().wait()

    async with with_workspace(database) as pool:
        known = Erasures(database)
        assert await known.try_read()
        await erasures.add(pool, WORKSPACE, USERS, ["user"], [ANN])
        monkeypatch.setattr(erasures, "read_over", hanging)
        interrupted = asyncio.create_task(known.announce(WORKSPACE))
        await hung.wait()
        interrupted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await interrupted
        monkeypatch.setattr(erasures, "read_over", read)
        assert known._announced == {WORKSPACE}
        assert await known.try_read(())
        assert list(known.hidden(KEYS, [ANN, BOB])) == [0]


async def test_a_read_of_one_workspace_leaves_the_others_to_be_read(database: str) -> None:
    """Two workers: what the other one accepted for a workspace is known only after its read."""
    async with with_workspace(database) as pool:
        memory = new_memory()
        known = Erasures(database, ErasureCounters(memory))
        elsewhere = ErasureCounters(memory)
        assert await known.try_read()
        await erasures.add(pool, WORKSPACE, USERS, ["user"], [ANN])
        elsewhere.count(WORKSPACE)
        elsewhere.count(OTHER)
        assert await known.try_read((OTHER,))
        assert known.is_behind(WORKSPACE)
        assert not known.is_behind(OTHER)
        await known.catch_up(WORKSPACE)
        assert list(known.hidden(KEYS, [ANN, BOB])) == [0]
