"""The naive lookup: the row of one key as of a time, from all rows of its key.

Theory. Lookups of a keyed dataset return the last version at or before the time. Those of a
terminal aggregation compute each column over the rows of its window, and are dated by the last
change: an event, or an expiry of one from a window. Over a keyed input, a row counts from its
beginning until its successor begins or it leaves the window, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from fennel_core.integrity.naive_values import SECOND, InputRow, same_value
from fennel_core.integrity.naive_windows import counts_in, rows_inside, value_of
from fennel_core.operators.spec import AggregateSpec, TableSpec, has_validity
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
    by_name = {
        one.name: value_of(spec.input, one, rows_inside(spec.input, one.window, rows, as_of), as_of)
        for one in spec.specs
    }
    columns = [by_name[name] for name in spec.output.value_names]
    return [changed, *(each.value for each in columns)], [each.agrees for each in columns]


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
