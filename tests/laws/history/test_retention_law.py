"""Law: without the rows that nothing needs, a lookup in a windowed aggregate is the same.

Rows are removed below a time; from twice the window behind it, every lookup of a key that has a row
at or before its time equals the live one, which has seen all rows. A second less is not enough.
"""

from __future__ import annotations

import msgspec
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.blueprints.row_retention import longest_window_us
from fennel_core.integrity.key_sample import KeySample
from fennel_core.integrity.naive_rows import compare
from fennel_core.operators.build import as_lookup_step, build
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab.dtypes import Field, Int, List, Optional, Str
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from tests.support.histories import Change, History, as_frame, histories, run

SECOND = 1_000_000
EVENTS = Schema((), (Field("k", Str()), Field("i", Optional(Int()))), "t")
ROW = st.fixed_dictionaries(
    {
        "id": st.integers(0, 2),
        "k": st.sampled_from(["a", "b"]),
        "t": st.integers(0, 60).map(lambda half: half * SECOND // 2),
        "i": st.none() | st.integers(-3, 3),
    }
)
WINDOWS = (wire.Sliding(3 * SECOND), wire.Sliding(SECOND))
SPECS = tuple(
    (spec, dtype)
    for n, window in enumerate(WINDOWS)
    for spec, dtype in (
        (wire.Count(f"rows{n}", window, None, False, False, False), Int()),
        (wire.Sum(f"sum{n}", window, "i"), Int()),
        (wire.LastK(f"last{n}", window, "i", 2, False, False), List(Optional(Int()))),
    )
)
OUTPUT = Schema((Field("k", Str()),), tuple(Field(spec.name, dtype) for spec, dtype in SPECS), "t")
SPEC = AggregateSpec(EVENTS, ("k",), tuple(spec for spec, _ in SPECS), None, True, OUTPUT)
END = 45 * SECOND


def differing(history: History, oldest: int, reach: int) -> list[tuple[str, int]]:
    """Return the keys and times at which a lookup differs from a recompute from the rows since
    `oldest`, from `reach` behind that on.
    """
    step = build(SPEC)
    state, _ = run(step, history, EVENTS, canonical=False)
    lookups = as_lookup_step(step)
    assert lookups is not None
    sample = KeySample(("k",), 1, 10)
    for batch in history.batches:
        left = as_frame(EVENTS, batch).filter(pl.col("t").to_physical() >= oldest)
        sample.add(left)
    rows = sample.rows_of("t")
    found = []
    for name in "ab":
        (key,) = key_bytes(pl.DataFrame({"k": [name]}), ["k"])
        first = min((row.time for row in rows.get(key, [])), default=END)
        for as_of in range(max(first, oldest + reach), END, SECOND // 2):
            (answer,) = lookups.lookup(state, [key], [as_of])
            live = None if answer is None else msgspec.msgpack.decode(answer)
            if compare(SPEC, rows[key], as_of, live) is not None:
                found.append((name, as_of))
    return found


@settings(max_examples=40, deadline=None)
@given(histories(ROW, max_rows=12), st.integers(0, 60).map(lambda half: half * SECOND // 2))
def test_a_lookup_needs_no_row_that_is_older_than_two_windows(
    history: History, oldest: int
) -> None:
    window = longest_window_us(SPEC)
    assert window is not None
    assert differing(history, oldest, 2 * window) == []


def test_one_window_is_not_enough() -> None:
    """The row at 0 s left the long window at 4 s, after the one at 3.5 s, which dates the row."""
    rows = [
        Change(0, 1, {"id": n, "k": "a", "t": at, "i": 1, "__pos": b"%d" % n, "__tombstone": False})
        for n, at in enumerate((0, 7 * SECOND // 2))
    ]
    assert differing(History([rows]), SECOND, 3 * SECOND) != []
