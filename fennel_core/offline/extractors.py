"""Run user code over a batch of rows, each as of its own time.

User code is given many rows at once, because a call costs more than a row. When a call fails, its
rows are halved and tried again, until the rows that fail are known: online each of them would fail
alone. A program whose user code may look datasets up is refused, because the keys of such lookups
are known only while the code runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Protocol

import polars as pl
import pyarrow as pa

from fennel_core.executors.calls import ExtractCall
from fennel_core.executors.code_cache import USER_FILE
from fennel_core.executors.errors import (
    CallFailed,
    ExecutorCrashed,
    ExecutorOutOfMemory,
    ExecutorTimeout,
    UserCodeFailed,
)
from fennel_core.executors.protocol import TS
from fennel_core.offline.errors import ExtractorNotOffline
from fennel_core.offline.rows import AT, RowFailures, failed_rows, register, without
from fennel_core.query.columns import logical_type
from fennel_core.query.program import BoundExtractor, QueryProgram

CALL_ROWS: Final = 5_000
ROWS_AT_FAULT: Final = (UserCodeFailed, ExecutorCrashed, ExecutorTimeout, ExecutorOutOfMemory)
"""Failures that other rows may not have; the others concern the code or the executors."""

_USER_LINE: Final = re.compile(rf'File "{re.escape(USER_FILE)}", line (\d+), in (.+)\n(.*)')


class ExtractorRunner(Protocol):
    """Runs one call of an extractor, confined as online."""

    def run(self, call: ExtractCall, rows: pa.Table) -> pl.DataFrame:
        """Return the columns of `call.outputs`, row for row.

        Raises `CallFailed`, with the text and the line of user code.
        """
        ...


def check_extractors(program: QueryProgram) -> None:
    """Raise `ExtractorNotOffline` for user code that may look a dataset up."""
    for level in program.levels:
        for step in level.extractors:
            call = step.call
            if call.datasets:
                raise ExtractorNotOffline(
                    f"extractor `{call.featureset}.{call.extractor}` may look up "
                    f"{', '.join(f'`{name}`' for name in call.datasets)} from its code, which is "
                    "not possible offline. Declare the lookup as a feature and read that feature"
                )


def extract(
    rows: pl.DataFrame, step: BoundExtractor, runner: ExtractorRunner
) -> tuple[pl.DataFrame, RowFailures]:
    """Return the rows with the registers that an extractor fills, and the rows on which it
    failed.
    """
    results: list[pl.DataFrame] = []
    failures = [failed_rows()]
    for batch in rows.iter_slices(CALL_ROWS):
        for part, outcome in _attempts(batch, step, runner):
            if isinstance(outcome, CallFailed):
                reason = pl.lit(_reason(outcome)).alias("__reason")
                failures.append(failed_rows(part.with_columns(reason), "__reason"))
            else:
                results.append(outcome)
    failed = pl.concat(failures)
    if not results:
        types = {out: logical_type(step.call.outputs[place].dtype) for place, out in step.keep}
        empty = [pl.Series(register(out), [], dtype=dtype) for out, dtype in types.items()]
        return rows.clear().with_columns(empty), failed
    made = pl.concat(results)
    columns = [made[step.call.outputs[place].name].alias(register(out)) for place, out in step.keep]
    return without(rows, failed).with_columns(columns), failed


def _attempts(
    batch: pl.DataFrame, step: BoundExtractor, runner: ExtractorRunner
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame | CallFailed]]:
    """Yield runs of rows in order with their results; a run that failed has one row."""
    waiting = [batch]
    while waiting:
        rows = waiting.pop()
        try:
            made = runner.run(step.call, _table(rows, step))
        except ROWS_AT_FAULT as failed:
            if rows.height == 1:
                yield rows, failed
                continue
            half = rows.height // 2
            waiting += [rows[half:], rows[:half]]
        else:
            assert made.height == rows.height, "an extractor returns a row per input row"
            yield rows, made


def _reason(failed: CallFailed) -> str:
    """Return the message, with the line of user code that raised if it is known."""
    trace = failed.traceback if isinstance(failed, UserCodeFailed) else ""
    lines = _USER_LINE.findall(trace)
    if not lines:
        return str(failed)
    number, function, code = lines[-1]
    return f"{str(failed).rstrip()} Line {number}, in {function}: {code.strip()}"


def _table(rows: pl.DataFrame, step: BoundExtractor) -> pa.Table:
    columns = [rows[AT], *(rows[register(place)] for place in step.inputs)]
    arrays = [column.to_arrow(compat_level=pl.CompatLevel.oldest()) for column in columns]
    # Not a dict: an input may occur twice.
    return pa.Table.from_arrays(arrays, [TS, *(field.name for field in step.call.inputs)])
