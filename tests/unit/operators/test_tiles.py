"""The shape of tiles: the nodes that a write touches and that a read opens."""

import random

import msgspec
import polars as pl
import pytest

from fennel_core.aggregates import multiset
from fennel_core.hangar.memory import MemoryHangar
from fennel_core.hangar.store import WriteBatch
from fennel_core.operators.aggregate import tile_codec, tile_reader, tile_writer
from fennel_core.operators.aggregate.read_time import ReadTimeAggregateStep
from fennel_core.operators.aggregate.tile_reader import TileReader
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab.dtypes import Field, Float, Int, List, Str
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from tests.support.histories import Change, as_frame

SECOND = 1_000_000
HOUR = 3600 * SECOND
INPUT = Schema((), (Field("k", Str()), Field("v", Float())), "t")
SPECS = (
    wire.Count("n", wire.Forever(), None, False, False, False),
    wire.Sum("s", wire.Sliding(HOUR), "v"),
    wire.LastK("l", wire.Forever(), "v", 3, False, False),
)
OUTPUT = Schema(
    (Field("k", Str()),), (Field("n", Int()), Field("s", Float()), Field("l", List(Float()))), "t"
)
KEY = key_bytes(pl.DataFrame({"k": ["a"]}), ["k"])


class CountedReads(MemoryHangar):
    """Counts the nodes that are read."""

    found = 0

    def get_many(self, keys):
        values = super().get_many(keys)
        self.found += sum(value is not None for value in values)
        return values


def _rows(times, sign=1):
    return [
        Change(
            0,
            sign,
            {
                "k": "a",
                "v": float(n % 10),
                "t": t,
                "__pos": b"\x01" + n.to_bytes(13, "big"),
                "__tombstone": False,
            },
        )
        for n, t in enumerate(times)
    ]


def _filled(changes, batch_rows):
    step, state = (
        ReadTimeAggregateStep(AggregateSpec(INPUT, ("k",), SPECS, None, True, OUTPUT)),
        CountedReads(),
    )
    for start in range(0, len(changes), batch_rows):
        outcome = step.apply(state, 0, as_frame(INPUT, changes[start : start + batch_rows]))
        state.write(WriteBatch(outcome.puts, outcome.deletes))
    return step, state


def _row(step, state, as_of):
    (answer,) = step.lookup(state, KEY, [as_of])
    return answer and msgspec.msgpack.decode(answer)


def test_a_key_with_few_events_is_one_state_entry():
    _, state = _filled(_rows(range(0, tile_writer.BUFFER_RECORDS * HOUR, HOUR)), 7)
    assert len(state.scan(b"", b"\xff")) == 1


def test_a_read_opens_a_path_and_not_the_window():
    step, state = _filled(_rows(range(0, 20_000 * SECOND, SECOND)), 500)
    assert len(state.scan(b"", b"\xff")) > 100
    state.found = 0
    n, s = _row(step, state, 15_000 * SECOND)[1:3]
    assert (n, s) == (15_001, float(sum(t % 10 for t in range(15_000 - 3600, 15_001))))
    assert state.found <= 2 * (len(tile_codec.SHIFTS) + 1)


@pytest.mark.parametrize("taken_back", [0, 100, 299])
def test_any_number_of_events_may_share_one_timestamp(taken_back, monkeypatch):
    monkeypatch.setattr(tile_writer, "BUFFER_RECORDS", 4)
    monkeypatch.setattr(tile_writer, "BLOCK_RECORDS", 6)
    rows = _rows([5 * SECOND] * 300)
    step, state = _filled(rows + _rows([5 * SECOND] * taken_back, sign=-1), 11)
    left = [change.row["v"] for change in rows[taken_back:]]
    assert (
        max(int.from_bytes(value[:4], "big") for _, value in state.scan(b"", b"\xff")) <= 6 + 11
    ), "no buffer holds them all"
    for as_of in (5 * SECOND, HOUR):
        assert _row(step, state, as_of) == [5 * SECOND, len(left), sum(left), left[::-1][:3]]
    assert _row(step, state, 5 * SECOND - 1) is None
    assert _row(step, state, 2 * HOUR)[2] == 0.0


