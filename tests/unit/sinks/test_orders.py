"""What the calls about sinks show and do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest

from fennel_core.ingest.store import Branches
from fennel_core.redrive.sink_replays import MemorySinkReplays, SinkReplay
from fennel_core.sinks.controls import MemorySinkControls, RewindOrder
from fennel_core.sinks.orders import SinkOrders, SinkUnknown
from fennel_core.sources.controls import FeedNews, MemorySourceControls
from fennel_core.vocab.ids import BranchName, PartitionIndex, TopicName, WorkspaceId
from tests.support.ingest_world import WORKSPACE, branches, catalog
from tests.support.sink_bindings import bound, hooks

FIRST, SECOND = TopicName("w.sink.a.1"), TopicName("w.sink.b.1")
WORLD = branches(
    "1",
    main=replace(catalog(), sinks=(bound(FIRST, hooks("/rows")),)),
    copy=replace(catalog(), sinks=(bound(FIRST, hooks("/rows")), bound(SECOND, hooks("/others")))),
)


@dataclass
class World:
    """A workspace whose branches may change."""

    branches: Branches = field(default_factory=lambda: WORLD)
    reports: MemorySourceControls = field(
        default_factory=lambda: MemorySourceControls(lambda: datetime.now(UTC), {FIRST, SECOND})
    )
    controls: MemorySinkControls = field(
        default_factory=lambda: MemorySinkControls(lambda: datetime.now(UTC), {FIRST, SECOND})
    )
    replays: MemorySinkReplays = field(default_factory=lambda: MemorySinkReplays({FIRST, SECOND}))

    def orders(self) -> SinkOrders:
        async def read(workspace: WorkspaceId) -> Branches:
            assert workspace == WORKSPACE
            return self.branches

        return SinkOrders(read, self.reports, self.controls, self.replays)


async def test_sinks_are_listed_with_branches_state_lag_and_error() -> None:
    world = World()
    orders = world.orders()
    await world.reports.report([FeedNews(FIRST, 2, 5, "it is busy", None)])
    await world.reports.count({FIRST: 34, SECOND: 1})
    others, rows = await orders.rows(WORKSPACE, None)
    assert (rows["sink"], rows["kind"], rows["dataset"]) == ("hooks/rows", "http", "Users")
    assert (rows["changes"], others["changes"]) == (34, None)
    assert (rows["state"], rows["behind"], rows["failures"]) == ("parked", 5, 2)
    assert (rows["branches"], rows["error"]) == (["copy", "main"], "it is busy")
    assert "commit connector `hooks` with the new ones" in rows["remedy"]
    assert others["remedy"] is None
    assert (others["sink"], others["state"], others["behind"]) == (
        "hooks/others",
        "unwatched",
        None,
    )
    assert [each["sink"] for each in await orders.rows(WORKSPACE, BranchName("main"))] == [
        "hooks/rows"
    ]


async def test_orders_that_are_not_carried_out_are_shown() -> None:
    world = World()
    orders = world.orders()
    others, rows = await orders.rows(WORKSPACE, None)
    assert (rows["rewind"], rows["replays"]) == (None, 0)
    await world.controls.rewind([RewindOrder(FIRST, {0: 12, 1: 3}, whole=False)])
    message = (0, 12)
    letters = (TopicName("w.dead.1"), PartitionIndex(0))
    await world.replays.order([SinkReplay(FIRST, letters, n, message) for n in (4, 5)])
    others, rows = await orders.rows(WORKSPACE, None)
    assert rows["rewind"] == {
        "from": {"0": 12, "1": 3},
        "whole": False,
        "ordered_at": "1970-01-01T00:00:00+00:00",
    }
    assert rows["replays"] == 2
    assert (others["rewind"], others["replays"]) == (None, 0)
    await world.controls.carried_out({FIRST: 1})
    _, rows = await orders.rows(WORKSPACE, None)
    assert rows["rewind"] is None


async def test_a_pause_is_of_the_sink_that_is_named() -> None:
    world = World()
    orders = world.orders()
    await orders.pause(WORKSPACE, "hooks/rows", "ann")
    assert list(await world.controls.pauses()) == [(WORKSPACE, "hooks/rows")]
    others, rows = await orders.rows(WORKSPACE, None)
    assert (rows["state"], rows["paused_by"]) == ("paused", "ann")
    assert others["state"] == "unwatched"
    await orders.resume(WORKSPACE, "hooks/rows")
    assert not await world.controls.pauses()


async def test_a_pause_of_another_workspace_is_not_shown() -> None:
    world = World()
    for name in ("hooks/rows", "hooks/gone"):
        await world.controls.pause((WorkspaceId("other"), name), "bob")
    rows = await world.orders().rows(WORKSPACE, None)
    assert [(row["sink"], row["state"]) for row in rows] == [
        ("hooks/others", "unwatched"),
        ("hooks/rows", "unwatched"),
    ]


async def test_how_far_a_paused_sink_is_behind_is_not_known() -> None:
    world = World()
    orders = world.orders()
    await world.reports.report([FeedNews(FIRST, 0, 5, None, None)])
    _, rows = await orders.rows(WORKSPACE, None)
    assert (rows["state"], rows["behind"]) == ("running", 5)
    await orders.pause(WORKSPACE, "hooks/rows", "ann")
    _, rows = await orders.rows(WORKSPACE, None)
    assert (rows["state"], rows["behind"]) == ("paused", None)


async def test_a_pause_is_kept_for_later_versions_of_the_dataset() -> None:
    world = World()
    orders = world.orders()
    await orders.pause(WORKSPACE, "hooks/rows", "ann")
    world.branches = branches("2", main=replace(catalog(), sinks=(bound(SECOND, hooks("/rows")),)))
    (row,) = await orders.rows(WORKSPACE, None)
    assert (row["sink"], row["state"]) == ("hooks/rows", "paused")


async def test_a_pause_that_no_branch_has_a_sink_for_is_shown_and_lifted() -> None:
    world = World()
    orders = world.orders()
    await orders.pause(WORKSPACE, "hooks/others", "ann")
    world.branches = branches("2", main=catalog())
    (row,) = await orders.rows(WORKSPACE, None)
    assert (row["sink"], row["state"], row["branches"]) == ("hooks/others", "paused", [])
    assert await orders.rows(WORKSPACE, BranchName("main")) == []
    await orders.resume(WORKSPACE, "hooks/others")
    assert await orders.rows(WORKSPACE, None) == []
    with pytest.raises(SinkUnknown):
        await orders.resume(WORKSPACE, "hooks/others")


async def test_an_unknown_sink_is_named_with_those_that_there_are() -> None:
    orders = World().orders()
    with pytest.raises(SinkUnknown, match=r"no sink `hooks/row` .* hooks/others, hooks/rows"):
        await orders.pause(WORKSPACE, "hooks/row", "ann")
