"""Run a job's user code in an executor and turn its result into signed versions.

Theory. User code is never fused into a stateful step: its output is a topic of its own, so replay
never runs user code. If the code raises, the batch is halved until it is small enough to call the
code with each row alone, in one exchange. The failing rows become dead letters with the reason, and
the other rows continue. A crash, a time-out or a failed
import does not belong to any row, so it is raised and parks the job. On a keyed dataset a row that
a filter rejects becomes a tombstone, so that its key is deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import polars as pl
import pyarrow as pa

from fennel_core.executors.calls import (
    MOST_EACH_ROWS,
    AssignCall,
    EachRowCall,
    ExecutorCall,
    FilterCall,
    RowCall,
    TransformCall,
)
from fennel_core.executors.errors import CallFailed, ExecutorUnavailable, UserCodeFailed
from fennel_core.executors.results import failures_of, frame_of
from fennel_core.operators.spec import UserCodeSpec
from fennel_core.operators.step import DeadRows, Outcome, OutputBatch
from fennel_core.vocab.versions import IS_TOMBSTONE, META

ExecutorRun = Callable[[ExecutorCall, pl.DataFrame], Awaitable[pa.Table]]
ROW = "__row"


def executor_call(spec: UserCodeSpec, entity: str) -> RowCall:
    """Return the executor call of a user code step."""
    match spec.kind:
        case "transform":
            return TransformCall(spec.code, entity, spec.input.fields, spec.output.fields)
        case "filter":
            return FilterCall(spec.code, entity, spec.input.fields)
        case "assign":
            assert spec.column is not None, "an assign names its column"
            return AssignCall(spec.code, entity, spec.input.fields, spec.column)
        case other:
            raise ValueError(
                f"unknown kind of user code `{other}`; valid kinds: transform, filter, assign"
            )


async def run_user_code(
    run: ExecutorRun, spec: UserCodeSpec, entity: str, batch: pl.DataFrame
) -> Outcome:
    """Run the user code over a batch of signed versions.

    Raises the executor's errors, except those that a single row causes.
    """
    call = executor_call(spec, entity)
    deleted = batch.filter(pl.col(IS_TOMBSTONE))
    good, dead = await _processed(run, call, batch.filter(~pl.col(IS_TOMBSTONE)), spec)
    tombstones = [_tombstones(spec, deleted)] if len(deleted) else []
    emitted = [frame for frame in (*good, *tombstones) if len(frame)]
    emits = (OutputBatch(0, pl.concat(emitted, how="vertical")),) if emitted else ()
    return Outcome(emits=emits, dead=tuple(dead))


async def _processed(
    run: ExecutorRun, call: RowCall, rows: pl.DataFrame, spec: UserCodeSpec
) -> tuple[list[pl.DataFrame], list[DeadRows]]:
    if rows.is_empty():
        return [], []
    try:
        return [_rows(call, spec, rows, await run(call, rows.drop(META)))], []
    except UserCodeFailed as raised:
        if len(rows) == 1:
            return [], [DeadRows(str(raised), rows)]
    failing = await _failing_rows(run, call, rows)
    middle = len(rows) // 2
    if len(failing) == len(rows) > 2 and await _runs(run, call, rows[:middle], rows[middle:]):
        failing = {}  # Code that cannot be called with one row.
    if failing:
        rest = rows.filter(~pl.int_range(pl.len()).is_in(list(failing)))
        good, dead = await _processed(run, call, rest, spec)
        return good, [DeadRows(str(why), rows[row]) for row, why in failing.items()] + dead
    left, left_dead = await _processed(run, call, rows[:middle], spec)
    right, right_dead = await _processed(run, call, rows[middle:], spec)
    return left + right, left_dead + right_dead


async def _failing_rows(
    run: ExecutorRun, call: RowCall, rows: pl.DataFrame
) -> dict[int, CallFailed]:
    """Return the rows that fail alone; empty if there are too many to call each."""
    if len(rows) > MOST_EACH_ROWS:
        return {}
    each = EachRowCall(call)
    try:
        return dict(failures_of(each, await run(each, rows.drop(META))))
    except CallFailed as failed:
        if isinstance(failed, ExecutorUnavailable):
            raise
        return {}  # fewer rows at once may be in time and in memory


async def _runs(run: ExecutorRun, call: RowCall, *parts: pl.DataFrame) -> bool:
    """Return whether a call with one of the parts succeeds."""
    for rows in parts:
        with suppress(UserCodeFailed):
            await run(call, rows.drop(META))
            return True
    return False


def _rows(
    call: RowCall, spec: UserCodeSpec, rows: pl.DataFrame, returned: pa.Table
) -> pl.DataFrame:
    result = frame_of(call, returned)
    match call:
        case TransformCall():
            order = result.get_column(ROW)
            return result.drop(ROW).select(spec.output.names).hstack(rows.select(META)[order])
        case FilterCall():
            kept = rows[result.get_column(ROW)]
            if not spec.output.keyed:
                return kept
            rejected = (
                rows.with_row_index(ROW)
                .filter(~pl.col(ROW).is_in(result.get_column(ROW).implode()))
                .drop(ROW)
            )
            return pl.concat([kept, _tombstones(spec, rejected)], how="vertical")
        case AssignCall(column=column):
            return rows.with_columns(result.get_column(column.name)).select(
                *spec.output.names, *META
            )
        case other:
            raise AssertionError(f"a pipeline has no call of {other.extractor}")


def _tombstones(spec: UserCodeSpec, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows' keys, times and positions in the output's schema, with null values."""
    empty = pl.DataFrame(pl.from_arrow(spec.output.arrow().empty_table())).schema
    values = [pl.lit(None, dtype=empty[name]).alias(name) for name in spec.output.value_names]
    absent = rows.with_columns(*values, pl.lit(True).alias(IS_TOMBSTONE))
    return absent.select(*spec.output.names, *META)
