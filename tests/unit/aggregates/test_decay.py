"""Decayed sums at the edges of their range."""

import numpy as np
import polars as pl

from fennel_core.aggregates.aggregation import Events
from fennel_core.aggregates.factory import make_aggregator
from fennel_core.aggregates.records import RecordLayout, column_kind, records_of_frame
from fennel_core.vocab.dtypes import Field, Float
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire

DAY = 86_400_000_000
SCHEMA = Schema((), (Field("v", Float()),), "t")
DAILY = make_aggregator(wire.ExpDecay("x", wire.Forever(), "v", DAY), SCHEMA)


def _partial(values, times):
    frame = pl.DataFrame({"v": values, "t": times}, schema={"v": pl.Float64, "t": pl.Int64})
    sign = pl.Series([1] * len(values), dtype=pl.Int8)
    records = records_of_frame(
        RecordLayout((("v", column_kind(Float())),), ordered=False),
        frame,
        frame["t"],
        sign,
        pl.Series([b""] * len(values)),
    )
    (partial,) = DAILY.update(Events.of(records, np.array([0])))
    return partial


def test_a_value_halves_every_half_life():
    partial = _partial([8.0], [0])
    assert [DAILY.finalize(partial, days * DAY) for days in (0, 1, 3)] == [8.0, 4.0, 1.0]


def test_the_sum_of_old_events_is_zero():
    assert DAILY.finalize(_partial([5.0, -3.0], [0, DAY]), 60 * DAY) == 0.0


def test_events_too_many_half_lives_apart_are_not_kept_in_one_partial():
    assert DAILY.pack(_partial([1.0, 1.0], [0, 9000 * DAY])) is None
    assert DAILY.pack(_partial([1.0, 1.0], [0, 8000 * DAY])) is not None
