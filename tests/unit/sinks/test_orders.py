"""What the calls about sinks show and do."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fennel_core.blueprints.spec import SinkBinding
from fennel_core.ingest.store import Branches
from fennel_core.sinks.orders import SinkOrders, SinkUnknown
from fennel_core.sources.controls import FeedNews, MemorySourceControls
from fennel_core.vocab.ids import BranchName, DatasetName, TopicName, WorkspaceId
from fennel_core.wire.connectors import Cdc, Http, HttpPath, PlainSecret, Sink
from tests.support.ingest_world import WORKSPACE, branches, catalog
from tests.support.sink_world import USERS

FIRST, SECOND = TopicName("w.sink.a.1"), TopicName("w.sink.b.1")


def bound(name: TopicName, path: str) -> SinkBinding:
    hooks = Http("hooks", PlainSecret("https://a.example"), "/health", None)
    table, users = HttpPath(hooks, path, None, ()), DatasetName("Users")
    sink = Sink(users, 1, table, Cdc.DEBEZIUM, None, None, False, False, (), None, None)
    return SinkBinding(name, sink, users, USERS, (), TopicName("w.topic.users.1"))


WORLD = branches(
    "1",
    main=replace(catalog(), sinks=(bound(FIRST, "/rows"),)),
    copy=replace(catalog(), sinks=(bound(FIRST, "/rows"), bound(SECOND, "/others"))),
)


def world() -> tuple[SinkOrders, MemorySourceControls]:
    stored = MemorySourceControls(lambda: datetime.now(UTC), {FIRST, SECOND})

    async def read(workspace: WorkspaceId) -> Branches:
        assert workspace == WORKSPACE
        return WORLD

    return SinkOrders(read, stored), stored


async def test_sinks_are_listed_with_branches_state_lag_and_error() -> None:
    orders, stored = world()
    await stored.report([FeedNews(FIRST, 2, 5, "it is busy", None)])
    others, rows = await orders.rows(WORKSPACE, None)
    assert (rows["sink"], rows["kind"], rows["dataset"]) == ("hooks/rows", "http", "Users")
    assert (rows["state"], rows["behind"], rows["failures"]) == ("parked", 5, 2)
    assert (rows["branches"], rows["error"]) == (["copy", "main"], "it is busy")
    assert (others["sink"], others["state"], others["behind"]) == (
        "hooks/others",
        "unwatched",
        None,
    )
    assert [each["sink"] for each in await orders.rows(WORKSPACE, BranchName("main"))] == [
        "hooks/rows"
    ]


async def test_a_pause_is_of_the_sink_that_is_named() -> None:
    orders, stored = world()
    await orders.pause(WORKSPACE, "hooks/rows", "ann")
    assert list(await stored.pauses()) == [FIRST]
    others, rows = await orders.rows(WORKSPACE, None)
    assert (rows["state"], rows["paused_by"]) == ("paused", "ann")
    assert others["state"] == "unwatched"
    await orders.resume(WORKSPACE, "hooks/rows")
    assert not await stored.pauses()


async def test_an_unknown_sink_is_named_with_those_that_there_are() -> None:
    orders, _ = world()
    with pytest.raises(SinkUnknown, match=r"no sink `hooks/row` .* hooks/others, hooks/rows"):
        await orders.pause(WORKSPACE, "hooks/row", "ann")
