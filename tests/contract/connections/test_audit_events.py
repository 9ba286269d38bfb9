"""Every audited call has a row before it does anything and one with its outcome, for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio

from fennel_core.connections import audit_events
from fennel_core.connections.api_errors import DatabaseUnavailable, WorkspaceNotFound
from fennel_core.connections.audit_events import Action, audited, audited_command
from fennel_core.connections.errors import (
    ConnectionsError,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.connections.postgres import Pool, pool
from fennel_core.vocab.ids import WorkspaceId
from tests.support.polling import eventually

SHOP = WorkspaceId("shop")


@pytest_asyncio.fixture
async def opened(database: str) -> AsyncIterator[Pool]:
    async with pool(database, name="test", size=4) as made:
        yield made


async def outcomes(opened: Pool, workspace: WorkspaceId | None = None) -> list[tuple[str, str]]:
    events = await audit_events.read(opened, workspace)
    return [(each.subject, each.outcome) for each in reversed(events)]


async def test_a_call_is_written_before_it_begins_and_after_it_ended(opened: Pool) -> None:
    async with audited(opened, "token 1 (ci)", Action.COMMIT, "branch main", SHOP):
        assert await outcomes(opened) == [("branch main", "started")]
    newest, oldest = await audit_events.read(opened, SHOP)
    assert (oldest.outcome, newest.outcome, newest.call) == ("started", "done", oldest.call)
    assert (newest.actor, newest.action, newest.workspace) == ("token 1 (ci)", "commit", SHOP)
    assert await audit_events.read(opened, WorkspaceId("other")) == []


async def test_a_refused_call_has_its_code_and_any_other_failure_none(opened: Pool) -> None:
    with pytest.raises(WorkspaceNotFound):
        async with audited(opened, "a", Action.ERASE, "refused", None):
            raise WorkspaceNotFound(SHOP)
    with pytest.raises(RuntimeError):
        async with audited(opened, "a", Action.ERASE, "broken", None):
            raise RuntimeError("with a secret in its text")
    started = asyncio.Event()

    async def endless() -> None:
        async with audited(opened, "a", Action.ERASE, "cancelled", None):
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(endless())
    await started.wait()
    task.cancel()
    await asyncio.wait([task])
    wanted = {
        ("refused", "workspace-not-found"),
        ("broken", "failed"),
        ("cancelled", "cancelled"),
    }

    async def written() -> bool:
        return wanted <= set(await outcomes(opened))

    await eventually(written)


async def test_a_call_that_cannot_be_audited_does_not_happen(opened: Pool) -> None:
    await opened.close()
    entered = False
    with pytest.raises(DatabaseUnavailable, match="nothing was done"):
        async with audited(opened, "a", Action.COMMIT, "branch main", SHOP):
            entered = True
    assert not entered


@pytest.mark.parametrize("failure", [TransactionAborted, TransactionOutcomeUnknown])
async def test_a_call_whose_first_row_may_be_missing_does_not_happen(
    opened: Pool, monkeypatch: pytest.MonkeyPatch, failure: type[ConnectionsError]
) -> None:
    async def lost(*_: object) -> None:
        raise failure("COMMIT had no response")

    monkeypatch.setattr(audit_events, "in_transaction", lost)
    with pytest.raises(DatabaseUnavailable, match="nothing was done"):
        async with audited(opened, "a", Action.COMMIT, "branch main", SHOP):
            raise AssertionError("the call began")


@pytest.mark.parametrize("failure", [TransactionAborted, TransactionOutcomeUnknown])
async def test_a_call_succeeds_if_only_the_row_of_its_outcome_may_be_missing(
    opened: Pool, monkeypatch: pytest.MonkeyPatch, failure: type[ConnectionsError]
) -> None:
    async def lost(*_: object) -> None:
        raise failure("COMMIT had no response")

    async with audited(opened, "a", Action.COMMIT, "branch main", SHOP):
        monkeypatch.setattr(audit_events, "in_transaction", lost)
    assert await outcomes(opened) == [("branch main", "started")]


async def test_a_call_whose_own_outcome_is_unknown_says_so(opened: Pool) -> None:
    with pytest.raises(TransactionOutcomeUnknown):
        async with audited(opened, "a", Action.COMMIT, "branch main", SHOP):
            raise TransactionOutcomeUnknown("COMMIT had no response")
    assert (await outcomes(opened))[-1] == ("branch main", "transaction-outcome-unknown")


@pytest.mark.parametrize(
    "statement",
    ["UPDATE audit_event SET actor = 'x'", "DELETE FROM audit_event", "TRUNCATE audit_event"],
)
async def test_the_log_is_append_only(opened: Pool, statement: str) -> None:
    async with audited(opened, "a", Action.PURGE, "x", SHOP):
        pass
    async with opened.connection() as connection:
        with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
            await connection.execute(statement)
    assert len(await outcomes(opened)) == 2


async def test_ids_are_in_the_order_of_their_commits(opened: Pool, database: str) -> None:
    """A reader that continues after the last id misses no event."""
    seen: list[int] = []

    async def write(number: int) -> None:
        async with audited(opened, "a", Action.COMMIT, f"branch {number}", SHOP):
            pass

    async def follow() -> None:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as reader:
            while len(seen) < 60:
                last = seen[-1] if seen else 0
                seen.extend(e.id for e in await audit_events.read_after(reader, last, 7))
                await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await asyncio.gather(follow(), *(write(number) for number in range(30)))
    stored = sorted(each.id for each in await audit_events.read(opened, None))
    assert seen == stored


def test_a_command_is_audited_over_its_own_connection(database: str) -> None:
    with audited_command(database, "user me", Action.REBUILD, "all\0"):
        pass
    with (
        pytest.raises(RuntimeError),
        audited_command(database, "user me", Action.REBUILD, "some"),
    ):
        raise RuntimeError
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT subject, outcome FROM audit_event ORDER BY id").fetchall()
    assert rows == [("all?", "started"), ("all?", "done"), ("some", "started"), ("some", "failed")]
