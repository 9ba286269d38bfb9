"""The contract of pauses and rewinds of sinks, in memory and in a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from fennel_core.connections.postgres import pool
from fennel_core.sinks.controls import MemorySinkControls, RewindOrder, SinkControls
from fennel_core.sinks.postgres import PostgresSinkControls
from fennel_core.vocab.ids import TopicName, WorkspaceId
from tests.support.stored_assets import store_assets

ROWS, OTHERS = TopicName("shop.sink.rows.1"), TopicName("shop.sink.others.2")
GONE = TopicName("shop.sink.gone.3")
SHOP, DOCKS = WorkspaceId("shop"), WorkspaceId("docks")


@pytest.fixture(params=["memory", "postgres"])
async def controls(request: pytest.FixtureRequest) -> AsyncIterator[SinkControls]:
    if request.param == "memory":
        yield MemorySinkControls(lambda: datetime.now(UTC), {ROWS, OTHERS})
        return
    async with pool(request.getfixturevalue("database"), name="test", size=2) as connections:
        await store_assets(connections, (ROWS, OTHERS), (SHOP, DOCKS))
        yield PostgresSinkControls(connections)


async def test_a_pause_is_of_a_name_in_a_workspace(controls: SinkControls) -> None:
    assert await controls.pauses() == {}
    for workspace in (SHOP, DOCKS):
        await controls.pause((workspace, "hooks/rows"), "token 1")
    first = await controls.pauses()
    assert {name: each.by for name, each in first.items()} == {
        (SHOP, "hooks/rows"): "token 1",
        (DOCKS, "hooks/rows"): "token 1",
    }
    await controls.pause((SHOP, "hooks/rows"), "token 2")
    assert await controls.pauses() == first
    await controls.resume((SHOP, "hooks/rows"))
    await controls.resume((SHOP, "hooks/others"))
    assert list(await controls.pauses()) == [(DOCKS, "hooks/rows")]


async def test_each_rewind_has_a_larger_number_than_the_one_before(controls: SinkControls) -> None:
    await controls.rewind(
        [RewindOrder(ROWS, {0: 12, 3: 2**40}, False), RewindOrder(GONE, {}, True)]
    )
    first = (await controls.rewinds())[ROWS]
    assert (first.to, first.whole) == ({0: 12, 3: 2**40}, False)
    await controls.rewind([RewindOrder(ROWS, {0: 1}, True), RewindOrder(OTHERS, {}, True)])
    found = await controls.rewinds()
    assert found.keys() == {ROWS, OTHERS}
    assert (found[ROWS].to, found[ROWS].whole) == ({0: 1}, True)
    assert found[ROWS].number > first.number
