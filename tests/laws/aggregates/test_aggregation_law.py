"""Laws of the six verbs: partials are a commutative group over signed events, whichever way they
were made and stored.
"""

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.aggregates.aggregation import INCOMPLETE, Events
from fennel_core.aggregates.factory import make_aggregator
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


def _records(aggregation, bags, signs):
    names = sorted(set(aggregation.prepare()) - {POSITION})
    layout = RecordLayout(
        tuple((n, column_kind(SCHEMA.field(n).dtype)) for n in names),
        ordered=POSITION in aggregation.prepare(),
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


def _partials(aggregation, bags, signs=None):
    records = _records(aggregation, bags, signs or [1] * len(bags))
    return aggregation.update(Events.of(records, np.cumsum([0, *map(len, bags)])[:-1]))


def _value(aggregation, partial):
    found = aggregation.exhaustive().finalize(partial, 10**12)
    return found if found is INCOMPLETE else msgspec.msgpack.encode(found)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{type(spec).__name__}-{spec.of}")
@given(bags=BAGS)
def test_merging_in_any_order_equals_one_update_over_everything(spec, bags):
    aggregation = make_aggregator(spec, SCHEMA).exhaustive()
    (whole,) = _partials(aggregation, [[event for bag in bags for event in bag]])
    forward, backward = aggregation.empty, aggregation.empty
    # The positions of one long bag differ from those of several: compare sums of parts with each
    # other and with the whole's value.
    for partial in _partials(aggregation, bags):
        forward = aggregation.merge(forward, partial)
    for partial in _partials(aggregation, bags)[::-1]:
        backward = aggregation.merge(backward, partial)
    assert _value(aggregation, forward) == _value(aggregation, backward)
    if POSITION not in aggregation.prepare():
        assert _value(aggregation, whole) == _value(aggregation, forward)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{type(spec).__name__}-{spec.of}")
@given(bags=BAGS)
def test_what_is_deleted_leaves_no_trace(spec, bags):
    aggregation = make_aggregator(spec, SCHEMA).exhaustive()
    first, second, *_ = _partials(aggregation, bags)
    assert _value(
        aggregation, aggregation.delete(aggregation.merge(first, second), second)
    ) == _value(aggregation, first)
    taken = _partials(aggregation, bags, [-1] * len(bags))[1]
    assert _value(
        aggregation, aggregation.merge(aggregation.merge(second, first), taken)
    ) == _value(aggregation, first)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{type(spec).__name__}-{spec.of}")
@given(bags=BAGS)
def test_a_partial_survives_its_packing_and_few_events_give_the_same_one(spec, bags):
    aggregation = make_aggregator(spec, SCHEMA)
    partials = _partials(aggregation, bags)
    packed = [aggregation.pack(partial) for partial in partials]
    stored = msgspec.msgpack.encode(packed)
    again = [
        data if data is None else aggregation.pack(aggregation.unpack(data))
        for data in msgspec.msgpack.decode(stored)
    ]
    assert msgspec.msgpack.encode(again) == stored
    records = _records(aggregation, bags[:1], [1])
    ((structs, heap),) = records.slices([0], [len(records)])
    (few,) = aggregation.update(parse_small(records.layout, [(structs, heap)]))
    assert _value(aggregation, few) == _value(aggregation, partials[0])
    loaded = load_records(records.layout, [(structs, heap)])
    (reloaded,) = aggregation.update(Events.of(loaded, np.array([0])))
    assert _value(aggregation, reloaded) == _value(aggregation, partials[0])


def test_a_head_that_has_run_dry_says_so_instead_of_guessing():
    aggregation = make_aggregator(wire.Max("x", EVER, "i", None), SCHEMA)
    many = [{"i": n, "f": None, "d": None, "s": None, "t": 0} for n in range(20)]
    whole, best = _partials(aggregation, [many, many[12:]])
    assert aggregation.finalize(whole, 0) == 19
    assert not aggregation.is_deletable
    assert aggregation.finalize(aggregation.delete(whole, best), 0) is INCOMPLETE
    (everything, best) = _partials(aggregation.exhaustive(), [many, many[12:]])
    assert aggregation.finalize(aggregation.exhaustive().delete(everything, best), 0) == 11
