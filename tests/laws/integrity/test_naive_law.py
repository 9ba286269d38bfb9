"""The naive recompute equals what the steps return, for every aggregation and kind of input, and a
wrong answer differs.
"""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.integrity.key_sample import KeySample
from fennel_core.integrity.naive_rows import compare
from fennel_core.operators.build import as_lookup_step, build
from fennel_core.operators.spec import AggregateSpec, TableSpec, with_validity
from fennel_core.vocab.dtypes import (
    Decimal,
    Field,
    Float,
    Int,
    List,
    Optional,
    Str,
    Timestamp,
)
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from tests.support.histories import Change, History, as_frame, histories, run

SECOND = 1_000_000
VALUES = (
    *(Field("k", Str()), Field("i", Optional(Int())), Field("f", Optional(Float()))),
    *(Field("d", Optional(Decimal(2))), Field("s", Optional(Str())), Field("paid", Timestamp())),
)
EVENTS = Schema((), VALUES, "t")
KEYED = Schema((Field("id", Int()),), VALUES, "t")
TIMES = st.integers(0, 20).map(lambda half: half * SECOND // 2)
ROW = st.fixed_dictionaries(
    {
        "id": st.integers(0, 2),
        "k": st.sampled_from(["a", "b"]),
        "t": TIMES,
        "paid": TIMES,
        "i": st.none() | st.integers(-3, 3) | st.integers(-(2**62), 2**62),
        "f": st.none() | st.sampled_from([0.1, 0.2, -0.3, 1e16, -1e16, 0.0, -0.0]),
        "d": st.none() | st.decimals(-9, 9, places=2),
        "s": st.none() | st.sampled_from(["x", "yy", "z"]),
    }
)
TABLE = Schema((Field("k", Str()),), VALUES[1:], "t")


def _specs(window: wire.Window, prefix: str) -> list[tuple[wire.Spec, Any]]:
    """Return one specification of each aggregation, with the type of its result."""

    def name(text: str) -> str:
        return f"{prefix}{text}"

    return [
        (wire.Count(name("rows"), window, None, False, False, False), Int()),
        (wire.Count(name("values"), window, "i", False, False, True), Int()),
        (wire.Count(name("unique"), window, "s", True, True, False), Int()),
        (wire.Count(name("present"), window, "s", True, True, True), Int()),
        (wire.Sum(name("sum"), window, "i"), Int()),
        (wire.Sum(name("floats"), window, "f"), Float()),
        (wire.Sum(name("money"), window, "d"), Decimal(2)),
        (wire.Average(name("mean"), window, "d", -9.5), Float()),
        (wire.Stddev(name("deviation"), window, "f", None), Optional(Float())),
        (wire.Min(name("low"), window, "d", 1.5), Decimal(2)),
        (wire.Max(name("high"), window, "i", 7.0), Int()),
        (wire.Quantile(name("median"), window, "f", 0.5, None, True), Optional(Float())),
        (wire.Distinct(name("distinct"), window, "s", True), List(Str())),
        (wire.Distinct(name("all"), window, "d", False), List(Optional(Decimal(2)))),
        (wire.LastK(name("last"), window, "s", 2, True, False), List(Optional(Str()))),
        (wire.FirstK(name("first"), window, "d", 2, False, True), List(Decimal(2))),
        (wire.ExpDecay(name("decayed"), window, "f", 3 * SECOND), Float()),
    ]


def _aggregate(rows: Schema, along: str | None) -> AggregateSpec:
    made = [*_specs(wire.Forever(), "ever_"), *_specs(wire.Sliding(3 * SECOND), "now_")]
    fields = tuple(Field(spec.name, dtype) for spec, dtype in reversed(made))
    output = Schema((Field("k", Str()),), fields, "t")
    return AggregateSpec(rows, ("k",), tuple(spec for spec, _ in made), along, True, output)


def _check(spec: TableSpec | AggregateSpec, rows: Schema, history: History, time: str) -> None:
    """Compare lookups at every half second, from a sample of the changes in any order."""
    step = build(spec)
    state, _ = run(step, history, rows, canonical=False)
    lookups = as_lookup_step(step)
    assert lookups is not None
    sample = KeySample(("k",), 1, 10)
    for batch in reversed(history.batches):
        sample.add(as_frame(rows, batch))
    found_rows = sample.rows_of(time)
    for name in "abc":
        (key,) = key_bytes(pl.DataFrame({"k": [name]}), ["k"])
        for as_of in range(-SECOND, 20 * SECOND, SECOND // 2):
            (answer,) = lookups.lookup(state, [key], [as_of])
            found = None if answer is None else msgspec.msgpack.decode(answer)
            here = found_rows.get(key, [])
            assert compare(spec, here, as_of, found) is None
            wrong = [as_of, *["wrong"] * len(spec_values(spec))] if found is None else None
            assert compare(spec, here, as_of, wrong) is not None
            if found is not None:
                altered = [found[0], *found[1:-1], "wrong"]
                difference = compare(spec, here, as_of, altered)
                assert difference is not None
                assert difference.columns == (spec_values(spec)[-1],)


def spec_values(spec: TableSpec | AggregateSpec) -> tuple[str, ...]:
    return (spec.schema if isinstance(spec, TableSpec) else spec.output).value_names


@settings(max_examples=8, deadline=None)
@given(histories(ROW, max_rows=8), st.sampled_from([None, "paid"]))
def test_terminal_aggregations_equal_the_naive_recompute(
    history: History, along: str | None
) -> None:
    _check(_aggregate(EVENTS, along), EVENTS, history, along or "t")


@settings(max_examples=8, deadline=None)
@given(
    histories(
        st.tuples(ROW, st.none() | st.integers(1, 12)).map(
            lambda r: {**r[0], "__valid_to": r[1] and r[0]["t"] + r[1] * SECOND // 2}
        ),
        max_rows=8,
    ),
    st.sampled_from([None, "paid"]),
)
def test_aggregations_over_keyed_inputs_equal_the_naive_recompute(
    history: History, along: str | None
) -> None:
    rows = with_validity(KEYED)
    _check(_aggregate(rows, along), rows, history, along or "t")


@settings(max_examples=8, deadline=None)
@given(
    histories(
        st.tuples(ROW, st.integers(0, 4)).map(
            lambda r: (
                {**r[0], "__tombstone": True} | dict.fromkeys("ifds", None) if r[1] == 0 else r[0]
            )
        ),
        max_rows=8,
    )
)
def test_tables_equal_the_naive_recompute(history: History) -> None:
    _check(TableSpec(TABLE), TABLE, history, "t")


def test_a_decayed_sum_agrees_within_the_precision_of_floats_and_no_further() -> None:
    decayed = wire.ExpDecay("x", wire.Forever(), "f", 3 * SECOND)
    output = Schema((Field("k", Str()),), (Field("x", Float()),), "t")
    spec = AggregateSpec(EVENTS, ("k",), (decayed,), None, True, output)
    row = {"k": "a", "f": 1e6, "t": 0, "paid": 0, "__pos": b"p", "__tombstone": False}
    sample = KeySample(("k",), 1, 10)
    sample.add(as_frame(EVENTS, [Change(0, 1, row)]))
    (rows,) = sample.rows_of("t").values()
    assert compare(spec, rows, 3 * SECOND, [0, 5e5 * (1 + 1e-12)]) is None
    assert compare(spec, rows, 3 * SECOND, [0, 5e5 * (1 + 1e-6)]) is not None
