"""The first use of a secret by each version of code is audited, before the value is handed out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio

from fennel_core.connections import audit_events, secret_uses, secrets, workspaces
from fennel_core.connections.errors import (
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.connections.postgres import Pool, pool
from fennel_core.connections.secret_uses import SecretUses
from fennel_core.connections.secrets import Sealer
from fennel_core.vocab.ids import WorkspaceId

SHOP, BANK = WorkspaceId("shop"), WorkspaceId("bank")


@pytest_asyncio.fixture
async def opened(database: str) -> AsyncIterator[Pool]:
    async with pool(database, name="test", size=4) as made:
        for name in (SHOP, BANK):
            await workspaces.create(made, name)
        yield made


@pytest_asyncio.fixture
async def sealer(opened: Pool, tmp_path: Path) -> Sealer:
    secrets.make_key_file(tmp_path / "key")
    made = Sealer.from_file(tmp_path / "key")
    for name in (SHOP, BANK):
        await secrets.put(opened, made, name, "vault", f"value of {name}")
    return made


async def events(opened: Pool) -> list[tuple[str | None, str, str, str, str]]:
    found = reversed(await audit_events.read(opened, None))
    return [(e.workspace, e.actor, e.action, e.subject, e.outcome) for e in found]


async def test_each_version_of_code_is_audited_once(opened: Pool, sealer: Sealer) -> None:
    """By any number of calls and processes, which also begin at the same time."""
    processes = [SecretUses(opened, sealer) for _ in range(3)]
    for _ in range(2):
        values = await asyncio.gather(*(each.read(SHOP, "main@c1", "vault") for each in processes))
        assert values == ["value of shop"] * 3
    assert await processes[0].read(SHOP, "main@c2", "vault") == "value of shop"
    assert await processes[1].read(BANK, "main@c1", "vault") == "value of bank"
    expected = [("shop", "c1"), ("shop", "c2"), ("bank", "c1")]
    assert await events(opened) == [
        (name, f"user code of main@{commit}", "use-secret", "secret vault", "done")
        for name, commit in expected
    ]


async def test_a_secret_that_does_not_exist_is_not_used(opened: Pool, sealer: Sealer) -> None:
    assert await SecretUses(opened, sealer).read(SHOP, "main@c1", "other") is None
    assert await SecretUses(opened, None).read(SHOP, "main@c1", "vault") is None
    assert await events(opened) == []


async def test_a_known_use_waits_for_no_insertion(
    database: str, opened: Pool, sealer: Sealer
) -> None:
    assert await SecretUses(opened, sealer).read(SHOP, "main@c1", "vault") == "value of shop"
    async with await psycopg.AsyncConnection.connect(database) as other:
        await other.execute("SELECT pg_advisory_xact_lock(%s)", (audit_events.LOCK_KEY,))
        again = SecretUses(opened, sealer).read(SHOP, "main@c1", "vault")
        assert await asyncio.wait_for(again, 10) == "value of shop"
    assert len(await events(opened)) == 1


async def test_uses_are_looked_up_in_an_index_of_their_own(opened: Pool) -> None:
    async with opened.connection() as connection, connection.transaction():
        await connection.execute("SET LOCAL enable_seqscan = off")
        await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        plan = await connection.execute(
            f"EXPLAIN {audit_events._SAME_USE}", (SHOP, "user code of main@c1", "secret vault")
        )
        text = str(await plan.fetchall())
    assert "audit_event_secret_use" in text


@pytest.mark.parametrize(
    "failure", [psycopg.OperationalError, TransactionAborted, TransactionOutcomeUnknown]
)
async def test_a_use_that_cannot_be_audited_hands_out_nothing(
    opened: Pool, sealer: Sealer, monkeypatch: pytest.MonkeyPatch, failure: type[Exception]
) -> None:
    async def lost(*_: object) -> None:
        raise failure("the connection is lost")

    uses = SecretUses(opened, sealer)
    with monkeypatch.context() as patched:
        patched.setattr(secret_uses, "record_use", lost)
        with pytest.raises(SystemUnavailable, match="the connection is lost"):
            await uses.read(SHOP, "main@c1", "vault")
    assert await uses.read(SHOP, "main@c1", "vault") == "value of shop"
    assert len(await events(opened)) == 1


async def test_a_process_remembers_a_bounded_number_of_uses(
    opened: Pool, sealer: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_uses, "MOST_REMEMBERED", 2)
    uses = SecretUses(opened, sealer)
    for commit in (1, 2, 3, 1, 2, 3):
        assert await uses.read(SHOP, f"main@c{commit}", "vault") == "value of shop"
    assert len(await events(opened)) == 3
