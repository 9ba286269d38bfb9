"""The contract of the runs of sources on a schedule, in memory and in a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from fennel_core.connections.postgres import pool
from fennel_core.sources.table_run_postgres import PostgresTableRuns
from fennel_core.sources.table_runs import (
    MemoryTableRuns,
    TableProgress,
    TableRuns,
    claimed,
    completed,
    failed,
    reported,
)
from fennel_core.vocab.ids import TopicName
from tests.support.stored_assets import store_assets

ORDERS, GONE = TopicName("shop.raw.orders.1"), TopicName("shop.raw.gone.3")
EVERY = timedelta(minutes=30)


@pytest.fixture(params=["memory", "postgres"])
async def runs(request: pytest.FixtureRequest) -> AsyncIterator[TableRuns]:
    if request.param == "memory":
        yield MemoryTableRuns(datetime.now(UTC), {ORDERS})
        return
    async with pool(request.getfixturevalue("database"), name="test", size=2) as connections:
        await store_assets(connections, (ORDERS,), ["shop"])
        yield PostgresTableRuns(connections)


async def test_a_row_is_replaced_only_as_it_was_read(runs: TableRuns) -> None:
    now, rows = await runs.read()
    assert rows == {}
    assert now.tzinfo is not None
    first = claimed(None, "a", EVERY, now)
    assert await runs.put(ORDERS, None, first)
    assert not await runs.put(ORDERS, None, claimed(None, "b", EVERY, now))
    assert (await runs.read())[1] == {ORDERS: first}
    going = reported(first, TableProgress(5, "2026", 7), now + EVERY)
    assert await runs.put(ORDERS, first, going)
    assert not await runs.put(ORDERS, first, going)
    done = completed(going, TableProgress(6, "2027"), now + EVERY)
    assert await runs.put(ORDERS, going, done)
    assert (await runs.read())[1] == {ORDERS: done}
    broken = failed(claimed(done, "c", EVERY, now), "a\0b", EVERY, now)
    assert await runs.put(ORDERS, done, broken)
    assert (await runs.read())[1][ORDERS].failures == 1


async def test_a_source_that_is_gone_has_no_runs(runs: TableRuns) -> None:
    now, _ = await runs.read()
    assert not await runs.put(GONE, None, claimed(None, "a", EVERY, now))
    assert (await runs.read())[1] == {}