def test_late_events_are_counted_at_their_time():
    times = [n * 60 * SECOND for n in range(3000)]
    shuffled = times[:]
    random.Random(1).shuffle(shuffled)  # noqa: S311  # repeatable, and no secret
    step, state = _filled(_rows(shuffled), 100)
    for as_of in (times[10], times[1500] + 1, times[-1]):
        assert _row(step, state, as_of)[1] == sum(t <= as_of for t in times)


BATCH_ROWS = 200
DISTINCT_OUTPUT = Schema((Field("k", Str()),), (Field("d", List(Float())),), "t")


@pytest.mark.parametrize("window", [wire.Forever(), wire.Sliding(1_500 * SECOND)])
def test_a_lookup_of_a_key_with_many_distinct_values_is_done_in_pieces(monkeypatch, window):
    """Whatever the size of the key, others run in between: leases, writes and other reads."""
    monkeypatch.setattr(tile_reader, "NODES_AT_ONCE", 2)
    monkeypatch.setattr(tile_reader, "RECORDS_AT_ONCE", 100)
    monkeypatch.setattr(tile_writer, "BUFFER_RECORDS", 50)
    read, added = [], []
    step, state = _distinct_values(2_000, window)
    get_many, use = state.get_many, TileReader._use_buffers
    monkeypatch.setattr(state, "get_many", lambda keys: read.append(len(keys)) or get_many(keys))

    def counted(reader, buffers, *others):
        added.append(sum(buffer.node.count for buffer in buffers))
        use(reader, buffers, *others)

    monkeypatch.setattr(TileReader, "_use_buffers", counted)
    work, pieces = step.lookup_gradually(state, KEY, [2_000 * SECOND]), 1
    while True:
        reads_before, adds_before = len(read), len(added)
        try:
            next(work)
        except StopIteration as end:
            (row,) = end.value
            break
        pieces += 1
        assert len(read) - reads_before <= len(tile_codec.SHIFTS) + 2, "one per level"
        assert len(added) - adds_before <= 1
    assert pieces > 5
    assert max(read) <= 2
    assert max(added) <= 50 + BATCH_ROWS
    first = 0 if window == wire.Forever() else 500
    assert msgspec.msgpack.decode(row)[1] == [float(number) for number in range(first, 2_000)]


def test_a_last_event_that_was_retracted_does_not_count_however_the_read_is_divided(monkeypatch):
    """An event and its retraction may be added up in different pieces of a read."""
    monkeypatch.setattr(tile_writer, "BUFFER_RECORDS", 2)
    monkeypatch.setattr(tile_writer, "BLOCK_RECORDS", 1)
    monkeypatch.setattr(tile_reader, "RECORDS_AT_ONCE", 1)
    monkeypatch.setattr(tile_reader, "MAX_SMALL_EVENTS", 0)
    changes = [(5, 1), (5, -1), (1, 1), (5, 1), (1, -1), (1, 1), (5, -1)]
    rows = [row for second, sign in changes for row in _rows([second * SECOND], sign)]
    step, state = _filled(rows, 1)
    assert _row(step, state, 5 * SECOND)[:2] == [SECOND, 1]


def _distinct_values(count, window):
    spec = wire.Distinct("d", window, "v", False)
    step = ReadTimeAggregateStep(AggregateSpec(INPUT, ("k",), (spec,), None, True, DISTINCT_OUTPUT))
    state = MemoryHangar()
    changes = _rows(range(0, count * SECOND, SECOND))
    for number, change in enumerate(changes):
        change.row["v"] = float(number)
    for start in range(0, len(changes), BATCH_ROWS):
        outcome = step.apply(state, 0, as_frame(INPUT, changes[start : start + BATCH_ROWS]))
        state.write(WriteBatch(outcome.puts, outcome.deletes))
    return step, state


def test_a_read_of_many_distinct_values_never_copies_what_it_has_collected(monkeypatch):
    """It would take quadratic time: 11 s for 300,000 values, longer than a lease."""
    step, state = _distinct_values(2_000, wire.Forever())
    union = multiset.union

    def of_few(collected, *more):
        assert len(collected) <= multiset.MAX_PACKED, "the values collected so far are copied"
        return union(collected, *more)

    monkeypatch.setattr(multiset, "union", of_few)
    _, values = _row(step, state, 2_000 * SECOND)
    assert values == [float(number) for number in range(2_000)]
