"""Run compiled expressions over a frame, and report the rows that failed.

Theory. Compilation is separate from execution, because a job compiles once and runs for every
batch. `CompiledExpressions` holds the value and the checks of every column; a run computes all of
them in one pass over the *input* frame (no expression reads another's result, as in the client's
assign). A null in a column that is not Optional is one more check, the last. `attempt` returns a
result for every row, `evaluate` for all rows or none.

Example: the column `n`, the int in text `s`, over rows "1" and "x". `attempt` returns `n` as 1 and
null, and a `RowFailure` of row 1; `evaluate` raises `EvaluationFailed`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import polars as pl

from fennel_core.expressions.compiler import Compiler
from fennel_core.expressions.errors import NULL_IN_NON_OPTIONAL, EvaluationFailed, RowFailure
from fennel_core.expressions.infer import expect_declared
from fennel_core.expressions.scope import NameScope
from fennel_core.expressions.terms import RowCheck, Term
from fennel_core.expressions.type_lattice import polars_type
from fennel_core.vocab.dtypes import Dtype, is_optional
from fennel_core.wire.expr import Expr

CHECK_PREFIX = "\0check"
"""Prefix of check columns during a run; a client's column cannot start with NUL."""
MAX_VALUE_CHARS = 200
"""Characters of an offending value kept in a failure.

Enough to find the value, too few for one document to fill the dead-letter table.
"""


@dataclass(frozen=True, slots=True)
class CompiledColumn:
    """One compiled expression: `value` in the layout of `dtype`, null where a row fails."""

    name: str
    value: pl.Expr
    dtype: Dtype
    checks: tuple[RowCheck, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of a run.

    `failed` is a Boolean series over the frame; `failures` holds the first failure of each failed
    row, in row order.
    """

    frame: pl.DataFrame
    failed: pl.Series
    failures: tuple[RowFailure, ...]


@dataclass(frozen=True, slots=True)
class CompiledExpressions:
    """Expressions that one run adds to a frame as columns."""

    columns: tuple[CompiledColumn, ...]

    def attempt(self, frame: pl.DataFrame) -> Evaluation:
        """Return `frame` with the columns added or replaced, and the rows that failed.

        The cells of a failed row are undefined.
        """
        checks = [(column, check) for column in self.columns for check in column.checks]
        flags = {f"{CHECK_PREFIX}{i}": check.failed for i, (_, check) in enumerate(checks)}
        stages = {
            stage.name: stage.value for _, check in checks if (stage := check.stage) is not None
        }
        staged = frame
        for name, value in stages.items():
            staged = staged.with_columns(value.alias(name))
        wide = (
            staged.lazy().with_columns(**{c.name: c.value for c in self.columns}, **flags).collect()
        )
        checked = [(c, check, wide[flag]) for flag, (c, check) in zip(flags, checks, strict=True)]
        failing = [
            (c, check, flag.fill_null(value=False)) for c, check, flag in checked if flag.any()
        ]
        extra = flags.keys() | stages.keys()
        result = wide[[name for name in wide.columns if name not in extra]] if extra else wide
        nulls = dict(zip(result.columns, result.null_count().row(0), strict=True))
        failing += [
            (c, _null_check(c), result[c.name].is_null())
            for c in self.columns
            if nulls[c.name] and not is_optional(c.dtype)
        ]
        if not failing:
            return Evaluation(
                result,
                pl.Series("failed", [False], dtype=pl.Boolean).new_from_index(0, frame.height),
                (),
            )
        return Evaluation(
            result, _any_of([flag for _, _, flag in failing]), _failures(staged, failing)
        )

    def evaluate(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return `frame` with the columns added or replaced.

        Raises `EvaluationFailed` if any row fails.
        """
        evaluation = self.attempt(frame)
        if evaluation.failures:
            raise EvaluationFailed(evaluation.failures[0], evaluation.failed)
        return evaluation.frame


_CheckedRows = tuple[CompiledColumn, RowCheck, pl.Series]


def _null_check(column: CompiledColumn) -> RowCheck:
    return RowCheck(
        column.value.is_null(), pl.lit(None, dtype=pl.String), "null-value", NULL_IN_NON_OPTIONAL
    )


def _any_of(flags: list[pl.Series]) -> pl.Series:
    return reduce(operator.or_, flags).alias("failed")


def _failures(frame: pl.DataFrame, failing: list[_CheckedRows]) -> tuple[RowFailure, ...]:
    """Return the first failure of each failed row.

    Checks are in the order of evaluation, so a null that results from a failed check is not
    reported as the cause.
    """
    reasons: dict[int, RowFailure] = {}
    for column, check, flag in failing:
        rows = [row for row in flag.arg_true().to_list() if row not in reasons]
        values = (
            frame[rows].with_columns(check.operand.alias(CHECK_PREFIX))[CHECK_PREFIX].to_list()
            if rows
            else []
        )
        for row, operand in zip(rows, values, strict=True):
            value = None if operand is None else str(operand)[:MAX_VALUE_CHARS]
            reasons[row] = RowFailure(column.name, row, check.code, check.text, value)
    return tuple(reasons[row] for row in sorted(reasons))


def compile_columns(
    exprs: Mapping[str, tuple[Expr, Dtype]],
    schema: Mapping[str, Dtype],
    *,
    now: pl.Expr | None = None,
) -> CompiledExpressions:
    """Compile columns to add or replace, each cast to its declared type.

    Raises `InvalidExpression` for the first expression that is ill typed or does not fit its
    declaration.
    """
    compiler = Compiler(NameScope(schema), now, staged=True)
    return CompiledExpressions(
        tuple(
            _column(name, compiler.term(expr), declared) for name, (expr, declared) in exprs.items()
        )
    )


def _column(name: str, term: Term, declared: Dtype | None) -> CompiledColumn:
    if declared is not None:
        expect_declared(term.dtype, declared)
    dtype = term.dtype if declared is None else declared
    value = term.to(dtype)
    return CompiledColumn(
        name,
        value.fill_nan(None) if polars_type(dtype) == pl.Float64 else value,
        dtype,
        term.checks,
    )
