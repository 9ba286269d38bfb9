"""The naive step: the rows that a job must have written for one group, from all its input rows.

Theory. The rows that a step reads for a row share a group with it: the columns by which its inputs
are partitioned. So the output of a group is a function of the rows of the group, and the written
rows that were not retracted must be equal to it as a bag. Steps that close windows by event time
are not here, because when a window closes depends on rows of other groups; nor are expressions and
user code, which have no other definition than their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, assert_never

from fennel_core.integrity.naive_values import SECOND, InputRow
from fennel_core.operators.spec import (
    VALID_TO,
    ChangelogSpec,
    DedupSpec,
    FirstLatestSpec,
    IntervalsSpec,
    JoinSpec,
    StepSpec,
    has_validity,
)
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire

OutputSpec = JoinSpec | DedupSpec | FirstLatestSpec | IntervalsSpec | ChangelogSpec
"""The specifications of jobs whose written rows are compared."""
Inputs = Sequence[Sequence[InputRow]]
Row = dict[str, Any]
TOMBSTONE: Final = "(tombstone)"


def compared_spec(spec: StepSpec) -> OutputSpec | None:
    """Return the specification as one whose output is compared; None for others."""
    if isinstance(spec, JoinSpec) and has_validity(spec.left):
        return None
    return spec if isinstance(spec, OutputSpec) else None


def groups_of(spec: OutputSpec) -> tuple[tuple[Schema, tuple[str, ...]], ...]:
    """Return, per input, its schema and the columns of a group."""
    match spec:
        case JoinSpec(left=left, right=right, left_on=left_on):
            return (left, left_on), (right, right.key_names)
        case DedupSpec(input=rows, by=by):
            return ((rows, by),)
        case FirstLatestSpec(input=rows, keys=keys):
            return ((rows, keys),)
        case IntervalsSpec(input=rows) | ChangelogSpec(input=rows):
            return ((rows, rows.key_names),)
        case unreachable:
            assert_never(unreachable)


def written_rows(spec: OutputSpec, inputs: Inputs) -> list[Row]:
    """Return the rows that the job must have written for one group, in no particular order.

    `inputs`: per input, all rows of the group that were not retracted.
    """
    ordered = [sorted(rows, key=lambda row: (row.time, row.position)) for rows in inputs]
    if not ordered[0]:
        return []
    match spec:
        case JoinSpec():
            return _joined(spec, *ordered)
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
