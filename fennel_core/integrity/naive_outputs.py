"""The naive step: the rows that a job must have written for one group, from all its input rows.

Theory. The rows that a step reads for a row share a group with it: the columns by which its inputs
are partitioned. So the output of a group is a function of the rows of the group, and the written
rows that were not retracted must be equal to it as a bag. When a window closes depends on rows of
other groups, too, so what is compared of windows is what has closed by a time at which the caller
knows that they have. Expressions and user code are not here: they have no other definition than
their own.

Example. The largest event time of the rows that a job has applied is 12:10. Windows of an hour
until 12:00 have closed, so a group must have written exactly the rows up to 12:00 that its windows
make; later ones are not looked at on either side.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, assert_never

import msgspec

from fennel_core.integrity.naive_values import SECOND, InputRow
from fennel_core.integrity.naive_windows import NaiveResult, closes_after, results
from fennel_core.operators.spec import (
    VALID_TO,
    AggregateSpec,
    ChangelogSpec,
    DedupSpec,
    FirstLatestSpec,
    IntervalsSpec,
    JoinSpec,
    MapSpec,
    SourceReplaySpec,
    StepSpec,
    UserCodeSpec,
    WindowsSpec,
    has_validity,
)
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire

ResultSpec = AggregateSpec | WindowsSpec
"""The specifications of jobs that aggregate, some of whose windows close by event time."""
OutputSpec = JoinSpec | DedupSpec | FirstLatestSpec | IntervalsSpec | ChangelogSpec | ResultSpec
"""The specifications of jobs whose written rows are compared."""
Inputs = Sequence[Sequence[InputRow]]
Row = dict[str, Any]
TOMBSTONE: Final = "(tombstone)"
NEVER: Final = -(1 << 62)
"""An event time before all others."""
COMPUTED_RESULTS: Final = 200
"""Results of one group whose values are recomputed, each from all rows of the group; of the others,
which ones there are is compared.
"""
_encode = msgspec.msgpack.Encoder(order="sorted").encode


@dataclass(frozen=True, slots=True)
class GroupedInput:
    """An input of a job: its schema, the columns of a group, and the column by whose time rows
    count.
    """

    schema: Schema
    columns: tuple[str, ...]
    time: str


@dataclass(frozen=True, slots=True)
class Unmatched:
    """The rows of a group that should have been written, and those that should not."""

    missing: list[Row]
    extra: list[Row]


def compared_spec(spec: StepSpec) -> OutputSpec | None:
    """Return the specification as one whose output is compared; None for others."""
    if isinstance(spec, AggregateSpec) and spec.terminal:
        return None
    return spec if isinstance(spec, OutputSpec) else None


def why_not_compared(spec: StepSpec) -> str:
    """Return why what a job writes is not compared, for a report."""
    match spec:
        case MapSpec():
            return "its expressions have no other definition than the platform's own"
        case UserCodeSpec():
            return "user code has no other definition, and need not return the same again"
        case SourceReplaySpec():
            return "it types raw requests as ingest does, and has no other definition"
        case _:
            return "no lookup reads its state, and it writes nothing"


def inputs_of(spec: OutputSpec) -> tuple[GroupedInput, ...]:
    """Return the inputs with the columns of their groups."""

    def grouped(rows: Schema, columns: tuple[str, ...], time: str | None = None) -> GroupedInput:
        return GroupedInput(rows, columns, time or rows.timestamp)

    match spec:
        case JoinSpec(left=left, right=right, left_on=left_on):
            return grouped(left, left_on), grouped(right, right.key_names)
        case DedupSpec(input=rows, by=by) | WindowsSpec(input=rows, by=by):
            return (grouped(rows, by),)
        case FirstLatestSpec(input=rows, keys=keys):
            return (grouped(rows, keys),)
        case AggregateSpec(input=rows, keys=keys, along=along):
            return (grouped(rows, keys, along),)
        case IntervalsSpec(input=rows) | ChangelogSpec(input=rows):
            return (grouped(rows, rows.key_names),)
        case unreachable:
            assert_never(unreachable)


def closed_by(spec: OutputSpec, watermark: int | None) -> int | None:
    """Return the last event time whose windows have all closed by a watermark; None: there are
    none that close.

    `watermark`: the largest event time of rows that the job has applied, None without any.
    """
    open_us = closes_after(spec) if isinstance(spec, ResultSpec) else None
    if open_us is None:
        return None
    return NEVER if watermark is None else watermark - open_us


def unmatched(
    spec: OutputSpec, inputs: Inputs, found: Sequence[Row], closed: int | None = None
) -> Unmatched:
    """Compare the rows that a job has written for one group with those that it must have written.

    `inputs`: per input, all rows of the group that were not retracted. `closed`: what `closed_by`
    returned, later rows are not compared.
    """
    ordered = [sorted(rows, key=lambda row: (row.time, row.position)) for rows in inputs]
    if isinstance(spec, ResultSpec):
        return _unmatched_results(spec, ordered[0], found, closed)
    expected = written_rows(spec, ordered)
    names = (*spec.output.names, TOMBSTONE)
    left, right = (Counter(_content(names, row) for row in rows) for rows in (expected, found))
    missing, extra = (
        [dict(zip(names, msgspec.msgpack.decode(each), strict=True)) for each in bag.elements()]
        for bag in (left - right, right - left)
    )
    return Unmatched(missing, extra)


def _unmatched_results(
    spec: ResultSpec, rows: Sequence[InputRow], found: Sequence[Row], closed: int | None
) -> Unmatched:
    """Compare results, of which there is one per time, or per window."""
    field = spec.field if isinstance(spec, WindowsSpec) else None
    expected = {
        _encode([one.time, one.window]): one
        for one in results(spec, rows)
        if closed is None or one.time <= closed
    }
    computed = set(sorted(expected, key=lambda name: blake2b(name).digest())[:COMPUTED_RESULTS])
    differences = Unmatched([], [])
    for row in found:
        time = row[spec.output.timestamp]
        if closed is not None and time > closed:
            continue
        name = _encode([time, None if field is None else row[field]])
        one = expected.pop(name, None)
        if one is None or row[TOMBSTONE]:
            differences.extra.append(row)
        elif name in computed and not _agree(one, row):
            differences.missing.append(_result_row(spec, one))
            differences.extra.append(row)
    differences.missing.extend(_result_row(spec, one) for one in expected.values())
    return differences


def _agree(one: NaiveResult, row: Row) -> bool:
    return all(each.agrees(each.value, row[name]) for name, each in one.compute().items())


def _result_row(spec: ResultSpec, one: NaiveResult) -> Row:
    """Return a result as a row without the columns of its group, for a report."""
    field = {spec.field: one.window} if isinstance(spec, WindowsSpec) else {}
    values = {name: each.value for name, each in one.compute().items()}
    return {**field, **values, spec.output.timestamp: one.time}


def _content(names: Sequence[str], row: Row) -> bytes:
    values: list[Any] = [row[name] for name in names]
    return _encode(values)


def written_rows(spec: OutputSpec, ordered: Inputs) -> list[Row]:
    """Return the rows that the job must have written for one group, in no particular order.

    `ordered`: per input, all rows of the group that were not retracted, by time and position.
    """
    assert not isinstance(spec, ResultSpec), "results are compared one by one"
    if not ordered[0]:
        return []
    match spec:
        case JoinSpec(left=left):
            return (_joined_intervals if has_validity(left) else _joined)(spec, *ordered)
        case DedupSpec(window=window):
            pairs = zip(ordered[0], [*ordered[0][1:], None], strict=True)
            return [
                _row(row)
                for row, following in pairs
                if following is None or not _duplicates(window, row.time, following.time)
            ]
        case FirstLatestSpec(first=first):
            return [_row(row) for row in (ordered[0][:1] if first else ordered[0])]
        case IntervalsSpec():
            return _intervals(ordered[0])
        case ChangelogSpec():
            return _events(spec, ordered[0])
        case unreachable:
            assert_never(unreachable)


def output_row(row: InputRow) -> Row:
    """Return a written row in the form of `written_rows`."""
    return _row(row)


def _row(row: InputRow, **changes: Any) -> Row:
    return {**row.values, TOMBSTONE: row.is_tombstone, **changes}


def _joined(spec: JoinSpec, left: Sequence[InputRow], right: Sequence[InputRow]) -> list[Row]:
    rows = []
    for one in left:
        seen = [other for other in right if other.time <= one.time + spec.high_us]
        last = seen[-1] if seen and not seen[-1].is_tombstone else None
        if last is not None and spec.low_us is not None and last.time < one.time - spec.low_us:
            last = None
        if last is not None or not spec.inner:
            found = {name: last and last.values[name] for name in spec.right_values}
            rows.append(_row(one, **found))
    return rows


def _joined_intervals(
    spec: JoinSpec, left: Sequence[InputRow], right: Sequence[InputRow]
) -> list[Row]:
    """Return the versions of left rows that are valid for an interval: one where a row begins and
    one wherever the right side changes, and a tombstone where there is no row any more.
    """
    valid = _valid(right)
    changes = [row.time for row in valid]
    time = spec.output.timestamp
    rows: list[Row] = []
    for one in left:
        if one.valid_to is not None and one.valid_to <= one.time:
            continue
        first = bisect_right(changes, one.time)
        inside = [row for row in valid[first:] if one.valid_to is None or row.time < one.valid_to]
        gone = {name: one.values[name] for name in spec.output.key_names} | {TOMBSTONE: True}
        nothing = dict.fromkeys(spec.output.value_names)
        there = False
        for at, match in [(one.time, valid[first - 1] if first else None)] + [
            (row.time, row) for row in inside
        ]:
            last = None if match is None or match.is_tombstone else match
            if last is not None or not spec.inner:
                found = {name: last and last.values[name] for name in spec.right_values}
                rows.append(_row(one, **{**found, time: at}))
                there = True
            elif there:
                rows.append({**nothing, **gone, time: at})
                there = False
        if there and one.valid_to is not None:
            rows.append({**nothing, **gone, time: one.valid_to})
    return rows


def tombstones_of(left: InputRow) -> bytes:
    """Return the position of the tombstones that end a left row of a table-table join: it is less
    than that of every row, so that a row that begins at the same time wins.
    """
    return b"\x00" + left.position


def _duplicates(window: wire.Window | None, earlier: int, later: int) -> bool:
    match window:
        case None:
            return earlier == later
        case wire.Session(gap_us):
            return later - earlier < gap_us
        case wire.Tumbling(duration_us):
            size = duration_us // SECOND
            return earlier // SECOND // size == later // SECOND // size
        case _:
            raise AssertionError("the compiler refuses other windows of a dedup")


def _valid(rows: Sequence[InputRow]) -> list[InputRow]:
    """Return the versions of a key that are ever valid: the last of each time."""
    return list({row.time: row for row in rows}.values())


def _intervals(rows: Sequence[InputRow]) -> list[Row]:
    valid = _valid(rows)
    ends = [*(row.time for row in valid[1:]), None]
    return [
        _row(row, **{VALID_TO: end})
        for row, end in zip(valid, ends, strict=True)
        if not row.is_tombstone
    ]


def _events(spec: ChangelogSpec, rows: Sequence[InputRow]) -> list[Row]:
    events: list[Row] = []
    old: InputRow | None = None
    for row in _valid(rows):
        if old is not None and not old.is_tombstone:
            moved = {spec.input.timestamp: row.time, spec.kind_column: spec.deletes}
            events.append(_row(old, **moved))
        if not row.is_tombstone:
            events.append(_row(row, **{spec.kind_column: not spec.deletes}))
        old = row
    return events
