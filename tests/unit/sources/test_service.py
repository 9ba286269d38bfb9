"""What the calls about sources show and do."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fennel_core.ingest.store import MemoryDirectory
from fennel_core.sources.api_errors import LimitInvalid, OrderNotServed, SourceIsSent, SourceUnknown
from fennel_core.sources.controls import FeedNews, FeedStatus, MemorySourceControls, SourcePause
from fennel_core.sources.feeds import feeds_of
from fennel_core.sources.overview import STATUS_S, Orders, SourceState, source_views, state_of
from fennel_core.sources.positions import DatasetPosition, SourcePosition
from fennel_core.sources.service import SourceService, topic_of
from fennel_core.vocab.ids import BranchName, Identity, Micros, TopicName
from fennel_core.wire.connectors import S3, JsonFormat, KafkaTopic, Login, S3Table
from tests.support.ingest_world import WORKSPACE, binding, branches, catalog
from tests.support.source_world import CONNECTOR, ORIGIN, RAW, stream_source

OTHERS = replace(stream_source("Others"), identity=Identity("others"))
WORLD = branches(
    "1", main=catalog(stream_source(), OTHERS, binding()), copy=catalog(stream_source())
)
POSITIONS = {
    RAW: {
        0: SourcePosition(
            40, ORIGIN, {Identity("users"): DatasetPosition(None, 5, None, 30, 6, 4)}
        ),
        1: SourcePosition(2, ORIGIN, {Identity("users"): DatasetPosition(None, 9, None, 2, 0, 0)}),
    }
}
FRESH, STALE = 1.0, STATUS_S + 1


def controls() -> MemorySourceControls:
    return MemorySourceControls(lambda: datetime.now(UTC), {RAW})


def service(stored: MemorySourceControls) -> SourceService:
    return SourceService(MemoryDirectory({WORKSPACE: WORLD}), stored, lambda _: POSITIONS)


async def test_a_stream_is_listed_with_rows_lag_positions_and_error() -> None:
    stored = controls()
    await stored.report([FeedNews(RAW, 2, None, "no route", 30.0)])
    webhook, stream = await service(stored).rows(WORKSPACE, None)
    assert (stream["source"], stream["kind"], stream["state"]) == (
        "kafka/orders",
        "kafka",
        "parked",
    )
    assert (stream["branches"], stream["failures"]) == (["copy", "main"], 2)
    assert (stream["error"], stream["positions"]) == ("no route", {"0": 40, "1": 2})
    assert stream["retry_at"] is not None
    assert "commit connector `kafka`" in stream["remedy"]
    users, others = stream["datasets"]
    assert users | {"branches": []} == {
        "dataset": "Users",
        "branches": [],
        "cdc": "upsert",
        "accepted": 32,
        "late": 6,
        "dead": 4,
        "latest_us": 9,
        "ended": False,
    }
    assert (users["branches"], others["branches"]) == (["copy", "main"], ["main"])
    assert others["accepted"] == 0
    assert (webhook["source"], webhook["state"], webhook["positions"]) == ("hook/e", "sent", {})
    assert webhook["datasets"][0]["accepted"] is None


@pytest.mark.parametrize("newest", ["main", "copy"])
async def test_the_credentials_of_a_stream_are_those_of_the_newest_commit(newest: str) -> None:
    found = []
    for branch in WORLD.branches:
        connector = replace(CONNECTOR, bootstrap_servers=f"{branch.branch}:9092")
        made = catalog(stream_source(table=KafkaTopic(connector, "orders", JsonFormat())))
        created = Micros(2 if branch.branch == newest else 1)
        found.append(replace(branch, catalog=made, created_us=created))
    (view,) = source_views(replace(WORLD, branches=tuple(found)))
    assert view.feed is not None
    assert view.feed.table.db.bootstrap_servers == f"{newest}:9092"


async def test_a_stream_that_is_not_read_is_behind_by_an_unknown_number() -> None:
    stored = controls()
    await stored.report([FeedNews(RAW, 0, 7, None, None)])
    _, stream = await service(stored).rows(WORKSPACE, None)
    assert (stream["state"], stream["behind"], stream["remedy"]) == ("running", 7, None)
    await stored.pause([RAW], "token 1")
    _, stream = await service(stored).rows(WORKSPACE, None)
    assert (stream["state"], stream["behind"]) == ("paused", None)


async def test_the_list_can_be_that_of_one_branch() -> None:
    found = await service(controls()).rows(WORKSPACE, BranchName("copy"))
    assert [each["source"] for each in found] == ["kafka/orders"]


async def test_a_source_is_paused_and_resumed_by_its_name() -> None:
    stored = controls()
    calls = service(stored)
    await calls.pause(WORKSPACE, "kafka/orders", "token 1")
    stream = (await calls.rows(WORKSPACE, None))[1]
    assert (stream["state"], stream["paused_by"]) == ("paused", "token 1")
    await calls.resume(WORKSPACE, "kafka/orders")
    assert await stored.pauses() == {}


async def test_a_source_is_limited_by_its_name_until_the_limit_is_ended() -> None:
    stored = controls()
    calls = service(stored)
    await calls.limit(WORKSPACE, "kafka/orders", 12.5, "token 1")
    stream = (await calls.rows(WORKSPACE, None))[1]
    assert (stream["rows_per_s"], stream["limited_by"]) == (12.5, "token 1")
    await calls.limit(WORKSPACE, "kafka/orders", None, "token 2")
    stream = (await calls.rows(WORKSPACE, None))[1]
    assert (stream["rows_per_s"], stream["limited_by"]) == (None, None)


@pytest.mark.parametrize("rows_per_s", [0.0, -1.0, 0.009, 1e10])
async def test_a_limit_that_no_source_can_have_is_refused(rows_per_s: float) -> None:
    with pytest.raises(LimitInvalid, match=re.escape(f"limited to {rows_per_s:g} rows")):
        await service(controls()).limit(WORKSPACE, "kafka/orders", rows_per_s, "token 1")


async def test_a_webhook_is_not_limited() -> None:
    with pytest.raises(SourceIsSent, match=r"`hook/e` is a webhook.*cannot limit it"):
        await service(controls()).limit(WORKSPACE, "hook/e", 5.0, "token 1")


async def test_what_cannot_be_paused_is_refused_by_name() -> None:
    calls = service(controls())
    with pytest.raises(SourceIsSent, match="`hook/e` is a webhook"):
        await calls.pause(WORKSPACE, "hook/e", "token 1")
    with pytest.raises(SourceUnknown, match=r"`x`.* its sources: hook/e, kafka/orders"):
        await calls.resume(WORKSPACE, "x")


@pytest.mark.parametrize(
    ("paused", "status", "state"),
    [
        (True, FeedStatus(1, None, "no route", None, FRESH), SourceState.PAUSED),
        (False, FeedStatus(1, None, "no route", None, FRESH), SourceState.PARKED),
        (False, FeedStatus(0, 3, None, None, FRESH), SourceState.RUNNING),
        (False, FeedStatus(0, None, "not read to its end", None, FRESH), SourceState.RUNNING),
        (False, FeedStatus(0, 3, None, None, STALE), SourceState.UNWATCHED),
        (False, None, SourceState.UNWATCHED),
    ],
)
def test_the_state_of_a_stream(paused: bool, status: FeedStatus | None, state: SourceState) -> None:
    webhook, stream = source_views(WORLD)
    pause = SourcePause("token 1", datetime.now(UTC)) if paused else None
    assert state_of(stream, Orders(pause, status)) is state
    assert state_of(webhook, Orders()) is SourceState.SENT
    over = Orders(pause, status, ended_at=datetime.now(UTC))
    assert state_of(stream, over) is (SourceState.PAUSED if paused else SourceState.ENDED)


async def test_a_source_that_has_ended_is_listed_as_ended() -> None:
    stored, (own, other) = controls(), (binding(), binding(dataset="Logs"))
    second = replace(own, identity=Identity("second"), topic=TopicName("w.other.1"))
    ends = [
        replace(each, source=replace(each.source, bounded=True, idleness_us=10_000_000))
        for each in (own, second)
    ]
    world = branches("1", main=catalog(stream_source(), *ends))
    calls = SourceService(MemoryDirectory({WORKSPACE: world}), stored, lambda _: POSITIONS)

    async def listed() -> list[tuple[str, list[bool]]]:
        rows = await calls.rows(WORKSPACE, None)
        return [(row["state"], [each["ended"] for each in row["datasets"]]) for row in rows]

    stored.silent[WORKSPACE] = {own.identity: 10.1, Identity("second"): 9.9, other.identity: 99.0}
    assert await listed() == [("sent", [True, False]), ("unwatched", [False])]
    stored.silent[WORKSPACE][Identity("second")] = 10.1
    await stored.end(RAW)
    assert await listed() == [("ended", [True, True]), ("ended", [True])]
    assert (await calls.rows(WORKSPACE, None))[1]["ended_at"] is not None
    await calls.resume(WORKSPACE, "kafka/orders")
    assert (await listed())[1] == ("unwatched", [False])


def test_orders_that_files_do_not_have_are_refused_before_a_pause_is_asked_for() -> None:
    db = S3("lake", None, Login(None, None))
    table = S3Table(db, "b", "in/", "", "json", "", (), False, None)
    (feed,) = feeds_of([catalog(stream_source(table=table))]).values()
    assert (feed.title, feed.stream.kind) == ("lake/b/in/?format=json", "s3")
    with pytest.raises(OrderNotServed, match=r"reads S3 files `b/in/`, which .* cannot rewind yet"):
        topic_of(feed.title, feed, "rewind")
