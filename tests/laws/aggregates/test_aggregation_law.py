"""Laws of aggregators: partials are a commutative group over signed events, however they were made
and stored.
"""

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.aggregates.aggregation import INCOMPLETE, Events
from fennel_core.aggregates.factory import make_aggregator
from fennel_core.aggregates.ranges import Ranges
from fennel_core.aggregates.records import (
    POSITION,
    RecordLayout,
    column_kind,
    load_records,
    records_of_frame,
)
from fennel_core.aggregates.small import parse_small
from fennel_core.vocab.dtypes import Decimal, Field, Float, Int, Optional, Str
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire

EVER = wire.Forever()
SCHEMA = Schema(
    (),
    tuple(
        Field(n, Optional(t))
        for n, t in (("i", Int()), ("f", Float()), ("d", Decimal(2)), ("s", Str()))
    ),
    "t",
)
TYPES = {
    "i": pl.Int64(),
    "f": pl.Float64(),
    "d": pl.Decimal(28, 2),
    "s": pl.String(),
    "t": pl.Int64(),
    "__pos": pl.Binary(),
}
SPECS = [
    wire.Count("x", EVER, "s", False, False, True),
    wire.Count("x", EVER, "s", True, True, False),
    wire.Sum("x", EVER, "i"),
    wire.Sum("x", EVER, "f"),
    wire.Sum("x", EVER, "d"),
    wire.Average("x", EVER, "f", 0.0),
    wire.Stddev("x", EVER, "f", -1.0),
    wire.Stddev("x", EVER, "d", -1.0),
    wire.Min("x", EVER, "f", 0.0),
    wire.Max("x", EVER, "d", 0.0),
    wire.Quantile("x", EVER, "i", 0.5, 0.0, True),
    wire.Distinct("x", EVER, "s", False),
    wire.LastK("x", EVER, "s", 3, True, False),
    wire.FirstK("x", EVER, "d", 3, False, True),
    wire.ExpDecay("x", EVER, "f", 3_600_000_000),
]
EVENT = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False),
        "d": st.none() | st.decimals(-(10**20), 10**20, places=2),
        "s": st.none() | st.sampled_from(["", "a", "b"]),
        "t": st.integers(-(10**12), 10**12),
    }
)
BAGS = st.lists(st.lists(EVENT, min_size=1, max_size=8), min_size=2, max_size=4)


def _records(aggregator, bags, signs):
    names = sorted(set(aggregator.prepare()) - {POSITION})
    layout = RecordLayout(
        tuple((n, column_kind(SCHEMA.field(n).dtype)) for n in names),
        ordered=POSITION in aggregator.prepare(),
    )
    rows = [
        {**event, "__pos": b"\x01" + bytes([b, e]) + bytes(11)}
        for b, bag in enumerate(bags)
        for e, event in enumerate(bag)
    ]
    frame = pl.DataFrame(rows, schema=TYPES)
    sign = pl.Series(
        [sign for bag, sign in zip(bags, signs, strict=True) for _ in bag], dtype=pl.Int8
    )
    return records_of_frame(layout, frame, frame["t"], sign, frame["__pos"])


def _partials(aggregator, bags, signs=None):
    records = _records(aggregator, bags, signs or [1] * len(bags))
    return aggregator.update(Events.of(records, np.cumsum([0, *map(len, bags)])[:-1]))


def _value(aggregator, partial):
    found = aggregator.exhaustive().finalize(partial, 10**12)
    return found if found is INCOMPLETE else msgspec.msgpack.encode(found)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{type(spec).__name__}-{spec.of}")
@given(bags=BAGS)
def test_merging_in_any_order_equals_one_update_over_everything(spec, bags):
    aggregator = make_aggregator(spec, SCHEMA).exhaustive()
    (whole,) = _partials(aggregator, [[event for bag in bags for event in bag]])
    forward, backward = aggregator.empty, aggregator.empty
    # The positions of one long bag differ from those of several: compare sums of parts with each
    # other and with the whole's value.
    for partial in _partials(aggregator, bags):
        forward = aggregator.merge(forward, partial)
    for partial in _partials(aggregator, bags)[::-1]:
        backward = aggregator.merge(backward, partial)
    assert _value(aggregator, forward) == _value(aggregator, backward)
    if POSITION not in aggregator.prepare():
        assert _value(aggregator, whole) == _value(aggregator, forward)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{type(spec).__name__}-{spec.of}")
