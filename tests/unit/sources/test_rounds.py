"""What a feed that is read in rounds says about itself while a round goes on."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException

from fennel_core.settings.model import Settings
from fennel_core.sources import rounds
from fennel_core.sources.errors import RowsNotWritten, SourceError
from fennel_core.sources.feeds import Feed, FeedProgress, feeds_of
from fennel_core.sources.rounds import RoundFailed, Rounds, _turns, or_reason
from tests.support.ingest_world import catalog
from tests.support.polling import eventually
from tests.support.source_world import stream_source

(FEED,) = feeds_of([catalog(stream_source())]).values()


@pytest.fixture(autouse=True)
def plain_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's threads want a context where another test of the process has had one."""
    monkeypatch.setattr(rounds, "InheritableThread", threading.Thread)


class Hanging(Rounds):
    """Rounds of which each hangs until a test lets it end, as does the rest after it."""

    def __init__(self, feed: Feed = FEED, rows: int = 0, raised: Exception | None = None) -> None:
        self._rows, self.raised = rows, raised
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
        if self.raised is not None:
            raise self.raised
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


SLOW = replace(FEED, rows_per_s=0.01)


@pytest.mark.parametrize(
    ("feed", "raised", "owed_s"),
    [
        (SLOW, RoundFailed("a file cannot be read", 7), 700),
        (SLOW, RoundFailed("the bucket cannot be reached", 0), 0),
        (SLOW, PySparkException("the worker was killed"), 100),
        (SLOW, SourceError("the place is not known"), 0),
        (FEED, PySparkException("the worker was killed"), 0),
    ],
    ids=["rows", "no rows", "a step", "not by a round", "no limit"],
)
async def test_a_round_that_fails_owes_the_rest_for_what_it_has_read(
    feed: Feed, raised: Exception, owed_s: float
) -> None:
    failing = Hanging(feed, raised=raised)
    await eventually(lambda: failing.failure() is not None)
    assert failing.failure() == str(raised)
    assert owed_s * 0.9 <= failing.owed_s() <= owed_s
    failing.stop()


def fail() -> int:
    raise RowsNotWritten("the broker refused")


def test_a_limited_round_returns_why_it_failed() -> None:
    assert or_reason(lambda: 3, None) == or_reason(lambda: 3, 1.0) == 3
    assert or_reason(fail, 1.0) == "the broker refused"
    with pytest.raises(RowsNotWritten):
        or_reason(fail, None)


async def test_the_wait_for_a_turn_is_no_part_of_what_a_limited_feed_rests_for() -> None:
    turns = _turns(Settings().source_workers)
    with ExitStack() as taken:
        while turns._free:
            taken.enter_context(turns.turn(lambda: False))
        feed = Hanging(replace(FEED, rows_per_s=0.5), rows=1)
        rests: list[float | None] = []
        feed.stopped.wait = lambda s=None: bool(rests.append(s))  # type: ignore[method-assign]  # no rest
        time.sleep(0.2)  # the clock has to go on
        assert not feed.rounds
        given_s = time.monotonic()
    await eventually(lambda: bool(rests))
    assert rests[0] is not None
    assert 2 - (time.monotonic() - given_s) <= rests[0] <= 2
    feed.stopped.set()
    feed.may_read.release()
    feed.may_go_on.release(2)
    feed.stop()


async def test_a_limited_feed_that_read_nothing_goes_on() -> None:
    feed = Hanging(replace(FEED, rows_per_s=0.001))
    try:
        await eventually(lambda: feed.rests == 1)
    finally:
        feed.may_go_on.release()
        feed.stop()
