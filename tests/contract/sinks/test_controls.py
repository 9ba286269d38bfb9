"""The contract of orders about sinks, in memory and in a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from fennel_core.connections.postgres import pool
from fennel_core.redrive.sink_replays import MemorySinkReplays, SinkReplay, SinkReplays
from fennel_core.sinks.controls import MemorySinkControls, RewindOrder, SinkControls
from fennel_core.sinks.postgres import PostgresSinkControls, PostgresSinkReplays
from fennel_core.vocab.ids import PartitionIndex, TopicName, WorkspaceId
from tests.support.stored_assets import store_assets

ROWS, OTHERS = TopicName("shop.sink.rows.1"), TopicName("shop.sink.others.2")
GONE = TopicName("shop.sink.gone.3")
SHOP, DOCKS = WorkspaceId("shop"), WorkspaceId("docks")


LETTERS = TopicName("shop.dead.x.1"), PartitionIndex(1)


@dataclass
class Stores:
    """The orders of one kind of store."""

    controls: SinkControls
    replays: SinkReplays


@pytest.fixture(params=["memory", "postgres"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    if request.param == "memory":
        sinks = {ROWS, OTHERS}
        controls = MemorySinkControls(lambda: datetime.now(UTC), sinks)
        yield Stores(controls, MemorySinkReplays(sinks))
        return
    async with pool(request.getfixturevalue("database"), name="test", size=2) as connections:
        await store_assets(connections, (ROWS, OTHERS), (SHOP, DOCKS))
        yield Stores(PostgresSinkControls(connections), PostgresSinkReplays(connections))


@pytest.fixture
def controls(stores: Stores) -> SinkControls:
    return stores.controls


@pytest.fixture
def replays(stores: Stores) -> SinkReplays:
    return stores.replays


def replay(sink: TopicName, offset: int, message: tuple[int, int] | None) -> SinkReplay:
    return SinkReplay(sink, LETTERS, offset, message)


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


async def test_a_rewind_is_pending_until_it_was_carried_out(controls: SinkControls) -> None:
    assert await controls.pending() == {}
    await controls.rewind([RewindOrder(ROWS, {0: 1}, False), RewindOrder(OTHERS, {0: 2}, True)])
    first = await controls.rewinds()
    assert await controls.pending() == first
    await controls.carried_out({ROWS: first[ROWS].number, GONE: 5})
    assert await controls.pending() == {OTHERS: first[OTHERS]}
    await controls.rewind([RewindOrder(ROWS, {0: 3}, False)])
    await controls.carried_out({ROWS: first[ROWS].number})
    assert (await controls.pending())[ROWS].to == {0: 3}, "the later one is not"
    last = (await controls.rewinds())[ROWS].number
    await controls.carried_out({ROWS: last})
    await controls.carried_out({ROWS: first[ROWS].number, OTHERS: last})
    assert await controls.pending() == {}


async def test_an_order_is_there_once_until_it_ends(replays: SinkReplays) -> None:
    assert await replays.counts() == {}
    first, second = replay(ROWS, 3, (0, 12)), replay(ROWS, 2**40, (0, 2**40))
    await replays.order([second, first, replay(OTHERS, 3, None), replay(GONE, 3, None)])
    await replays.order([first, first])
    assert await replays.counts() == {ROWS: 2, OTHERS: 1}
    assert await replays.due(ROWS, {0: 2**41}, 10) == [first, second]
    assert await replays.due(ROWS, {0: 2**41}, 1) == [first]
    await replays.end([first, replay(OTHERS, 4, None)])
    await replays.end([])
    assert await replays.due(ROWS, {0: 2**41}, 10) == [second]
    assert await replays.counts() == {ROWS: 1, OTHERS: 1}


async def test_an_order_is_due_when_the_sink_has_passed_the_message(replays: SinkReplays) -> None:
    zero, one, deletes = replay(ROWS, 1, (0, 5)), replay(ROWS, 2, (1, 5)), replay(ROWS, 3, None)
    await replays.order([zero, one, deletes])
    assert await replays.due(ROWS, {}, 10) == [deletes]
    assert await replays.due(ROWS, {0: 6, 1: 5}, 10) == [zero, deletes]
    assert await replays.due(ROWS, {0: 5, 1: 6}, 10) == [one, deletes]
    assert await replays.due(OTHERS, {0: 6, 1: 6}, 10) == []
