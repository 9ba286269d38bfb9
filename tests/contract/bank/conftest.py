"""Fixtures: the bank in memory and in a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fennel_core.connections.postgres import pool
from fennel_core.ledger.memory import MemoryLedger
from fennel_core.ledger.postgres import PostgresLedger
from fennel_core.ledger.store import Ledger


@pytest.fixture(params=["memory", "postgres"])
async def ledger(request: pytest.FixtureRequest) -> AsyncIterator[Ledger]:
    """A ledger with the open workspaces `shop` and `other`, whose transactions have a bank."""
    if request.param == "memory":
        one: Ledger = MemoryLedger(lambda: 0)
        await open_both(one)
        yield one
    else:
        async with pool(request.getfixturevalue("database"), name="test", size=4) as connections:
            one = PostgresLedger(connections)
            await open_both(one)
            yield one


async def open_both(ledger: Ledger) -> None:
    for name in ("shop", "other"):
        await ledger.run(lambda tx, name=name: tx.add_workspace(name))  # type: ignore[misc,arg-type]  # bound now
