"""The naive windows: which rows each one covers as of a time, and when its value changes.

Theory. A window is a filter over all rows of a group (client semantics 4.3). An aggregation with an
output has a version at every time at which one of its windows changes, with the values as of that
time, and `groupby(window=...)` one row per window that contains a row. So both are lists of times
or windows, each with the rows inside. Nothing here depends on when a window closes: whether a
version is visible yet is the caller's question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

from fennel_core.integrity.naive_values import (
    SECOND,
    InputRow,
    aggregated,
    agrees,
    decay_magnitude,
)
from fennel_core.operators.spec import AggregateSpec, WindowsSpec, has_validity
from fennel_core.vocab.dtypes import Dtype
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire


@dataclass(frozen=True, slots=True)
class NaiveValue:
    """The value of an aggregation, and the comparison of it with one that was found."""

    value: Any
    agrees: Callable[[Any, Any], bool]


@dataclass(frozen=True, slots=True)
class NaiveResult:
    """A version of a group's result: its time, its window if that is part of the key, and how its
    values are computed, which takes time over many rows.
    """

    time: int
    window: dict[str, int] | None
    compute: Callable[[], Mapping[str, NaiveValue]]


def results(spec: AggregateSpec | WindowsSpec, rows: Sequence[InputRow]) -> list[NaiveResult]:
    """Return every version that the rows of one group make, closed or not, in order of time.

    `rows` are sorted by time and position.
    """
    if isinstance(spec, WindowsSpec):
        return _windows(spec, rows)
    windows = {one.window for one in spec.specs}
    times = {time for window in windows for time in change_times(spec.input, window, rows)}
    return [NaiveResult(at, None, partial(_values_at, spec, rows, at)) for at in sorted(times)]


def _values_at(spec: AggregateSpec, rows: Sequence[InputRow], as_of: int) -> dict[str, NaiveValue]:
    return {
        one.name: value_of(spec.input, one, rows_inside(spec.input, one.window, rows, as_of), as_of)
        for one in spec.specs
    }


def closes_after(spec: AggregateSpec | WindowsSpec) -> int | None:
    """Return how long after its end (microseconds) a window stays open; None if results are visible
    at once.
    """
    windows = [spec.window] if isinstance(spec, WindowsSpec) else [s.window for s in spec.specs]
    closing = wire.Tumbling | wire.Hopping | wire.ForeverHopping
    return max((each.lookback_us for each in windows if isinstance(each, closing)), default=None)


def value_of(schema: Schema, one: wire.Spec, inside: Sequence[InputRow], as_of: int) -> NaiveValue:
    """Return an aggregation over the rows of its window as of a time."""
    dtype_of = partial(_dtype, schema)
    magnitude = decay_magnitude(one, dtype_of, inside, as_of)
    return NaiveValue(aggregated(one, dtype_of, inside, as_of), partial(_agrees, one, magnitude))


def rows_inside(
    schema: Schema, window: wire.Window, rows: Sequence[InputRow], as_of: int
) -> list[InputRow]:
    """Return the rows that a window covers as of a time."""
    if has_validity(schema):
        spans = [(row, counts_in(window, row)) for row in rows]
        return [
            row
            for row, span in spans
            if span is not None and span[0] <= as_of and (span[1] is None or as_of < span[1])
        ]
    match window:
        case wire.Forever():
            return [row for row in rows if row.time <= as_of]
        case wire.Sliding(duration_us):
            return [row for row in rows if row.time <= as_of < row.time + duration_us + SECOND]
        case wire.ForeverHopping(stride_us):
            return [row for row in rows if row.time < as_of // stride_us * stride_us]
        case wire.Tumbling(duration_us):
            return _between(rows, as_of // duration_us * duration_us, duration_us)
        case wire.Hopping(duration_us, stride_us):
            return _between(rows, as_of // stride_us * stride_us, duration_us)
        case wire.Session():
            raise AssertionError("a session is a key, not a window of an aggregation")
        case unreachable:
            assert_never(unreachable)


def change_times(schema: Schema, window: wire.Window, rows: Sequence[InputRow]) -> set[int]:
    """Return the times at which rows begin or cease to count in a window."""
    if has_validity(schema):
        spans = [counts_in(window, row) for row in rows]
        return {time for span in spans if span is not None for time in span if time is not None}
    match window:
        case wire.Forever():
            return {row.time for row in rows}
        case wire.Sliding(duration_us):
            return {at for row in rows for at in (row.time, row.time + duration_us + SECOND)}
        case wire.ForeverHopping(stride_us):
            return {(row.time // stride_us + 1) * stride_us for row in rows}
        case wire.Tumbling(duration_us):
            ends = _ends(rows, duration_us, duration_us)
            return ends | {end + duration_us for end in ends}
        case wire.Hopping(duration_us, stride_us):
            ends = _ends(rows, duration_us, stride_us)
            return ends | {
                (row.time + duration_us) // stride_us * stride_us + stride_us for row in rows
            }
        case wire.Session():
            raise AssertionError("a session is a key, not a window of an aggregation")
        case unreachable:
            assert_never(unreachable)


def _windows(spec: WindowsSpec, rows: Sequence[InputRow]) -> list[NaiveResult]:
    """Return one result per window that contains a row; with aggregations also per empty one that
    follows.
    """
    match spec.window:
        case wire.Session(gap_us):
            spans = _sessions([row.time for row in rows], gap_us)
        case wire.Tumbling() | wire.Hopping():
            length = spec.window.duration_us
            stride = spec.window.stride_us if isinstance(spec.window, wire.Hopping) else length
            ends = _ends(rows, length, stride)
            if spec.specs:
                ends |= {end + stride for end in ends}
            spans = [(end - length, end) for end in sorted(ends)]
        case _:
            raise AssertionError("the compiler refuses other windows as keys")
    return [
        NaiveResult(
            end, {"begin": begin, "end": end}, partial(_values_between, spec, rows, begin, end)
        )
        for begin, end in spans
    ]


def _values_between(
    spec: WindowsSpec, rows: Sequence[InputRow], begin: int, end: int
) -> dict[str, NaiveValue]:
    inside = _between(rows, end, end - begin)
    return {one.name: value_of(spec.input, one, inside, end) for one in spec.specs}


def _sessions(times: Sequence[int], gap_us: int) -> list[tuple[int, int]]:
    """Return begin and end of each run of times without a pause longer than the gap."""
    spans: list[tuple[int, int]] = []
    for time in times:
        if spans and time < spans[-1][1] + gap_us:
            spans[-1] = spans[-1][0], time + 1
        else:
            spans.append((time, time + 1))
    return spans


def _between(rows: Sequence[InputRow], end: int, duration_us: int) -> list[InputRow]:
    return [row for row in rows if end - duration_us <= row.time < end]


def _ends(rows: Sequence[InputRow], duration_us: int, stride_us: int) -> set[int]:
    """Return the ends of all windows that contain a row."""
    return {
        end
        for row in rows
        for end in range(
            (row.time // stride_us + 1) * stride_us, row.time + duration_us + 1, stride_us
        )
    }


def counts_in(window: wire.Window, row: InputRow) -> tuple[int, int | None] | None:
    """Return when a row with a validity interval begins and ceases (None: never) to count in a
    window; None if it never counts.
    """
    begin, end = row.time, row.valid_to
    match window:
        case wire.Forever():
            pass
        case wire.Sliding(duration_us):
            end = _earlier(end, begin + duration_us + SECOND)
        case wire.ForeverHopping(stride_us):
            begin = (begin // stride_us + 1) * stride_us
        case wire.Tumbling(duration_us):
            begin, end = _in_hops(row, duration_us, duration_us)
        case wire.Hopping(duration_us, stride_us):
            begin, end = _in_hops(row, duration_us, stride_us)
        case wire.Session():
            raise AssertionError("a session has no end that a validity interval could cut")
        case unreachable:
            assert_never(unreachable)
    return None if end is not None and end <= begin else (begin, end)


def _in_hops(row: InputRow, duration_us: int, stride_us: int) -> tuple[int, int]:
    first = (row.time // stride_us + 1) * stride_us
    left = (row.time + duration_us) // stride_us * stride_us + stride_us
    return first, _earlier(row.valid_to, left)


def _earlier(end: int | None, other: int) -> int:
    return other if end is None else min(end, other)


def _dtype(schema: Schema, name: str) -> Dtype:
    field = schema.field(name)
    assert field is not None, "the compiler checks the columns of an aggregation"
    return field.dtype


def _agrees(spec: wire.Spec, magnitude: float, expected: Any, found: Any) -> bool:
    return agrees(spec, expected, found, magnitude)
