"""Laws: a lookup as of any time equals the oracle over the rows that were not retracted, whatever
the order, split, lateness and retractions.
"""

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.operators.aggregate import tile_reader, tile_writer
from fennel_core.operators.aggregate.read_time import ReadTimeAggregateStep
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab.dtypes import Decimal, Field, Float, Int, List, Optional, Str
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from tests.laws.operators.aggregate import oracle
from tests.support.histories import Change, History, histories, run

SECOND = 1_000_000
DAY = 86_400 * SECOND
INPUT = Schema(
    (),
    tuple(
        Field(n, t)
        for n, t in (("k", Str()), ("i", Int()), ("f", Optional(Float())), ("s", Optional(Str())))
    ),
    "t",
)
TIMES = st.one_of(
    st.integers(0, 8).map(lambda s: s * SECOND),
    st.integers(-40 * SECOND, 40 * SECOND),
    st.integers(-3, 300).map(lambda d: d * DAY),
)
FLOATS = st.sampled_from([0.1, 0.2, -0.3, 1e16, -1e16, 1e-300, 3.5, 1e300]) | st.floats(
    allow_nan=False, allow_infinity=False
)
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from("ab"),
        "t": TIMES,
        "i": st.integers(-3, 3) | st.integers(-(2**62), 2**62),
        "f": st.none() | FLOATS,
    }
    | {"s": st.none() | st.sampled_from("xyz")}
)
WINDOWS = {"ever": None, "ten": 10 * SECOND, "day": DAY, "now": 0}


def _window(span):
    return wire.Forever() if span is None else wire.Sliding(span)


def _step(make):
    """A step with one spec per window: `make(name, window) -> (spec, output type)`."""
    made = [make(name, _window(span)) for name, span in WINDOWS.items()]
    fields = tuple(Field(spec.name, dtype) for spec, dtype in made)
    output = Schema((Field("k", Str()),), fields, "t")
    return ReadTimeAggregateStep(
        AggregateSpec(INPUT, ("k",), tuple(spec for spec, _ in made), None, True, output)
    )


def _check(history, make, expect):
    """Check lookups as of every time near an event or an expiry: presence, timestamp and values."""
    step = _step(make)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_writer, "BUFFER_RECORDS", 2)
        patch.setattr(tile_writer, "BLOCK_RECORDS", 1)
        state, _ = run(step, history, INPUT)
    rows = history.left_over()
    times = {
        r["t"] + span + d
        for r in rows
        for span in (0, SECOND, 11 * SECOND, DAY + SECOND)
        for d in (-1, 0)
    }
    asked = [(k, q) for q in sorted({*times, -(10**15), 10**16}) for k in "abc"]
    found = step.lookup(
        state, key_bytes(pl.DataFrame({"k": [k for k, _ in asked]}), ["k"]), [q for _, q in asked]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_reader, "MAX_SMALL_EVENTS", 0)
        patch.setattr(tile_reader, "NODES_AT_ONCE", 2)
        patch.setattr(tile_reader, "RECORDS_AT_ONCE", 3)
        arrays = step.lookup(
            state,
            key_bytes(pl.DataFrame({"k": [k for k, _ in asked]}), ["k"]),
            [q for _, q in asked],
        )
    assert arrays == found, "events read as arrays and as lists give the same bytes"
    for (key, as_of), answer in zip(asked, found, strict=True):
        changed = oracle.last_change(
            rows, key, as_of, [w for w in WINDOWS.values() if w is not None]
        )
        if changed is None:
            assert answer is None
            continue
        inside = [oracle.in_window(rows, key, as_of, span) for span in WINDOWS.values()]
        assert msgspec.msgpack.decode(answer) == [
            changed,
            *(expect(window, as_of) for window in inside),
        ]


def _some(rows, column):
    return [r[column] for r in rows if r[column] is not None]


def _wrapped(total):
    return (total + 2**63) % 2**64 - 2**63


@given(histories(ROW, max_rows=9))
def test_counts_of_rows_and_of_values_equal_the_oracle(history):
    _check(
        history,
        lambda n, w: (wire.Count(n, w, None, False, False, False), Int()),
        lambda rows, q: len(rows),
    )
    _check(
        history,
        lambda n, w: (wire.Count(n, w, "f", False, False, True), Int()),
        lambda rows, q: len(_some(rows, "f")),
    )


@given(histories(ROW, max_rows=9))
def test_sums_are_exact(history):
    _check(
        history,
        lambda n, w: (wire.Sum(n, w, "i"), Int()),
        lambda rows, q: _wrapped(sum(r["i"] for r in rows)),
    )
    _check(
        history,
        lambda n, w: (wire.Sum(n, w, "f"), Float()),
        lambda rows, q: oracle.total(_some(rows, "f")),
    )


@given(histories(ROW, max_rows=9))
def test_averages_and_deviations_are_rounded_once(history):
    _check(
        history,
        lambda n, w: (wire.Average(n, w, "i", -9.5), Float()),
        lambda rows, q: oracle.average(_some(rows, "i"), -9.5),
    )
    _check(
        history,
        lambda n, w: (wire.Stddev(n, w, "i", None), Optional(Float())),
        lambda rows, q: oracle.stddev(_some(rows, "i"), None),
    )


