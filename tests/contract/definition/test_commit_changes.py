"""Postgres reports changes of commits to servers that wait for them, also after a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack

import psycopg
import pytest

from fennel_core.connections.postgres import ListenStarted, Notification, listen
from fennel_core.definition.commit_changes import CHANNEL, NotifiedChanges
from fennel_core.vocab.ids import CommitId

LONG_S = 3600.0
"""A wait that is not ended by a notification fails at the time limit of the test."""
IDS = (CommitId("c1"), CommitId("c2"))


@pytest.fixture
def connection(database: str) -> psycopg.Connection:
    """Return a connection to a database with two commits that have been received."""
    opened = psycopg.connect(database, autocommit=True)
    opened.execute("INSERT INTO workspace (name) VALUES ('shop')")
    for id_ in IDS:
        opened.execute(
            "INSERT INTO commit (id, workspace, branch, state, digest, request, options)"
            " VALUES (%s, 'shop', 'main', 'received', '', '', '{}')",
            (id_,),
        )
    return opened


@pytest.fixture
async def changes(database: str) -> AsyncIterator[NotifiedChanges]:
    """Return changes whose listener is connected."""
    opened = NotifiedChanges(database)
    with opened.watch(IDS[0]) as watch:
        task = asyncio.create_task(opened.run())
        await watch.wait(LONG_S)
    yield opened
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    "change",
    [
        "state = 'reserved'",
        "finished_at = now()",
        """stuck = '[{"job": "j", "title": "t", "error": "e"}]'""",
    ],
)
async def test_a_change_that_a_client_waits_for_ends_the_wait(
    changes: NotifiedChanges, connection: psycopg.Connection, change: str
) -> None:
    with changes.watch(IDS[0]) as first, changes.watch(IDS[0]) as second:
        connection.execute(f"UPDATE commit SET {change} WHERE id = 'c1'".encode())  # noqa: S608  # the text is a constant of this test
        await asyncio.gather(first.wait(LONG_S), second.wait(LONG_S))


async def test_a_lease_and_a_state_that_stays_the_same_are_not_reported(
    database: str, connection: psycopg.Connection
) -> None:
    events = listen(database, (CHANNEL,), name="test")
    assert await anext(events) == ListenStarted()
    connection.execute("UPDATE commit SET lease_until = now(), attempt = 1 WHERE id = 'c1'")
    connection.execute("UPDATE commit SET state = state, stuck = stuck WHERE id = 'c1'")
    connection.execute("UPDATE commit SET state = 'reserved' WHERE id = 'c2'")
    assert await anext(events) == Notification(CHANNEL, "c2")


async def test_a_change_before_the_first_wait_ends_it(
    changes: NotifiedChanges, connection: psycopg.Connection
) -> None:
    with changes.watch(IDS[0]) as before, changes.watch(IDS[1]) as after:
        connection.execute("UPDATE commit SET state = 'reserved' WHERE id = 'c1'")
        connection.execute("UPDATE commit SET state = 'reserved' WHERE id = 'c2'")
        await after.wait(LONG_S)
        await before.wait(LONG_S)


async def test_every_wait_ends_when_the_listener_connects_again(
    changes: NotifiedChanges, connection: psycopg.Connection
) -> None:
    with ExitStack() as stack:
        watches = [stack.enter_context(changes.watch(id_)) for id_ in IDS]
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'fennel-definition-commits'"
        )
        await asyncio.gather(*(watch.wait(LONG_S) for watch in watches))


async def test_a_wait_without_a_change_ends_at_its_limit(changes: NotifiedChanges) -> None:
    with changes.watch(IDS[0]) as watch:
        await watch.wait(0.01)
    assert not changes._watches, "a server that runs for months keeps no finished commit"
