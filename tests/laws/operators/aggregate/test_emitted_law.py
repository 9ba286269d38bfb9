"""Laws: the emitted versions of an aggregation add up to the recompute over the rows that were not
retracted, up to the watermark.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.operators.aggregate import tile_writer
from fennel_core.operators.aggregate.emitted import EmittedAggregateStep
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab.dtypes import Field, Int, Optional, Str, Timestamp
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from tests.laws.operators.aggregate import oracle
from tests.support.histories import bag, histories, integral, run

SECOND = 1_000_000
INPUT = Schema((), (Field("k", Str()), Field("v", Int()), Field("paid", Timestamp())), "t")
OUTPUT = Schema((Field("k", Str()),), (Field("n", Int()), Field("top", Optional(Int()))), "t")
TIMES = st.integers(-5, 20).map(lambda t: t * SECOND) | st.integers(-2 * SECOND, 9 * SECOND)
ROW = st.fixed_dictionaries(
    {"k": st.sampled_from("ab"), "v": st.integers(-3, 3), "t": TIMES, "paid": TIMES}
)
WINDOWS = (
    [("forever",), ("sliding", 3 * SECOND)],
    [
        ("hopping", 4 * SECOND, 4 * SECOND),
        ("hopping", 5 * SECOND, 2 * SECOND),
        ("steps", 3 * SECOND),
    ],
)


def _wire(window, lookback):
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
    histories(ROW, max_rows=10),
    st.data(),
    st.sampled_from([0, SECOND, 4 * SECOND]),
    st.sampled_from([None, "paid"]),
)
def test_there_is_a_version_at_every_change_up_to_the_watermark(history, data, lookback, along):
    windows = data.draw(st.sampled_from(WINDOWS))
    count, most = data.draw(st.sampled_from(windows)), data.draw(st.sampled_from(windows))
    specs = (
        wire.Count("n", _wire(count, lookback), None, False, False, False),
        wire.Max("top", _wire(most, lookback), "v", None),
    )
    step = EmittedAggregateStep(AggregateSpec(INPUT, ("k",), specs, along, False, OUTPUT))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_writer, "BUFFER_RECORDS", 2)
        patch.setattr(tile_writer, "BLOCK_RECORDS", 1)
        state, emitted = run(step, history, INPUT, canonical=False)
    seen = max(
        (c.row["t"] for batch in history.batches for c in batch if c.sign > 0), default=-(10**15)
    )
    _agrees(history, along, emitted, (count, most), seen - lookback)
    watermark = seen + data.draw(st.sampled_from([0, 2 * SECOND, 100 * SECOND]))
    emitted += [emit.frame for emit in step.advance(state, watermark).emits]
    _agrees(history, along, emitted, (count, most), watermark - lookback)


def _agrees(history, along, emitted, windows, visible):
    rows = [{**row, "t": row[along or "t"]} for row in history.left_over()]
    if windows[0][0] in ("forever", "sliding"):
        visible = 10**16
    versions = [
        {
            "k": key,
            "t": as_of,
            "n": len(counted),
            "top": max((r["v"] for r in topped), default=None),
        }
        for key, as_of, (counted, topped) in oracle.emitted(rows, windows, visible)
    ]
    found = integral(emitted)
    assert all(len(row["__pos"]) == 14 and not row["__tombstone"] for row in found)
    assert bag([{name: row[name] for name in ("k", "t", "n", "top")} for row in found]) == bag(
        versions
    )
