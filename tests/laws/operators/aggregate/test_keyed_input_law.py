"""Law: over a keyed dataset a row counts from its beginning until its end or the end of the
window.
"""

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.operators.aggregate import tile_writer
from fennel_core.operators.build import build
from fennel_core.operators.spec import AggregateSpec, with_validity
from fennel_core.vocab.dtypes import Field, Float, Int, List, Optional, Str, Timestamp
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from tests.laws.operators.aggregate import oracle
from tests.support.histories import bag, histories, integral, run

SECOND = 1_000_000
VALUES = (Field("k", Str()), Field("v", Int()), Field("paid", Timestamp()))
INPUT = with_validity(Schema((Field("id", Int()),), VALUES, "t"))
HALF_LIFE = SECOND
SPECS = (
    wire.Count("n", wire.Forever(), None, False, False, False),
    wire.Sum("s", wire.Sliding(3 * SECOND), "v"),
    wire.Max("m", wire.Sliding(20 * SECOND), "v", None),
    wire.LastK("l", wire.Forever(), "v", 2, False, False),
    wire.ExpDecay("x", wire.Forever(), "v", HALF_LIFE),
    wire.ExpDecay("y", wire.Sliding(3 * SECOND), "v", HALF_LIFE),
)
OUTPUT = Schema(
    (Field("k", Str()),),
    (
        Field("l", List(Int())),
        Field("n", Int()),
        Field("s", Int()),
        Field("m", Optional(Int())),
        Field("x", Float()),
        Field("y", Float()),
    ),
    "t",
)
LONG = 1_200
"""A unit of time, in half-lives, of which two exceed the horizon of a decayed sum."""


def rows(unit):
    return st.tuples(
        st.integers(0, 3),
        st.sampled_from("ab"),
        st.integers(-2, 2),
        st.integers(0, 15),
        st.none() | st.integers(1, 12),
        st.integers(0, 15),
    ).map(
        lambda r: {
            "id": r[0],
            "k": r[1],
            "v": r[2],
            "t": r[3] * unit,
            "paid": r[5] * unit,
            "__valid_to": r[4] and (r[3] + r[4]) * unit,
        }
    )


def counted(history, key, along):
    """Return the rows of a key that were not retracted, with the time by which they count."""
    return [{**r, "t": r[along or "t"]} for r in history.left_over() if r["k"] == key]


@given(st.data(), st.sampled_from([SECOND, LONG * SECOND]), st.sampled_from([None, "paid"]))
def test_a_row_counts_until_it_is_succeeded_or_leaves_the_window(data, unit, along):
    history = data.draw(histories(rows(unit), max_rows=9))
    step = build(AggregateSpec(INPUT, ("k",), SPECS, along, True, OUTPUT))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_writer, "BUFFER_RECORDS", 2)
        patch.setattr(tile_writer, "BLOCK_RECORDS", 1)
        state, _ = run(step, history, INPUT, canonical=False)
    times = {*range(-SECOND, 40 * SECOND, SECOND), *(n * unit for n in range(40))}
    asked = [(k, q) for k in "abc" for q in sorted(times)]
    found = step.lookup(
        state, key_bytes(pl.DataFrame({"k": [k for k, _ in asked]}), ["k"]), [q for _, q in asked]
    )
    for (key, as_of), answer in zip(asked, found, strict=True):
        mine = counted(history, key, along)
        windows = (("forever",), ("sliding", 3 * SECOND), ("sliding", 20 * SECOND))
        ever, three, twenty = (oracle.counting(mine, as_of, window) for window in windows)
        changed = max(
            (time for time in oracle.interval_boundaries(mine, windows) if time <= as_of),
            default=None,
        )
        last = [r["v"] for r in sorted(ever, key=lambda r: (r["t"], r["__pos"]), reverse=True)][:2]
        expected = [
            changed,
            last,
            len(ever),
            sum(r["v"] for r in three),
            max((r["v"] for r in twenty), default=None),
            *(
                pytest.approx(oracle.decayed(some, "v", as_of, HALF_LIFE), rel=1e-9, abs=1e-6)
                for some in (ever, three)
            ),
        ]
        assert (answer and msgspec.msgpack.decode(answer)) == (
            None if changed is None else expected
        )


EMITTED = Schema((Field("k", Str()),), (Field("n", Int()), Field("m", Optional(Int()))), "t")
FAMILIES = {
    "moving": (("forever",), ("sliding", 3 * SECOND)),
    "steps": (("steps", 4 * SECOND), ("steps", 3 * SECOND)),
    "closing": (("hopping", 4 * SECOND, 4 * SECOND), ("hopping", 5 * SECOND, 2 * SECOND)),
}


def as_wire(window, lookback):
    match window:
        case ("forever",):
            return wire.Forever()
        case ("sliding", d):
            return wire.Sliding(d)
        case ("steps", s):
            return wire.ForeverHopping(s, lookback)
        case ("hopping", d, s):
            return wire.Tumbling(d, lookback) if d == s else wire.Hopping(d, s, lookback)


@given(
    histories(rows(SECOND), max_rows=9),
    st.sampled_from(sorted(FAMILIES)),
    st.sampled_from([0, 2 * SECOND]),
    st.sampled_from([None, "paid"]),
)
def test_there_is_a_version_wherever_a_row_begins_or_ceases_to_count(
    history, family, lookback, along
):
    windows = FAMILIES[family]
    count, most = (as_wire(window, lookback) for window in windows)
    specs = (wire.Count("n", count, None, False, False, False), wire.Max("m", most, "v", None))
    step = build(AggregateSpec(INPUT, ("k",), specs, along, False, EMITTED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_writer, "BUFFER_RECORDS", 2)
        patch.setattr(tile_writer, "BLOCK_RECORDS", 1)
        state, emitted = run(step, history, INPUT, canonical=False)
    added = [c.row for batch in history.batches for c in batch if c.sign > 0]
    seen = max((row["t"] for row in added), default=-SECOND)
    for watermark in (seen, seen + 5 * SECOND):
        emitted += [emit.frame for emit in step.advance(state, watermark).emits]
        visible = 10**15 if family == "moving" else watermark - lookback
        expected = []
        for key in "ab":
            mine = counted(history, key, along)
            for time in oracle.interval_boundaries(mine, windows):
                inside, topped = (oracle.counting(mine, time, window) for window in windows)
                if time <= visible:
                    expected.append(
                        {
                            "k": key,
                            "t": time,
                            "n": len(inside),
                            "m": max((r["v"] for r in topped), default=None),
                        }
                    )
        assert bag(
            [{name: row[name] for name in ("k", "t", "n", "m")} for row in integral(emitted)]
        ) == bag(expected)
