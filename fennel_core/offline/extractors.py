"""Run user code over a batch of rows, each as of its own time.

User code is given many rows at once, because a call costs more than a row. When a call fails, its
rows are halved and tried again; a few rows are then called each alone in one exchange with the
executor, so code that fails on every row does not need an exchange for each. Online each of them
would fail alone. Rows of a call that looks datasets up may wait for what it asked for
(`code_lookups`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import polars as pl
import pyarrow as pa

from fennel_core.executors.calls import MOST_EACH_ROWS, ExtractCall
from fennel_core.executors.code_cache import USER_FILE
from fennel_core.executors.errors import (
    CallFailed,
    ExecutorCrashed,
    ExecutorOutOfMemory,
    ExecutorTimeout,
    UserCodeFailed,
)
from fennel_core.executors.protocol import TS
from fennel_core.offline.code_lookups import (
    MOST_ANSWERS,
    TOO_LARGE,
    Answers,
    CallLookups,
)
from fennel_core.offline.errors import CallInterrupted
from fennel_core.offline.rows import AT, ROW, RowFailures, failed_rows, register
from fennel_core.query.columns import logical_type
from fennel_core.query.program import BoundExtractor

CALL_ROWS: Final = 5_000
MOST_ROUNDS: Final = 64
"""Lookups that code may make one after the other for a row: each costs a round, which reads the
datasets again. Code that asks for other rows in each call would need rounds without end.
"""
ROUNDS_TOGETHER: Final = 3
"""Rounds in which rows are called together. Code that still asks may loop over its rows, and asks
for all of them at once when each is called alone.
"""
ROWS_AT_FAULT: Final = (UserCodeFailed, ExecutorCrashed, ExecutorTimeout, ExecutorOutOfMemory)
"""Failures that other rows may not have; the others concern the code or the executors."""

_USER_LINE: Final = re.compile(rf'File "{re.escape(USER_FILE)}", line (\d+), in (.+)\n(.*)')


class ExtractorRunner(Protocol):
    """Runs one call of an extractor, confined as online."""

    def run(self, call: ExtractCall, rows: pa.Table, lookups: CallLookups | None) -> pl.DataFrame:
        """Return the columns of `call.outputs`, row for row. `lookups` serves those of its code.

        Raises `CallFailed`, with the text and the line of user code, and what `lookups` raises.
        """
        ...

    def failing_rows(self, call: ExtractCall, rows: pa.Table) -> list[tuple[int, CallFailed]]:
        """Return the rows, at most `MOST_EACH_ROWS`, on which a call with the row alone fails.

        The code makes no lookups. Raises `CallFailed` if a row stops the process that it runs in.
        """
        ...


def extract(
    rows: pl.DataFrame,
    step: BoundExtractor,
    runner: ExtractorRunner,
    answers: Answers | None = None,
    *,
    number: int = 0,
) -> tuple[pl.DataFrame, RowFailures]:
    """Return the rows with the registers that an extractor fills, and the rows on which it
    failed.

    `answers`: what its lookups have read before round `number`. Rows that are in neither frame
    wait for what it wants now; after `MOST_ROUNDS` none does.
    """
    types = {out: logical_type(step.call.outputs[place].dtype) for place, out in step.keep}
    results = [pl.DataFrame(schema={ROW: pl.Int64(), **_registers(types)})]
    failures = [failed_rows()]
    for batch in rows.iter_slices(CALL_ROWS):
        for part, outcome in _attempts(batch, _Calls(step, runner, answers, number)):
            match outcome:
                case CallFailed():
                    reason = pl.lit(_reason(outcome)).alias("__reason")
                    failures.append(failed_rows(part.with_columns(reason), "__reason"))
                case pl.DataFrame():
                    made = {register(out): outcome[name] for name, out in _kept(step)}
                    results.append(part.select(ROW).with_columns(**made))
                case _Waits():
                    pass
    made_rows = pl.concat(results)
    without_outputs = rows.drop(_registers(types), strict=False)
    done = without_outputs.join(made_rows, on=ROW, how="inner", maintain_order="left")
    return done, pl.concat(failures)


def _registers(types: Mapping[int, pl.DataType]) -> dict[str, pl.DataType]:
    return {register(out): dtype for out, dtype in types.items()}


def _kept(step: BoundExtractor) -> Iterator[tuple[str, int]]:
    """Yield the names of the columns of a result that are kept, and their registers."""
    return ((step.call.outputs[place].name, out) for place, out in step.keep)


class _Waits:
    """A call asked for rows that are not known yet."""


class _Alone:
    """The rows of a call must be called one by one."""


class _Fewer:
    """A call must be repeated with fewer rows."""


class _ByTime:
    """A call must be repeated with rows of one time each."""


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls an extractor with rows."""

    step: BoundExtractor
    runner: ExtractorRunner
    answers: Answers | None
    number: int

    def call(
        self, rows: pl.DataFrame
    ) -> pl.DataFrame | CallFailed | _Waits | _ByTime | _Alone | _Fewer:
        """Return the result of a call, or why it has none."""
        lookups = None
        if self.answers is not None:
            lookups = CallLookups(self.step, self.answers, rows[AT])
        outcome: pl.DataFrame | CallFailed | _Waits
        try:
            outcome = self.runner.run(self.step.call, _table(rows, self.step), lookups)
        except ROWS_AT_FAULT as failed:
            outcome = failed
        except CallInterrupted:
            outcome = _Waits()
        if lookups is None or self.answers is None:
            return outcome
        if lookups.unclear:
            return _ByTime()
        if lookups.large:
            return _Fewer() if rows.height > 1 else self._failure(_too_large(self.answers))
        # What code does after a lookup that was not answered counts for nothing.
        if not lookups.missing:
            return outcome
        if self.number >= ROUNDS_TOGETHER and rows.height > 1:
            return _Alone()
        if self.number >= MOST_ROUNDS:
            return self._failure(
                f"it asks for other rows of {_names(lookups)} after {MOST_ROUNDS} rounds of "
                "lookups. Ask for the same rows whenever it is called with the same rows, and make "
                f"at most {MOST_ROUNDS} lookups for a row"
            )
        if not self.answers.fits(lookups):
            return self._failure(
                f"its lookups in {_names(lookups)} and those of the rows beside it are more than "
                f"{MOST_ANSWERS}. Ask for fewer rows at a time"
            )
        self.answers.want(lookups)
        return _Waits()

    def failing_rows(self, rows: pl.DataFrame) -> dict[int, CallFailed]:
        """Return the rows that fail alone, without those that are not known yet."""
        if rows.height > MOST_EACH_ROWS or self.answers is not None:
            return {}
        try:
            return dict(self.runner.failing_rows(self.step.call, _table(rows, self.step)))
        except ROWS_AT_FAULT:
            return {}

    def runs(self, *parts: pl.DataFrame) -> bool:
        """Return whether a call with one of the parts succeeds."""
        return any(isinstance(self.call(rows), pl.DataFrame) for rows in parts)

    def _failure(self, text: str) -> CallFailed:
        call = self.step.call
        name = f"{call.featureset}.{call.extractor}"
        return UserCodeFailed(f"Extractor `{name}`: {text}. ", name, text, "")


