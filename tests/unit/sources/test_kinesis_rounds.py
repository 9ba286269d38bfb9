"""What the driver does between the rounds of a Kinesis stream, and what it says about itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from fennel_core.connections.external_kinesis import (
    FromOldest,
    ShardRecords,
    StreamThrottled,
)
from fennel_core.settings.model import Settings
from fennel_core.sources.feeds import FeedProgress, feeds_of
from fennel_core.sources.kinesis import StreamRound, StreamRounds, round_end
from fennel_core.sources.read_rows import StreamPlace
from fennel_core.sources.rounds import RoundFailed
from fennel_core.sources.shard_reader import ShardEnd
from fennel_core.sources.shards import ShardCursor, StreamStart, encode_cursor
from tests.support.ingest_world import catalog
from tests.support.kinesis_streams import MemoryKinesis
from tests.support.source_world import ORIGIN, stream_source

(FEED,) = feeds_of([catalog(stream_source())]).values()
READ = StreamPlace(2, encode_cursor(ShardCursor(None, 1, 2, "7")))
DONE = StreamPlace(2, encode_cursor(ShardCursor(None, 1, 2, "7", done=True)))


class Stream(MemoryKinesis):
    """A stream of which some shards refuse to answer."""

    refused: frozenset[int] = frozenset()

    def records(self, iterator: str, limit: int) -> ShardRecords:
        if iterator in {self.iterator(number, FromOldest()) for number in self.refused}:
            raise StreamThrottled("too many requests")
        return super().records(iterator, limit)


class Rounds(StreamRounds):
    """Rounds without Spark: each returns the ends that a test gives; no thread runs them."""

    def __init__(self, store: MemoryKinesis) -> None:
        self.ends: list[ShardEnd] | str = []
        frame = SimpleNamespace(
            toArrow=lambda: pa.Table.from_batches([round_end([], self.ends, 7)])
        )
        spark = SimpleNamespace(
            range=lambda *_, **__: SimpleNamespace(mapInArrow=lambda *_: frame),
            sparkContext=SimpleNamespace(
                setJobGroup=lambda *_, **__: None,
                setLocalProperty=lambda *_: None,
                cancelJobGroup=lambda *_: None,
            ),
        )
        by = SimpleNamespace(spark=spark, settings=Settings(), feed=FEED, count_rows=lambda _: None)
        work = StreamRound(Settings(), FEED, ORIGIN, cast(Any, None), StreamStart(None, 1), {}, {})
        super().__init__(cast(Any, by), work, cast(Any, store))

    def _run(self) -> None:
        """The test calls what the thread would."""

    def after(self, *ends: ShardEnd) -> FeedProgress:
        self.ends = list(ends)
        self._progress = self.read()
        return self._progress


def end(shard: int, place: StreamPlace = READ, **rest: Any) -> ShardEnd:
    return ShardEnd(shard, place, **({"iterator": oldest(shard)} | rest))


def oldest(shard: int) -> str:
    return MemoryKinesis().iterator(shard, FromOldest())


def test_a_stream_is_at_its_end_when_each_shard_has_said_so() -> None:
    rounds = Rounds(Stream())
    assert rounds.after(end(0), end(1)).is_caught_up
    assert rounds.after(end(0), end(1, DONE, iterator=None)).is_caught_up


@pytest.mark.parametrize(
    "unread",
    [
        end(1, throttled=True),
        end(1, iterator=None, throttled=True),
        end(1, iterator=None),
        ShardEnd(1, StreamPlace()),
    ],
    ids=["throttled", "never asked", "no time", "not begun"],
)
def test_a_shard_that_was_not_read_is_no_end_and_is_read_at_once(unread: ShardEnd) -> None:
    rounds = Rounds(Stream())
    found = rounds.after(end(0), unread)
    assert not found.is_caught_up
    assert found.behind_ms is None
    rounds.found_nothing_after(5.0)
    said = rounds.progress()
    assert said is not None
    assert said.looked_s is None, "a bounded source must not end by such a round"
    rounds.stopped.wait = lambda _: False  # type: ignore[method-assign,assignment]  # no pause
    rounds.rest(0.0)  # returns: the next round is due
    assert rounds._unread == ({1} if unread.iterator is None else set())
    assert rounds.after(end(0), unread, end(2, behind_ms=7)).behind_ms == 7


def test_a_limited_round_that_failed_has_read_rows_all_the_same() -> None:
    rounds = Rounds(Stream())
    rounds.ends = "the broker refused"
    with pytest.raises(RoundFailed, match="the broker refused") as failed:
        rounds.read()
    assert failed.value.rows == 7


def test_a_shard_that_refuses_does_not_hide_what_another_has() -> None:
    stream = Stream()
    stream.split(0)
    rounds = Rounds(stream)
    rounds.after(end(0, DONE, iterator=None), end(1), end(2))
    stream.refused = frozenset([1])
    with pytest.raises(StreamThrottled):
        rounds._is_new()
    stream.put(b"{}", key="d")
    assert stream.stores[2].records, "the key is of the other shard"
    assert rounds._is_new()
