"""The contract of pauses and statuses of sources, in memory and in a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fennel_core.connections.postgres import pool
from fennel_core.sources.controls import FeedNews, MemorySourceControls, SourceControls
from fennel_core.sources.postgres import PostgresSourceControls
from fennel_core.vocab.ids import TopicName
from tests.support.stored_assets import store_assets

ORDERS, USERS = TopicName("shop.raw.orders.1"), TopicName("shop.raw.users.2")
GONE = TopicName("shop.raw.gone.3")


@pytest.fixture(params=["memory", "postgres"])
async def controls(request: pytest.FixtureRequest) -> AsyncIterator[SourceControls]:
    if request.param == "memory":
        yield MemorySourceControls(lambda: datetime.now(UTC), {ORDERS, USERS})
        return
    async with pool(request.getfixturevalue("database"), name="test", size=2) as connections:
        await store_assets(connections, (ORDERS, USERS), ["shop"])
        yield PostgresSourceControls(connections)


async def test_a_pause_is_kept_until_it_is_lifted(controls: SourceControls) -> None:
    assert await controls.pauses() == {}
    await controls.pause([ORDERS, USERS], "token 1")
    first = await controls.pauses()
    assert {topic: each.by for topic, each in first.items()} == {
        ORDERS: "token 1",
        USERS: "token 1",
    }
    await controls.pause([ORDERS], "token 2")
    assert await controls.pauses() == first
    await controls.resume([ORDERS, GONE])
    assert await controls.pauses() == {USERS: first[USERS]}


async def test_a_limit_is_replaced_and_ended(controls: SourceControls) -> None:
    assert await controls.limits() == {}
    await controls.limit(ORDERS, 5.0, "token 1")
    await controls.limit(USERS, 0.25, "token 1")
    await controls.limit(GONE, 5.0, "token 1")
    await controls.limit(ORDERS, 7.5, "token 2")
    await controls.resume([ORDERS])
    found = await controls.limits()
    assert {topic: (each.rows_per_s, each.by) for topic, each in found.items()} == {
        ORDERS: (7.5, "token 2"),
        USERS: (0.25, "token 1"),
    }
    await controls.limit(ORDERS, None, "token 1")
    await controls.limit(GONE, None, "token 1")
    assert list(await controls.limits()) == [USERS]


async def test_a_generation_begins_only_while_a_source_is_paused(controls: SourceControls) -> None:
    assert not await controls.begin_generation(ORDERS)
    assert await controls.generations() == {}
    await controls.pause([ORDERS], "token 1")
    assert await controls.begin_generation(ORDERS)
    assert await controls.begin_generation(ORDERS)
    await controls.resume([ORDERS])
    assert not await controls.begin_generation(ORDERS)
    assert await controls.generations() == {ORDERS: 2}


async def test_the_last_status_of_a_source_is_kept(controls: SourceControls) -> None:
    await controls.report([])
    assert await controls.statuses() == {}
    await controls.report(
        [FeedNews(ORDERS, 3, None, "no\0route", 60.0), FeedNews(USERS, 0, 7, None, None)]
    )
    found = await controls.statuses()
    broken, read = found[ORDERS], found[USERS]
    assert (broken.failures, broken.behind) == (3, None)
    assert broken.reason is not None
    assert broken.reason.startswith("no")
    assert broken.retry_at is not None
    assert 50 < (broken.retry_at - datetime.now(UTC)).total_seconds() <= 61
    assert (read.failures, read.behind, read.reason, read.retry_at) == (0, 7, None, None)
    assert 0 <= read.age_s < 30
    await controls.report([FeedNews(ORDERS, 0, 1, None, None)])
    assert [(await controls.statuses())[t].reason for t in (ORDERS, USERS)] == [None, None]


async def test_topics_that_are_gone_are_left_out(controls: SourceControls) -> None:
    await controls.pause([GONE], "token 1")
    await controls.report([FeedNews(GONE, 0, 1, None, None)])
    assert (await controls.pauses(), await controls.statuses()) == ({}, {})


async def test_rows_are_counted_of_sources_that_were_reported(controls: SourceControls) -> None:
    news = FeedNews(ORDERS, 0, 1, None, None)
    await controls.report([news])
    await controls.count({})
    assert (await controls.statuses())[ORDERS].rows is None
    await controls.count({USERS: 3, ORDERS: 2**40, GONE: 1})
    await controls.report([news])
    assert {topic: each.rows for topic, each in (await controls.statuses()).items()} == {
        ORDERS: 2**40
    }


async def test_a_bounded_source_ends_once_until_it_is_resumed_or_reopened(
    controls: SourceControls,
) -> None:
    assert await controls.ends() == {}
    assert not await controls.end(GONE)
    await controls.reopen([ORDERS])
    assert await controls.end(ORDERS)
    first = await controls.ends()
    assert [(topic, each.reopened_at) for topic, each in first.items()] == [(ORDERS, None)]
    assert first[ORDERS].ended_at is not None
    assert not await controls.end(ORDERS), "another process has said so"
    await controls.reopen([USERS])
    assert await controls.ends() == first
    await controls.reopen([ORDERS])
    reopened = (await controls.ends())[ORDERS]
    assert reopened.ended_at is None
    assert reopened.reopened_at is not None
    assert reopened.reopened_at >= first[ORDERS].ended_at
    await controls.reopen([ORDERS])
    assert (await controls.ends())[ORDERS] == reopened, "the idleness counts from the first time"
    assert await controls.end(ORDERS, reopened.reopened_at)
    again = (await controls.ends())[ORDERS]
    assert again.ended_at is not None
    assert again.reopened_at == reopened.reopened_at
    await controls.resume([ORDERS])
    assert (await controls.ends())[ORDERS].ended_at is None


async def test_an_end_that_was_noticed_before_a_resume_is_not_noted_after_it(
    controls: SourceControls,
) -> None:
    await controls.resume([ORDERS, GONE])
    assert not await controls.end(ORDERS)
    first = (await controls.ends())[ORDERS].reopened_at
    assert first is not None
    await controls.resume([ORDERS])
    assert not await controls.end(ORDERS, first)
    ends = await controls.ends()
    assert {topic: each.ended_at for topic, each in ends.items()} == {ORDERS: None}
    assert await controls.end(ORDERS, ends[ORDERS].reopened_at)


async def test_an_end_that_is_noted_behind_a_pause_ends_with_it(controls: SourceControls) -> None:
    await controls.pause([ORDERS], "token 1")
    assert await controls.end(ORDERS)
    assert list(await controls.pauses()) == [ORDERS]
    await controls.resume([ORDERS])
    assert await controls.pauses() == {}
    assert (await controls.ends())[ORDERS].ended_at is None


async def test_a_rewind_reopens_a_source_only_while_it_is_paused(controls: SourceControls) -> None:
    await controls.end(ORDERS)
    await controls.end(USERS)
    assert not await controls.begin_generation(ORDERS)
    assert (await controls.ends())[ORDERS].ended_at is not None
    await controls.pause([ORDERS], "token 1")
    assert await controls.begin_generation(ORDERS)
    ends = await controls.ends()
    assert [ends[topic].ended_at is None for topic in (ORDERS, USERS)] == [True, False]


async def test_a_status_says_since_when_a_source_was_not_read_to_its_end(
    controls: SourceControls,
) -> None:
    news = FeedNews(ORDERS, 0, 3, None, None, unread_s=300.0)
    await controls.report([news, replace(news, raw_topic=USERS, unread_s=None)])
    found = await controls.statuses()
    assert found[ORDERS].unread_s == pytest.approx(300.0 + found[ORDERS].age_s, abs=0.01)
    assert found[USERS].unread_s is None
    await controls.report([replace(news, unread_s=0.0)])
    again = (await controls.statuses())[ORDERS].unread_s
    assert again is not None
    assert again < 300.0