def _too_large(answers: Answers) -> str:
    """Return why a row fails whose lookups find more than one call may get."""
    return f"what its lookups find for one row has {TOO_LARGE.format(answers.most_bytes)}"


def _names(lookups: CallLookups) -> str:
    return ", ".join(f"`{name}`" for name in lookups.missing)


def _attempts(
    batch: pl.DataFrame, calls: _Calls
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame | CallFailed | _Waits]]:
    """Yield runs of rows with their results; a run that failed has one row."""
    waiting = [batch]
    while waiting:
        rows = waiting.pop()
        match calls.call(rows):
            case CallFailed() as failed if rows.height > 1:
                half = rows.height // 2
                failing = calls.failing_rows(rows) if isinstance(failed, UserCodeFailed) else {}
                if len(failing) == rows.height > 2 and calls.runs(rows[:half], rows[half:]):
                    failing = {}  # Code that cannot be called with one row.
                if failing:
                    yield from ((rows[number], why) for number, why in failing.items())
                    rest = rows.filter(~pl.int_range(pl.len()).is_in(list(failing)))
                    waiting += [rest] if rest.height else []
                else:
                    waiting += [rows[half:], rows[:half]]
            case _Alone():
                waiting += reversed(list(rows.iter_slices(1)))
            case _Fewer():
                half = rows.height // 2
                waiting += [rows[half:], rows[:half]]
            case _ByTime():
                waiting += reversed(rows.partition_by(AT, maintain_order=True))
            case outcome:
                same = not isinstance(outcome, pl.DataFrame) or outcome.height == rows.height
                assert same, "an extractor returns a row per input row"
                yield rows, outcome


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
