"""From where a sink is written again, and what has to be said for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fennel_core.history.topic_slices import TopicSlice
from fennel_core.ingest.store import Branches
from fennel_core.redrive.sink_replays import MemorySinkReplays
from fennel_core.sinks.controls import MemorySinkControls
from fennel_core.sinks.orders import SinkOrders, SinkUnknown
from fennel_core.sinks.positions import SinkRewind
from fennel_core.sinks.rewinds import LogTimes, SinkRewinds, offsets_of
from fennel_core.sources.api_errors import RewindNeedsConsent, RewindPlaceInvalid
from fennel_core.sources.controls import MemorySourceControls
from fennel_core.vocab.ids import BranchName, Offset, PartitionIndex, TopicName, WorkspaceId
from fennel_core.wire.connectors import S3, Login, S3Table
from tests.support.ingest_world import WORKSPACE, branches, catalog
from tests.support.sink_bindings import USERS_TOPIC, bound, hooks

SINK, TOPIC = TopicName("w.sink.a.1"), USERS_TOPIC
HOOKS = hooks("/rows")
LAKE = S3("lake", None, Login(None, None))
TABLE = S3Table(LAKE, "lake", "users", "", "delta", "", (), False, None)
NOON = "2026-01-01T12:00:00Z"


def slices(*bounds: tuple[int, int]) -> list[TopicSlice]:
    return [
        TopicSlice((TOPIC, PartitionIndex(part)), (), Offset(first), Offset(end), "")
        for part, (first, end) in enumerate(bounds)
    ]


TWO = slices((0, 10), (4, 20))


@pytest.mark.parametrize(
    ("to", "times", "found"),
    [
        ("earliest", None, {0: 0, 1: 4}),
        (NOON, LogTimes({0: 0, 1: 4}, {0: 0, 1: 6}), {0: 0, 1: 6}),
        (NOON, LogTimes({0: 5, 1: 4}, {0: 6, 1: 20}), {0: 6, 1: 20}),
        (NOON, LogTimes({0: 0, 1: 4}, {0: 0, 1: 4}), {0: 0, 1: 4}),
        ("1:20, 0:3", None, {1: 20, 0: 3}),
    ],
)
def test_a_place_is_an_offset_of_each_partition(
    to: str, times: LogTimes | None, found: dict[int, int]
) -> None:
    assert offsets_of(to, "hooks/rows", TWO, times) == found


@pytest.mark.parametrize(
    ("to", "times", "text"),
    [
        ("latest", None, "only goes back"),
        ("yesterday", None, "`yesterday` is no place"),
        ("0:11", None, "partition 0 has no offset 11; .* 0: 0 to 10, 1: 4 to 20"),
        ("1:3", None, "partition 1 has no offset 3"),
        ("2:0", None, "partition 2 has no offset 0"),
        (NOON, LogTimes({0: 5, 1: 4}, {0: 5, 1: 9}), "before offset 5 of partition 0"),
    ],
)
def test_what_is_no_place_is_refused_by_name(to: str, times: LogTimes | None, text: str) -> None:
    with pytest.raises(RewindPlaceInvalid, match=text):
        offsets_of(to, "hooks/rows", TWO, times)


class World:
    """A workspace with one sink into a table."""

    def __init__(self, table: Any) -> None:
        self.controls = MemorySinkControls(lambda: datetime.now(UTC), {SINK})
        self.table, self.asked = table, list[int]()
        self.slices = TWO

    async def branches(self, workspace: WorkspaceId) -> Branches:
        assert workspace == WORKSPACE
        return branches("1", main=replace(catalog(), sinks=(bound(SINK, self.table),)))

    async def plan(self, topics: Collection[TopicName]) -> Mapping[TopicName, Sequence[TopicSlice]]:
        assert topics == {TOPIC}
        return {TOPIC: self.slices}

    async def times(self, topic: TopicName, partitions: int, time_ms: int) -> LogTimes:
        assert (topic, partitions) == (TOPIC, catalog().partitions)
        self.asked.append(time_ms)
        return LogTimes({0: 0, 1: 4}, {0: 10, 1: 20} if time_ms else {0: 8, 1: 19})

    async def order(self, name: str, to: str, **flags: bool) -> dict[str, Any]:
        orders = SinkOrders(
            self.branches,
            MemorySourceControls(lambda: datetime.now(UTC), ()),
            self.controls,
            MemorySinkReplays(()),
        )
        rewinds = SinkRewinds(orders, self.controls, self.plan, self.times)
        flags = {"duplicates_rows": False, "dry_run": False} | flags
        return await rewinds.run(WORKSPACE, name, to, **flags)


async def test_a_table_is_rewound_without_more_words_because_each_change_is_there_once() -> None:
    world = World(TABLE)
    done = await world.order("lake/lake/users", "earliest")
    (own,) = done["rewound"]
    assert (own["from"], own["messages"]) == ({"0": 0, "1": 4}, 26)
    assert (own["dataset"], own["branches"]) == ("Users", [BranchName("main")])
    assert await world.controls.rewinds() == {SINK: SinkRewind(1, {0: 0, 1: 4}, whole=True)}


async def test_what_would_be_sent_twice_is_refused_with_the_numbers() -> None:
    world = World(HOOKS)
    with pytest.raises(RewindNeedsConsent, match=r"up to 26 messages .* same idempotency keys"):
        await world.order("hooks/rows", "earliest")
    assert not await world.controls.rewinds()
    done = await world.order("hooks/rows", "1970-01-01T00:00:00Z", duplicates_rows=True)
    assert done["rewound"][0]["messages"] == 3
    assert await world.controls.rewinds() == {SINK: SinkRewind(1, {0: 8, 1: 19}, whole=False)}


async def test_everything_is_written_again_also_if_that_is_nothing_yet() -> None:
    world = World(TABLE)
    world.slices = slices((5, 5))
    done = await world.order("lake/lake/users", "earliest")
    assert done["rewound"][0]["messages"] == 0
    assert await world.controls.rewinds() == {SINK: SinkRewind(1, {0: 5}, whole=True)}


async def test_a_dry_run_only_counts() -> None:
    world = World(HOOKS)
    done = await world.order("hooks/rows", "0:9", duplicates_rows=True, dry_run=True)
    assert (done["dry_run"], done["rewound"][0]["messages"]) == (True, 1)
    assert not await world.controls.rewinds()


async def test_an_order_that_would_do_nothing_is_refused() -> None:
    world = World(TABLE)
    with pytest.raises(RewindPlaceInvalid, match="no message from"):
        await world.order("lake/lake/users", NOON)
    assert world.asked == [1767268800000]
    with pytest.raises(SinkUnknown):
        await world.order("lake/lake/orders", "earliest")
