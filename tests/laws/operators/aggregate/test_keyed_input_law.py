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
from fennel_core.vocab.dtypes import Field, Int, List, Optional, Str
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from tests.laws.operators.aggregate import oracle
from tests.support.histories import bag, histories, integral, run

SECOND = 1_000_000
INPUT = with_validity(Schema((Field("id", Int()),), (Field("k", Str()), Field("v", Int())), "t"))
SPECS = (
    wire.Count("n", wire.Forever(), None, False, False, False),
    wire.Sum("s", wire.Sliding(3 * SECOND), "v"),
    wire.Max("m", wire.Sliding(20 * SECOND), "v", None),
    wire.LastK("l", wire.Forever(), "v", 2, False, False),
)
OUTPUT = Schema(
    (Field("k", Str()),),
    (Field("l", List(Int())), Field("n", Int()), Field("s", Int()), Field("m", Optional(Int()))),
    "t",
)
ROW = st.tuples(
    st.integers(0, 3),
    st.sampled_from("ab"),
    st.integers(-2, 2),
    st.integers(0, 15),
    st.none() | st.integers(1, 12),
).map(
    lambda r: {
        "id": r[0],
        "k": r[1],
        "v": r[2],
        "t": r[3] * SECOND,
        "__valid_to": r[4] and (r[3] + r[4]) * SECOND,
    }
)


@given(histories(ROW, max_rows=9))
def test_a_row_counts_until_it_is_succeeded_or_leaves_the_window(history):
    step = build(AggregateSpec(INPUT, ("k",), SPECS, None, False, True, OUTPUT))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_writer, "BUFFER_RECORDS", 2)
        patch.setattr(tile_writer, "BLOCK_RECORDS", 1)
        state, _ = run(step, history, INPUT, canonical=False)
    asked = [(k, q) for k in "abc" for q in range(-SECOND, 40 * SECOND, SECOND)]
    found = step.lookup(
        state, key_bytes(pl.DataFrame({"k": [k for k, _ in asked]}), ["k"]), [q for _, q in asked]
    )
    for (key, as_of), answer in zip(asked, found, strict=True):
        rows = [r for r in history.left_over() if r["k"] == key]
        windows = (("forever",), ("sliding", 3 * SECOND), ("sliding", 20 * SECOND))
        ever, three, twenty = (oracle.counting(rows, as_of, window) for window in windows)
        changed = max(
            (time for time in oracle.interval_boundaries(rows, windows) if time <= as_of),
            default=None,
        )
        last = [r["v"] for r in sorted(ever, key=lambda r: (r["t"], r["__pos"]), reverse=True)][:2]
        expected = [
            changed,
            last,
            len(ever),
            sum(r["v"] for r in three),
            max((r["v"] for r in twenty), default=None),
        ]
        assert (answer and msgspec.msgpack.decode(answer)) == (
            None if changed is None else expected
        )


EMITTED = Schema((Field("k", Str()),), (Field("n", Int()), Field("m", Optional(Int()))), "t")


@given(histories(ROW, max_rows=9), st.booleans(), st.sampled_from([0, 2 * SECOND]))
def test_there_is_a_version_wherever_a_row_begins_or_ceases_to_count(history, steps, lookback):
    windows = (
        (("steps", 4 * SECOND), ("steps", 3 * SECOND))
        if steps
        else (("forever",), ("sliding", 3 * SECOND))
    )
    made = [wire.ForeverHopping(4 * SECOND, lookback), wire.ForeverHopping(3 * SECOND, lookback)]
    count, most = made if steps else (wire.Forever(), wire.Sliding(3 * SECOND))
    specs = (wire.Count("n", count, None, False, False, False), wire.Max("m", most, "v", None))
    step = build(AggregateSpec(INPUT, ("k",), specs, None, True, False, EMITTED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_writer, "BUFFER_RECORDS", 2)
        patch.setattr(tile_writer, "BLOCK_RECORDS", 1)
        state, emitted = run(step, history, INPUT, canonical=False)
    seen = max(
        (c.row["t"] for batch in history.batches for c in batch if c.sign > 0), default=-SECOND
    )
    for watermark in (seen, seen + 5 * SECOND):
        emitted += [emit.frame for emit in step.advance(state, watermark).emits]
        visible = watermark - lookback if steps else 10**15
        expected = []
        for key in "ab":
            rows = [r for r in history.left_over() if r["k"] == key]
            for time in oracle.interval_boundaries(rows, windows):
                counted, topped = (oracle.counting(rows, time, window) for window in windows)
                if time <= visible:
                    expected.append(
                        {
                            "k": key,
                            "t": time,
                            "n": len(counted),
                            "m": max((r["v"] for r in topped), default=None),
                        }
                    )
        assert bag(
            [{name: row[name] for name in ("k", "t", "n", "m")} for row in integral(emitted)]
        ) == bag(expected)