@given(bags=BAGS)
def test_deleted_events_leave_no_trace(spec, bags):
    aggregator = make_aggregator(spec, SCHEMA).exhaustive()
    first, second, *_ = _partials(aggregator, bags)
    assert _value(aggregator, aggregator.delete(aggregator.merge(first, second), second)) == _value(
        aggregator, first
    )
    taken = _partials(aggregator, bags, [-1] * len(bags))[1]
    assert _value(aggregator, aggregator.merge(aggregator.merge(second, first), taken)) == _value(
        aggregator, first
    )


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{type(spec).__name__}-{spec.of}")
@given(bags=BAGS)
def test_packing_and_the_scalar_path_give_the_same_partial(spec, bags):
    aggregator = make_aggregator(spec, SCHEMA)
    partials = _partials(aggregator, bags)
    packed = [aggregator.pack(partial) for partial in partials]
    stored = msgspec.msgpack.encode(packed)
    again = [
        data if data is None else aggregator.pack(aggregator.unpack(data))
        for data in msgspec.msgpack.decode(stored)
    ]
    assert msgspec.msgpack.encode(again) == stored
    records = _records(aggregator, bags[:1], [1])
    ((structs, heap),) = records.slices([0], [len(records)])
    (small,) = aggregator.update(parse_small(records.layout, [(structs, heap)]))
    assert _value(aggregator, small) == _value(aggregator, partials[0])
    loaded = load_records(records.layout, [(structs, heap)])
    (reloaded,) = aggregator.update(Events.of(loaded, np.array([0])))
    assert _value(aggregator, reloaded) == _value(aggregator, partials[0])


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{type(spec).__name__}-{spec.of}")
@given(bag=st.lists(EVENT, max_size=12), data=st.data())
def test_the_value_over_a_range_is_that_of_its_events(spec, bag, data):
    aggregator = make_aggregator(spec, SCHEMA)
    bag = sorted(bag, key=lambda event: event["t"])
    numbers = st.integers(0, len(bag))
    bounds = data.draw(st.lists(st.tuples(numbers, numbers).map(sorted), min_size=1, max_size=8))
    if data.draw(st.booleans()):
        # As windows are: starts and stops only grow.
        starts, stops = map(sorted, zip(*bounds, strict=True))
        bounds = list(zip(starts, stops, strict=True))
    records = _records(aggregator, [bag], [1])
    starts, stops = np.array(bounds, dtype=np.int64).T
    ranges = Ranges(starts, stops, np.full(len(bounds), 10**12))

    found = aggregator.over(Events(records, np.zeros(min(len(bag), 1), np.int64)), ranges)

    for value, (start, stop) in zip(found, bounds, strict=True):
        partial = aggregator.empty
        if start < stop:
            inside = Events.of(records.take(np.arange(start, stop)), np.array([0]))
            (partial,) = aggregator.exhaustive().update(inside)
        assert msgspec.msgpack.encode(value) == _value(aggregator, partial)


def test_exhausted_top_elements_are_incomplete_instead_of_wrong():
    aggregator = make_aggregator(wire.Max("x", EVER, "i", None), SCHEMA)
    many = [{"i": n, "f": None, "d": None, "s": None, "t": 0} for n in range(20)]
    whole, best = _partials(aggregator, [many, many[12:]])
    assert aggregator.finalize(whole, 0) == 19
    assert not aggregator.is_deletable
    assert aggregator.finalize(aggregator.delete(whole, best), 0) is INCOMPLETE
    (everything, best) = _partials(aggregator.exhaustive(), [many, many[12:]])
    assert aggregator.finalize(aggregator.exhaustive().delete(everything, best), 0) == 11