@given(histories(ROW, max_rows=9))
def test_extremes_survive_retractions(history):
    _check(
        history,
        lambda n, w: (wire.Min(n, w, "i", 7.0), Int()),
        lambda rows, q: min(_some(rows, "i"), default=7),
    )
    _check(
        history,
        lambda n, w: (wire.Max(n, w, "f", None), Optional(Float())),
        lambda rows, q: max(_some(rows, "f"), default=None),
    )


@given(histories(ROW, max_rows=9), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_quantiles_and_distinct_values_equal_the_oracle(history, p):
    _check(
        history,
        lambda n, w: (wire.Quantile(n, w, "i", p, -1.0, True), Float()),
        lambda rows, q: oracle.quantile(_some(rows, "i"), p, -1.0),
    )
    _check(
        history,
        lambda n, w: (wire.Distinct(n, w, "s", True), List(Str())),
        lambda rows, q: sorted(set(_some(rows, "s"))),
    )
    _check(
        history,
        lambda n, w: (wire.Count(n, w, "s", True, True, False), Int()),
        lambda rows, q: len({r["s"] for r in rows}),
    )


@given(histories(ROW, max_rows=9), st.integers(1, 4), st.booleans())
def test_first_k_and_last_k_keep_the_order_of_time_and_position(history, limit, dedup):
    _check(
        history,
        lambda n, w: (wire.LastK(n, w, "s", limit, dedup, False), List(Optional(Str()))),
        lambda rows, q: oracle.first_k([r["s"] for r in rows[::-1]], limit, dedup),
    )
    _check(
        history,
        lambda n, w: (wire.FirstK(n, w, "i", limit, dedup, True), List(Int())),
        lambda rows, q: oracle.first_k([r["i"] for r in rows], limit, dedup),
    )


@given(
    histories(
        ROW.map(lambda row: {**row, "f": row["f"] and max(-1e9, min(1e9, row["f"]))}), max_rows=9
    ),
    st.sampled_from([1, 60, 86_400]),
)
def test_decayed_sums_are_close_to_the_formula_and_independent_of_arrival(history, half_life_s):
    half_life = half_life_s * SECOND

    def expect(rows, as_of):
        return pytest.approx(oracle.decayed(rows, "f", as_of, half_life), rel=1e-9, abs=1e-6)

    _check(history, lambda n, w: (wire.ExpDecay(n, w, "f", half_life), Float()), expect)


MONEY = Schema((), (Field("k", Str()), Field("d", Optional(Decimal(2)))), "t")
MONEY_ROW = st.fixed_dictionaries(
    {"k": st.just("a"), "t": TIMES, "d": st.none() | st.decimals(-(10**25), 10**25, places=2)}
)


@given(histories(MONEY_ROW, max_rows=9))
def test_decimals_are_summed_and_compared_exactly(history):
    specs = (
        wire.Sum("sum", wire.Forever(), "d"),
        wire.Min("low", wire.Forever(), "d", 1.5),
        wire.Average("mean", wire.Forever(), "d", 0.0),
    )
    fields = (Field("sum", Decimal(2)), Field("low", Decimal(2)), Field("mean", Float()))
    step = ReadTimeAggregateStep(
        AggregateSpec(MONEY, ("k",), specs, None, True, Schema((Field("k", Str()),), fields, "t"))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_writer, "BUFFER_RECORDS", 2)
        patch.setattr(tile_writer, "BLOCK_RECORDS", 1)
        state, _ = run(step, history, MONEY)
    rows = history.left_over()
    (answer,) = step.lookup(state, key_bytes(pl.DataFrame({"k": ["a"]}), ["k"]), [10**16])
    if not rows:
        assert answer is None
        return
    values = _some(rows, "d")
    _, total, low, mean = msgspec.msgpack.decode(answer)
    assert total == (format(sum(values), ".2f") if values else "0.00")
    assert low == (format(min(values), ".2f") if values else "1.50")
    assert mean == oracle.average(values, 0.0)


@given(histories(ROW, max_rows=20))
def test_results_are_the_same_bytes_in_any_order_of_arrival(history):
    specs = (
        wire.Sum("a", wire.Sliding(10 * SECOND), "f"),
        wire.ExpDecay("b", wire.Forever(), "f", 60 * SECOND),
        wire.Stddev("c", wire.Sliding(DAY), "f", None),
        wire.LastK("d", wire.Forever(), "s", 2, True, False),
    )
    types = (Float(), Float(), Optional(Float()), List(Optional(Str())))
    fields = tuple(Field(spec.name, dtype) for spec, dtype in zip(specs, types, strict=True))
    step = ReadTimeAggregateStep(
        AggregateSpec(INPUT, ("k",), specs, None, True, Schema((Field("k", Str()),), fields, "t"))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_writer, "BUFFER_RECORDS", 2)
        patch.setattr(tile_writer, "BLOCK_RECORDS", 1)
        state, _ = run(step, history, INPUT)
    plain, _ = run(step, History([[Change(0, 1, row)] for row in history.left_over()][::-1]), INPUT)
    times = sorted({r["t"] + d for r in history.left_over() for d in (0, SECOND, DAY)})
    keys = key_bytes(pl.DataFrame({"k": ["a", "b"] * len(times)}), ["k"])
    at = [q for q in times for _ in "ab"]
    assert step.lookup(state, keys, at) == step.lookup(plain, keys, at)
    pages = [
        [row for page in step.row_pages(each, 10**16, 1000) for row in page]
        for each in (state, plain)
    ]
    assert pages[0] == pages[1]
