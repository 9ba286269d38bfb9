"""The naive lookup: the row of one key as of a time, from all rows of its key.

Theory. Lookups of a keyed dataset return the last version at or before the time. Those of a
terminal aggregation compute each column over the rows of its window, and are dated by the last
change: an event, or an expiry of one from a window. Over a keyed input, a row counts from its
beginning until its successor begins or it leaves the window, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

from fennel_core.integrity.naive_values import (
    SECOND,
    InputRow,
    aggregated,
    agrees,
    decay_magnitude,
    same_value,
)
from fennel_core.operators.spec import AggregateSpec, TableSpec, has_validity
from fennel_core.vocab.dtypes import Dtype
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire

LookupSpec = TableSpec | AggregateSpec
"""The specifications of jobs that serve lookups."""
TIME = "(time)"
"""What a difference names the time of a row."""
PRESENCE = "(presence)"
"""What a difference names whether there is a row."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """The columns of a row that differ, and both rows; None: there is none."""

    columns: tuple[str, ...]
    expected: list[Any] | None
    found: list[Any] | None


def compare(
    spec: LookupSpec, rows: Sequence[InputRow], as_of: int, found: list[Any] | None
) -> RowDifference | None:
    """Compare the row that a lookup found as of a time with the recompute from all `rows` of the
    key; None if they agree.

    `found`: the time of the row, then its values in the order of the schema.
    """
    rows = sorted(rows, key=lambda row: (row.time, row.position))
    match spec:
        case TableSpec(schema=schema):
            expected = _latest(schema, rows, as_of)
            checks: list[Callable[[Any, Any], bool]] = [same_value] * len(schema.values)
            names = schema.value_names
        case AggregateSpec():
            expected, checks = _aggregate(spec, rows, as_of)
            names = spec.output.value_names
        case unreachable:
            assert_never(unreachable)
    if expected is None or found is None:
        return None if expected is found else RowDifference((PRESENCE,), expected, found)
    differing = [TIME] if expected[0] != found[0] else []
    if len(found) != len(expected):
        return RowDifference((*differing, *names), expected, found)
    differing += [
        name
        for name, check, left, right in zip(names, checks, expected[1:], found[1:], strict=True)
        if not check(left, right)
    ]
    return RowDifference(tuple(differing), expected, found) if differing else None


def _latest(schema: Schema, rows: Sequence[InputRow], as_of: int) -> list[Any] | None:
    past = [row for row in rows if row.time <= as_of]
    if not past or past[-1].is_tombstone:
        return None
    return [past[-1].time, *(past[-1].values[name] for name in schema.value_names)]


def _aggregate(
    spec: AggregateSpec, rows: Sequence[InputRow], as_of: int
) -> tuple[list[Any] | None, list[Callable[[Any, Any], bool]]]:
    changed = (_last_boundary if has_validity(spec.input) else _last_change)(spec, rows, as_of)
    if changed is None:
        return None, []
    dtype_of = partial(_dtype, spec.input)
    by_name: dict[str, tuple[Any, Callable[[Any, Any], bool]]] = {}
    for one in spec.specs:
        inside = _inside(spec, one.window, rows, as_of)
        magnitude = decay_magnitude(one, dtype_of, inside, as_of)
        value = aggregated(one, dtype_of, inside, as_of)
        by_name[one.name] = value, partial(_agrees, one, magnitude)
    columns = [by_name[name] for name in spec.output.value_names]
    return [changed, *(value for value, _ in columns)], [check for _, check in columns]


def _inside(
    spec: AggregateSpec, window: wire.Window, rows: Sequence[InputRow], as_of: int
) -> list[InputRow]:
    if has_validity(spec.input):
        spans = [(row, counts_in(window, row)) for row in rows]
        return [
            row
            for row, span in spans
            if span is not None and span[0] <= as_of and (span[1] is None or as_of < span[1])
        ]
    past = [row for row in rows if row.time <= as_of]
    if isinstance(window, wire.Sliding):
        return [row for row in past if as_of < row.time + window.duration_us + SECOND]
    assert isinstance(window, wire.Forever), "lookups read windows that move with the reader"
    return past


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


def _last_change(spec: AggregateSpec, rows: Sequence[InputRow], as_of: int) -> int | None:
    """Return the time of the last event, or of the last that left one of the windows."""
    times = [row.time for row in rows if row.time <= as_of]
    spans = {
        one.window.duration_us + SECOND
        for one in spec.specs
        if isinstance(one.window, wire.Sliding)
    }
    left = [time + span for time in times for span in spans if time + span <= as_of]
    return max([*times, *left], default=None)


def _last_boundary(spec: AggregateSpec, rows: Sequence[InputRow], as_of: int) -> int | None:
    windows = {one.window for one in spec.specs}
    spans = [counts_in(window, row) for window in windows for row in rows]
    times = [time for span in spans if span is not None for time in span]
    return max((time for time in times if time is not None and time <= as_of), default=None)


def _dtype(schema: Schema, name: str) -> Dtype:
    field = schema.field(name)
    assert field is not None, "the compiler checks the columns of an aggregation"
    return field.dtype


def _agrees(spec: wire.Spec, magnitude: float, expected: Any, found: Any) -> bool:
    return agrees(spec, expected, found, magnitude)
