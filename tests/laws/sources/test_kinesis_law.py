"""Every record of a Kinesis stream enters once, in the order of its key, whatever happens.

Records are put alone and aggregated, shards are split and merged, readers stop anywhere, have
limits, run at the same time, lose responses, are throttled and begin again at the positions. The
oracle is what was put: a record of a key enters behind all earlier ones of that key.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import defaultdict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fennel_core.connections.errors import TransactionAborted
from fennel_core.sources import shard_reader
from fennel_core.sources.errors import ReaderSuperseded, RowsNotWritten
from fennel_core.sources.kinesis import stream_start
from fennel_core.sources.read_rows import StreamPlace
from fennel_core.sources.shard_reader import StreamReader, StreamReads
from fennel_core.wire.connectors import FromTrimHorizon
from tests.support.ingest_world import catalog
from tests.support.kinesis_streams import EXPIRED, THROTTLED, MemoryKinesis, aggregated, hash_of
from tests.support.source_world import (
    LOST_AFTER,
    LOST_BEFORE,
    ORIGIN,
    Fault,
    SourceWorld,
    message,
    stream_source,
)
from tests.support.stream_positions import positions_of

KEYS = "abc"
REFUSED = Fault(TransactionAborted("the broker refused"), committed=False)


class Killed(Exception):
    """The process of a reader ends at a transaction."""


KILLED = [Fault(Killed(), committed=committed) for committed in (False, True)]
outcomes = st.sampled_from([None, None, None, LOST_AFTER, LOST_BEFORE, REFUSED, *KILLED])
answers = st.sampled_from([None, None, None, None, THROTTLED, EXPIRED])
steps = st.lists(
    st.one_of(
        *[st.tuples(st.just("put"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=6))] * 2,
        st.tuples(st.just("pack"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=6)),
        st.tuples(st.just("split"), st.integers(0, 9)),
        st.tuples(st.just("merge"), st.tuples(st.integers(0, 9), st.integers(0, 9))),
        st.tuples(
            st.just("read"),
            st.lists(st.integers(0, 2), min_size=1, max_size=3),
            st.sampled_from([1, 2, math.inf]),
        ),
        st.tuples(st.just("kill"), st.integers(0, 2)),
        st.tuples(st.just("wait"), st.integers(1, 1_000_000)),
    ),
    min_size=3,
    max_size=14,
)


class Shop:
    """Puts numbered rows; `put[key]` are those of each key, in order."""

    def __init__(self, limit: int) -> None:
        self.stream = MemoryKinesis(limit=limit)
        self.put: dict[str, list[int]] = defaultdict(list)
        self.rows = 0

    def row(self, key: str) -> bytes:
        number, self.rows = self.rows, self.rows + 1
        self.put[key].append(number)
        return message(user=key, age=number, at=1_700_000_000)

    def do(self, what: str, given_: object) -> None:
        stream, open_ = self.stream, self.stream.open()
        match what, given_:
            case "put", list(keys):
                for key in keys:
                    stream.put(self.row(key), key)
            case "pack", list(keys):
                self.pack(keys)
            case "split", int(number):
                stream.split(open_[number % len(open_)])
            case "merge", (int(one), int(other)):
                pair = open_[one % len(open_)], open_[other % len(open_)]
                if pair[0] != pair[1]:
                    stream.merge(*pair)
            case "wait", int(us):
                stream.now_us += us

    def pack(self, keys: list[str]) -> None:
        """Aggregate as the producer library does: what is of another shard is put again alone."""
        rows = [(key, self.row(key)) for key in keys]
        self.stream.put(aggregated(rows), keys[0])
        mine = self._shard(keys[0])
        for key, row in rows:
            if self._shard(key) != mine:
                self.stream.put(row, key)

    def _shard(self, key: str) -> int:
        at = hash_of(key)
        return next(
            number
            for number in self.stream.open()
            if self.stream.stores[number].shard.first_hash
            <= at
            <= self.stream.stores[number].shard.last_hash
        )


def reader_of(sources: SourceWorld, stream: MemoryKinesis) -> StreamReader:
    positions = positions_of(sources)
    writers = {}

    def writer(number: int):
        if number not in writers:
            writers[number] = sources.writer(number)
        return writers[number]

    async def no_pause(_: float) -> None:
        await asyncio.sleep(0)

    reads = StreamReads(
        "Kinesis stream `orders`",
        ORIGIN,
        stream_start(positions, FromTrimHorizon(), stream.describe()),
        writer,
        lambda _: ORIGIN,
    )
    places = {n: StreamPlace(each.next, each.cursor) for n, each in positions.items()}
    clock = itertools.count().__next__
    return StreamReader(stream, reads, places, clock=clock, sleep=no_pause)


async def run(todo, limit, turns, faults, requests) -> tuple[SourceWorld, Shop]:
    sources = SourceWorld(turns=lambda: turns.pop() if turns else 0)
    sources.fault = lambda: faults.pop() if faults else None
    sources.world.commit(main=catalog(stream_source()))
    shop = Shop(limit)
    shop.stream.fault = lambda: requests.pop() if requests else None
    alive: dict[int, StreamReader] = {}

    async def read(number: int, seconds: float, rows: float = math.inf) -> None:
        if number not in alive:
            alive[number] = reader_of(sources, shop.stream)
        try:
            await alive[number].round(seconds, rows)
        except (ReaderSuperseded, RowsNotWritten, Killed):
            del alive[number]

    for what, given_, *rows in todo:
        if what == "read":
            await asyncio.gather(*(read(number, number * 3, *rows) for number in set(given_)))
        elif what == "kill":
            alive.pop(given_, None)
        else:
            shop.do(what, given_)
    faults.clear()
    requests.clear()
    alive.clear()
    for _ in range(2):
        await read(9, 1e9)
    await sources.world.close()
    return sources, shop


def check(todo, limit, cut, turns, faults, requests) -> None:
    before = shard_reader.TRANSACTION_ROWS
    shard_reader.TRANSACTION_ROWS = cut  # so that transactions end inside of aggregated records
    try:
        sources, shop = asyncio.run(run(todo, limit, turns, faults, requests))
    finally:
        shard_reader.TRANSACTION_ROWS = before
    read: dict[str, list[int]] = defaultdict(list)
    # Rows of a key have one partition, where they are in the order in which they were written.
    for row in sources.world.rows("w.topic.users.1"):
        read[row["user"]].append(row["age"])
    assert read == shop.put
    assert sorted(row["age"] for row in sources.read()) == list(range(shop.rows))
    assert sources.world.rows("w.dead.1") == []


history = (
    steps,
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(outcomes, max_size=12),
    st.lists(answers, max_size=12),
)


@settings(deadline=None, max_examples=25)
@given(*history)
@example([("pack", ["a", "b", "c"]), ("read", [0])], 4, 1, [], [KILLED[1], None, None], [])
@example([("put", ["a"] * 5), ("split", 0), ("put", ["a"])], 1, 3, [], [], [])
def test_every_record_enters_once_in_the_order_of_its_key(
    todo, limit, cut, turns, faults, requests
) -> None:
    check(todo, limit, cut, turns, faults, requests)


@pytest.mark.long
@settings(deadline=None, max_examples=2_000)
@given(*history)
def test_every_record_of_many_histories_enters_once(
    todo, limit, cut, turns, faults, requests
) -> None:
    check(todo, limit, cut, turns, faults, requests)
