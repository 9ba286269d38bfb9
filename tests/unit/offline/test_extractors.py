"""User code over many rows: which rows fail, and what is refused."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from fennel_core.executors.calls import MOST_EACH_ROWS, ExtractCall
from fennel_core.executors.code_cache import USER_FILE
from fennel_core.executors.errors import (
    CallFailed,
    ExecutorTimeout,
    ExecutorUnavailable,
    UserCodeFailed,
)
from fennel_core.offline import extractors
from fennel_core.offline.code_lookups import CallLookups
from fennel_core.offline.errors import LookupNotOffline
from fennel_core.offline.extractors import extract
from fennel_core.offline.rows import AT, REASON, ROW, register
from fennel_core.offline.sources import source_of
from fennel_core.operators.spec import ChangelogSpec
from fennel_core.query.program import BoundExtractor
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.schema import Schema
from tests.support.each_row import EachRow
from tests.support.featuresets import CODE

CALL = ExtractCall(CODE, "F", "double", (Field("F.x", Int()),), (Field("F.y", Int()),), ())
STEP = BoundExtractor(CALL, (0,), ((0, 1),))
TRACE = f"""Traceback (most recent call last):
  File "{USER_FILE}", line 3, in double
    inner(x)
  File "{USER_FILE}", line 7, in inner
    raise ValueError(x)
  File "pandas/core.py", line 9, in deep
    x
ValueError: -40
"""


class Doubling(EachRow):
    """Fails on negative rows, and with `failure` on every call if given."""

    def __init__(self, failure: CallFailed | None = None) -> None:
        self.failure, self.calls = failure, 0

    def run(self, call: ExtractCall, rows: pa.Table, lookups: CallLookups | None) -> pl.DataFrame:
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        values = rows.column("F.x").to_pylist()
        for value in values:
            if value < 0:
                trace = TRACE if value == -40 else ""
                raise UserCodeFailed(f"F.double: {value} is negative. ", "F.double", "", trace)
        return pl.DataFrame({call.outputs[0].name: [2 * value for value in values]})


def batch(values: list[int]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            ROW: pl.Series(range(100, 100 + len(values)), dtype=pl.Int64),
            AT: pl.Series([0] * len(values), dtype=pl.Int64).cast(pl.Datetime("us", "UTC")),
            register(0): values,
        }
    )


def test_only_the_rows_on_which_user_code_raises_fail() -> None:
    values = list(range(64))
    values[5], values[40] = -5, -40
    runner = Doubling()

    rows, failures = extract(batch(values), STEP, runner)

    assert failures.rows() == [
        (105, "F.double: -5 is negative. "),
        (140, "F.double: -40 is negative. Line 7, in inner: raise ValueError(x)"),
    ]
    assert failures.columns == [ROW, REASON]
    good = [(100 + n, 2 * value) for n, value in enumerate(values) if value >= 0]
    assert rows.select(ROW, register(1)).rows() == good
    assert runner.calls <= 1 + 2 * 2 * 6 + 64


class InOneExchange(Doubling):
    """Counts the calls with each row alone as one."""

    def failing_rows(self, call: ExtractCall, rows: pa.Table) -> list[tuple[int, CallFailed]]:
        before = self.calls
        found = super().failing_rows(call, rows)
        self.calls = before + 1
        return found


def test_code_that_fails_on_every_row_needs_few_exchanges_with_the_executors() -> None:
    values = [-n for n in range(1, extractors.CALL_ROWS + 1)]
    runner = InOneExchange()

    rows, failures = extract(batch(values), STEP, runner)

    assert rows.is_empty()
    assert failures.get_column(ROW).to_list() == list(range(100, 100 + len(values)))
    smallest = MOST_EACH_ROWS // 2
    assert runner.calls <= 6 * len(values) / smallest


class Together(Doubling):
    """Fails on two rows or more, and never on one."""

    def run(self, call: ExtractCall, rows: pa.Table, lookups: CallLookups | None) -> pl.DataFrame:
        if len(rows) > 1:
            raise UserCodeFailed("F.double: it takes one row. ", "F.double", "", "")
        return super().run(call, rows, lookups)


def test_rows_that_fail_only_together_are_called_alone() -> None:
    rows, failures = extract(batch(list(range(100))), STEP, Together())
    assert failures.is_empty()
    assert rows.get_column(register(1)).to_list() == [2 * n for n in range(100)]


class Slow(Doubling):
    """Has no time for more than ten rows."""

    def failing_rows(self, call: ExtractCall, rows: pa.Table) -> list[tuple[int, CallFailed]]:
        if len(rows) > 10:
            raise ExecutorTimeout("the code of `F.double` was stopped", "F.double")
        return super().failing_rows(call, rows)


def test_rows_that_take_too_long_one_after_the_other_are_halved() -> None:
    values = [n if n % 7 else -1 for n in range(100)]
    rows, failures = extract(batch(values), STEP, Slow())
    assert failures.get_column(ROW).to_list() == [100 + n for n in range(0, 100, 7)]
    assert rows.height == len(values) - failures.height


def test_a_batch_without_a_good_row_has_the_columns() -> None:
    rows, failures = extract(batch([-1, -2]), STEP, Doubling())
    assert rows.height == 0
    assert rows.schema[register(1)] == pl.Int64()
    assert failures.height == 2


def test_large_batches_are_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extractors, "CALL_ROWS", 10)
    runner = Doubling()
    rows, _ = extract(batch(list(range(25))), STEP, runner)
    assert rows[register(1)].to_list() == [2 * n for n in range(25)]
    assert runner.calls == 3


def test_a_failure_that_no_row_causes_is_not_tried_again() -> None:
    runner = Doubling(ExecutorUnavailable("no worker", "F.double"))
    with pytest.raises(ExecutorUnavailable):
        extract(batch([1, 2, 3]), STEP, runner)
    assert runner.calls == 1


def test_a_job_that_serves_no_lookups_is_refused() -> None:
    keyed = Schema((Field("k", Str()),), (), "t")
    spec = ChangelogSpec(keyed, "kind", True, keyed)
    with pytest.raises(LookupNotOffline, match="job `j` is a ChangelogSpec"):
        source_of(spec, [0], "j")
