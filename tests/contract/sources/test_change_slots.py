"""What is remembered of slots in users' databases, in memory and in Postgres."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fennel_core.connections import postgres
from fennel_core.connections.external_postgres import ExternalPostgresUnusable
from fennel_core.connections.postgres import Pool, connection_of
from fennel_core.sources import change_slots
from fennel_core.sources.change_slots import (
    KEPT,
    AbandonedSlot,
    ChangeSlots,
    MemoryChangeSlots,
    PostgresChangeSlots,
    drop_abandoned,
)
from fennel_core.sources.feeds import Feed
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.wire.connectors import Login, Postgres, PostgresChanges, SealedSecret

W, TOPIC = WorkspaceId("w"), TopicName("w.raw.orders.1")
SECRET = SealedSecret("print", "token")
TABLE = PostgresChanges(Postgres("shop", "db", 5432, "shop", None, Login(None, SECRET)), "orders")
FEED = Feed(W, TOPIC, TopicName("w.positions.orders.1"), 4, TABLE)


@dataclass
class Slots:
    """A store, and what happens to its sources and to time."""

    store: ChangeSlots
    destroy: Callable[[], Awaitable[None]]
    pass_: Callable[[timedelta], Awaitable[None]]

    async def abandoned(self) -> list[tuple[str, str | None]]:
        return [(each.slot, each.error) for each in await self.store.abandoned()]


@pytest.fixture(params=["memory", "postgres"])
async def slots(request: pytest.FixtureRequest) -> AsyncIterator[Slots]:
    if request.param == "memory":
        yield memory()
        return
    async with postgres.pool(request.getfixturevalue("database"), name="test", size=1) as pool:
        yield await stored(pool)


def memory() -> Slots:
    now = [datetime.now(UTC)]
    store = MemoryChangeSlots({TOPIC}, lambda: now[0])

    async def destroy() -> None:
        store.alive.clear()

    async def pass_(time: timedelta) -> None:
        now[0] += time

    return Slots(store, destroy, pass_)


async def stored(pool: Pool) -> Slots:
    async def run(query: str, *given: Any) -> None:
        async with connection_of(pool) as connection:
            await connection.execute(query.encode(), given)

    await run("INSERT INTO workspace (name) VALUES ('w')")
    await run(
        "INSERT INTO asset (id, workspace, kind, identity, incarnation, state, title, blueprint) "
        "VALUES (%s, 'w', 'raw', 'orders', 1, 'live', 't', '')",
        TOPIC,
    )

    async def destroy() -> None:
        await run("UPDATE asset SET state = 'deleted'")

    async def pass_(time: timedelta) -> None:
        await run("UPDATE change_slot SET dropped_at = dropped_at - %s", time)

    return Slots(PostgresChangeSlots(pool), destroy, pass_)


async def test_a_source_keeps_the_name_of_its_slot(slots: Slots) -> None:
    first = await slots.store.hold(FEED, TABLE)
    assert first is not None
    assert await slots.store.hold(FEED, TABLE) == first
    assert await slots.abandoned() == []


async def test_a_destroyed_source_gets_no_slot(slots: Slots) -> None:
    await slots.destroy()
    assert await slots.store.hold(FEED, TABLE) is None


async def test_the_slot_of_a_destroyed_source_is_dropped_twice_and_forgotten(slots: Slots) -> None:
    slot = await slots.store.hold(FEED, TABLE)
    await slots.destroy()
    dropped: list[AbandonedSlot] = []
    for passed, times in ((timedelta(0), 1), (KEPT / 2, 1), (KEPT, 2), (2 * KEPT, 2)):
        await slots.pass_(passed)
        assert await drop_abandoned(slots.store, dropped.append) == []
        assert [(each.slot, each.table) for each in dropped] == [(slot, TABLE)] * times
    assert dropped[0].table.db == TABLE.db
    assert isinstance(dropped[0].table.db, Postgres)
    secret = dropped[0].table.db.login.password
    assert isinstance(secret, SealedSecret)
    assert secret.token == SECRET.token


async def test_a_slot_that_cannot_be_dropped_is_tried_again(slots: Slots) -> None:
    slot = await slots.store.hold(FEED, TABLE)
    await slots.destroy()

    def away(_: AbandonedSlot) -> None:
        raise ExternalPostgresUnusable("the server is away")

    [left] = await drop_abandoned(slots.store, away)
    assert (left.slot, left.error) == (slot, "the server is away")
    assert await slots.abandoned() == [(slot, "the server is away")]
    assert await drop_abandoned(slots.store, lambda _: None) == []
    assert await slots.abandoned() == []


async def test_a_server_that_does_not_respond_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_slots, "DROP_S", 0.2)
    store, freed = MemoryChangeSlots(), threading.Event()
    topics = [TopicName(name) for name in ("hangs", "is-away", "is-broken", "drops")]
    store.alive.update(topics)
    for topic in topics:
        await store.hold(replace(FEED, raw_topic=topic), TABLE)
    store.alive.clear()

    def drop(slot: AbandonedSlot) -> None:
        match slot.raw_topic:
            case "hangs":
                freed.wait(30)
            case "is-away":
                raise ExternalPostgresUnusable("the server is away")
            case "is-broken":
                raise ValueError("a defect")

    left = await drop_abandoned(store, drop)
    freed.set()
    assert [(each.raw_topic, each.error) for each in left] == [
        ("hangs", "the server did not respond in 0 s"),
        ("is-away", "the server is away"),
        ("is-broken", "ValueError: a defect"),
    ]
    assert {each.raw_topic for each in await store.abandoned()} == set(topics[:3])
