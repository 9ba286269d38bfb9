"""What a feed that is read in rounds says about itself while a round goes on."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from fennel_core.settings.model import Settings
from fennel_core.sources.feeds import Feed, FeedProgress, feeds_of
from fennel_core.sources.rounds import Rounds
from tests.support.ingest_world import catalog
from tests.support.polling import eventually
from tests.support.source_world import stream_source

(FEED,) = feeds_of([catalog(stream_source())]).values()


class Hanging(Rounds):
    """Rounds of which each hangs until a test lets it end, as does the rest after it."""

    def __init__(self, feed: Feed = FEED, rows: int = 0) -> None:
        self._rows = rows
        self.may_read, self.may_go_on = threading.Semaphore(1), threading.Semaphore(0)
        self.rounds = self.rests = 0
        names = ("setJobGroup", "setLocalProperty", "cancelJobGroup")
        context = SimpleNamespace(**{name: lambda *_, **__: None for name in names})
        spark = SimpleNamespace(sparkContext=context)
        by = SimpleNamespace(spark=spark, settings=Settings(), feed=feed)
        super().__init__(cast(Any, by), "group")

    def read(self) -> FeedProgress:
        self.rounds += 1
        assert self.may_read.acquire(timeout=30)
        return FeedProgress(0, rows=self._rows)

    def rest(self, took_s: float) -> None:
        self.rests += 1
        assert self.may_go_on.acquire(timeout=30)

    def fresh_s(self) -> float:
        found = self.progress()
        assert found is not None
        assert found.fresh_s is not None
        return found.fresh_s


async def test_a_report_ages_with_a_round_that_does_not_end_and_not_while_it_rests() -> None:
    feed = Hanging()
    try:
        await eventually(lambda: feed.rests == 1)
        rested = feed.fresh_s()
        time.sleep(0.01)  # the clock has to go on
        assert feed.fresh_s() > rested
        feed.may_go_on.release()
        await eventually(lambda: feed.rounds == 2)
        hung = feed.fresh_s()
        assert hung < rested, "it is as old as the round that it tells of"
        time.sleep(0.01)  # the clock has to go on
        assert feed.fresh_s() == hung
    finally:
        feed.stopped.set()
        feed.may_read.release()
        feed.may_go_on.release()
        feed.stop()
    assert feed.failure() is None


async def test_a_limited_feed_rests_behind_a_round_and_is_not_known_to_be_at_its_end() -> None:
    limited = replace(FEED, rows_per_s=0.001)
    feed = Hanging(limited, rows=10)
    await eventually(lambda: feed.progress() is not None)
    found = feed.fresh_s()
    time.sleep(0.01)  # the clock has to go on
    assert (feed.fresh_s(), feed.rounds, feed.rests) == (found, 1, 0), "it rests for 10,000 s"
    feed.may_go_on.release()
    feed.stop()
    assert feed.rests == 1, "a stop ends the rest"


async def test_a_limited_feed_that_read_nothing_goes_on() -> None:
    feed = Hanging(replace(FEED, rows_per_s=0.001))
    try:
        await eventually(lambda: feed.rests == 1)
    finally:
        feed.may_go_on.release()
        feed.stop()
