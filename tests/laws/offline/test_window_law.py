"""Law: the windows of many requests, computed together, are what the production step returns for
each, for all aggregations, windows, histories, times and chunks.
"""

from __future__ import annotations

import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fennel_core.hangar.memory import MemoryHangar
from fennel_core.offline.scratch import ScratchStore
from fennel_core.offline.sources import FOUND, AggregateSource
from fennel_core.offline.tile_lookups import TileLookups
from fennel_core.offline.timeline import KEY, TIME, in_order, request_rows, version_rows
from fennel_core.offline.window_lookups import WindowLookups
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab.dtypes import Decimal, Dtype, Field, Float, Int, List, Optional, Str
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from tests.support.histories import History, as_frame, histories

SECOND = 1_000_000
KEYS = (1, 2, 3)
INPUT = Schema(
    (),
    (
        Field("k", Int()),
        Field("i", Optional(Int())),
        Field("f", Optional(Float())),
        Field("d", Optional(Decimal(2))),
        Field("s", Optional(Str())),
    ),
    "t",
)
TIMES = st.integers(-4, 12).map(lambda n: n * SECOND // 2)
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(KEYS[:2]),
        "i": st.none() | st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1]),
        "f": st.none() | st.sampled_from([0.0, -0.0, 0.1, -2.5, 1e300, 5e-324, float("inf")]),
        "d": st.none() | st.decimals(-(10**20), 10**20, places=2),
        "s": st.none() | st.sampled_from(["", "a", "b"]),
        "t": TIMES,
    }
)
WINDOWS = st.just(wire.Forever()) | st.sampled_from([1, 2, 5]).map(
    lambda seconds: wire.Sliding(seconds * SECOND)
)
REQUESTS = st.lists(st.tuples(st.sampled_from(KEYS), TIMES), min_size=1, max_size=20)


def columns(window: wire.Window) -> list[tuple[Dtype, wire.Spec]]:
    """Every aggregation over one window, with the type of its result."""
    return [
        (Int(), wire.Count("x", window, None, False, False, False)),
        (Int(), wire.Count("x", window, "s", False, False, True)),
        (Int(), wire.Count("x", window, "s", True, False, False)),
        (Int(), wire.Sum("x", window, "i")),
        (Float(), wire.Sum("x", window, "f")),
        (Decimal(2), wire.Sum("x", window, "d")),
        (Float(), wire.Average("x", window, "i", -1.0)),
        (Float(), wire.Average("x", window, "f", -1.0)),
        (Float(), wire.Stddev("x", window, "f", -1.0)),
        (Float(), wire.Stddev("x", window, "d", -1.0)),
        (Int(), wire.Min("x", window, "i", 7.0)),
        (Float(), wire.Max("x", window, "f", 7.0)),
        (Decimal(2), wire.Max("x", window, "d", 7.0)),
        (Optional(Float()), wire.Quantile("x", window, "i", 0.5, None, True)),
        (List(Optional(Str())), wire.Distinct("x", window, "s", False)),
        (List(Optional(Str())), wire.LastK("x", window, "s", 2, False, False)),
        (List(Str()), wire.LastK("x", window, "s", 2, True, True)),
        (List(Optional(Decimal(2))), wire.FirstK("x", window, "d", 2, False, False)),
        (Float(), wire.ExpDecay("x", window, "f", SECOND)),
    ]


@st.composite
def sources(draw: st.DrawFn) -> AggregateSource:
    chosen = [draw(st.sampled_from(columns(draw(WINDOWS)))) for _ in range(draw(st.integers(1, 4)))]
    names = [f"c{number}" for number in range(len(chosen))]
    fields = tuple(Field(name, dtype) for name, (dtype, _) in zip(names, chosen, strict=True))
    specs = tuple(
        spec.__class__(name, *_rest(spec)) for name, (_, spec) in zip(names, chosen, strict=True)
    )
    output = Schema((Field("k", Int()),), fields, "t")
    wanted = (*names, "t") if draw(st.booleans()) else tuple(names[:2])
    return AggregateSource(AggregateSpec(INPUT, ("k",), specs, None, True, output), wanted)


def _rest(spec: wire.Spec) -> list[object]:
    return [getattr(spec, name) for name in spec.__dataclass_fields__ if name != "name"]


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(sources(), histories(ROW), REQUESTS, st.sampled_from([1, 2, 3, 7, 1000]), st.integers(0, 3))
def test_windows_computed_together_are_those_of_the_production_step(
    source: AggregateSource,
    history: History,
    requests: list[tuple[int, int]],
    chunk_rows: int,
    carried_rows: int,
) -> None:
    versions = as_frame(INPUT, [change for batch in history.batches for change in batch])
    asked = pl.DataFrame(
        {
            KEY: pl.Series(
                key_bytes(pl.DataFrame({"k": [key for key, _ in requests]}), ["k"]),
                dtype=pl.Binary,
            ),
            TIME: [time for _, time in requests],
        }
    )
    timeline = [
        version_rows(versions, 0, source.keys, source.time, source.version_columns),
        request_rows(asked),
    ]
    windows = WindowLookups(source, 0, scratch(), carried_rows if carried_rows else 1000)
    tiles = TileLookups(source, 0, scratch())

    for chunk in in_order(timeline, 1, chunk_rows):
        seen = chunk.seen_by(0)
        found, expected = windows.answer(seen), tiles.answer(seen)
        assert found[FOUND].equals(expected[FOUND])
        assert found.filter(FOUND).equals(expected.filter(FOUND))


def scratch() -> ScratchStore:
    return ScratchStore(MemoryHangar, limit_bytes=1_000)
