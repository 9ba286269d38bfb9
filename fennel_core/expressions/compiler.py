"""Compile an expression to a Polars expression: one walk, one small function per family.

Theory. The type of every node is known (`infer`), so the walk only chooses Polars functions and
casts operands for them. Conditions under which a row fails are collected as checks. A row fails
only in the branch of a case that it takes. The client's evaluator, which works on whole batches, is
stricter here, but a guard such as `when(x == "").then(null).otherwise(parse(x))` has no other
meaning.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import assert_never

import polars as pl

from fennel_core.expressions import datetimes, lists, numbers, strings, structs
from fennel_core.expressions.errors import InvalidExpression
from fennel_core.expressions.infer import element_of, type_in
from fennel_core.expressions.literals import datetime_value, literal_value
from fennel_core.expressions.references import depends_on_row, variables
from fennel_core.expressions.scope import NameScope
from fennel_core.expressions.terms import RowCheck, Term, fold_constant
from fennel_core.expressions.type_lattice import polars_type
from fennel_core.vocab.dtypes import Bool, Dtype, Null, Str, Timestamp
from fennel_core.wire import expr as wire
from fennel_core.wire.expr import ListFold

STAGE_PREFIX = "\0stage "
"""Prefix of names of staged columns.

The rest of a name is the expression itself, so that equal expressions share a column. A client's
column cannot start with NUL.
"""


@dataclass(frozen=True, slots=True)
class Compiler:
    """Compiles expressions within one scope.

    `now` is the expression of a row's time; None if an expression must not use it. `staged`:
    whether the term may refer to staged columns, which the caller computes first. A single Polars
    expression may not.
    """

    scope: NameScope
    now: pl.Expr | None
    staged: bool = False

    def term(self, expr: wire.Expr) -> Term:
        """Return the term of `expr`; a term that depends on no row is computed at once.

        Raises `InvalidExpression` if `expr` is ill typed.
        """
        result = type_in(self.scope, expr)
        if isinstance(expr, wire.Literal | wire.DatetimeLiteral) or depends_on_row(expr):
            return self._term(expr, result)
        return fold_constant(replace(self, staged=False)._term(expr, result))

    def _term(self, expr: wire.Expr, result: Dtype) -> Term:
        match expr:
            case wire.Ref(name):
                return Term(_column(name, result), result)
            case wire.Var():
                return Term(pl.element(), result)
            case wire.Literal():
                return Term(literal_value(expr), result)
            case wire.DatetimeLiteral():
                return Term(datetime_value(expr), result)
            case wire.Now():
                return Term(self._now(), result)
            case wire.Unary(op, operand):
                return numbers.unary(op, self.term(operand), result)
            case wire.Binary(op, left, right):
                return numbers.binary(op, self.term(left), self.term(right), result)
            case wire.Case(branches, otherwise):
                return self._case(branches, otherwise, result)
            case wire.IsNull(operand):
                term = self.term(operand)
                return Term(term.value.is_null(), result, term.checks)
            case wire.FillNull(operand, fill):
                return self._fill_null(self.term(operand), self.term(fill), result)
            case wire.ListFn(operand, op):
                return self._list(self.term(operand), op, result)
            case wire.MathFn(operand, op):
                exponent = self.term(op.exponent) if isinstance(op, wire.Pow) else None
                return numbers.math(op, self.term(operand), exponent, result)
            case wire.StructGet(operand, field):
                return structs.struct_get(self.term(operand), field, result)
            case wire.DictFn(operand, op):
                return self._dict(self.term(operand), op, result)
            case wire.MakeStruct(struct, fields):
                return structs.make_struct(
                    struct, tuple((name, self.term(value)) for name, value in fields)
                )
            case wire.Zip(struct, fields):
                return lists.zip_lists(
                    struct, tuple((name, self.term(value)) for name, value in fields), result
                )
            case wire.Repeat(operand, count):
                return lists.repeat(self.term(operand), self.term(count), result)
            case wire.StringFn(operand, op):
                stage = f"{STAGE_PREFIX}{expr!r}" if self.staged else None
                return strings.string(
                    op, self.term(operand), self._second_text(op), result, stage=stage
                )
            case wire.DateTimeFn(operand, op):
                other = self.term(op.other) if isinstance(op, wire.Since) else None
                return datetimes.date_time(op, self.term(operand), other, result)
            case wire.FromEpoch(operand, unit):
                return datetimes.from_epoch(self.term(operand), unit, result)
            case unreachable:
                assert_never(unreachable)

    def _now(self) -> pl.Expr:
        if self.now is None:
            raise InvalidExpression(
                "now-missing",
                "now() is not available here: only features have the time of a query. "
                "Use the timestamp column.",
            )
        return self.now.cast(polars_type(Timestamp()))

    def _case(
        self, branches: tuple[wire.WhenThen, ...], otherwise: wire.Expr | None, result: Dtype
    ) -> Term:
        values: list[tuple[pl.Expr, pl.Expr]] = []
        checks: list[RowCheck] = []
        not_taken: pl.Expr = pl.lit(value=True)
        for branch in branches:
            when, then = self.term(branch.when), self.term(branch.then)
            condition = when.to(Bool()).fill_null(value=False)
            checks += [check.guarded(not_taken) for check in when.checks]
            checks += [check.guarded(not_taken & condition) for check in then.checks]
            values.append((condition, then.to(result)))
            not_taken = not_taken & ~condition
        last = Term(pl.lit(None), Null()) if otherwise is None else self.term(otherwise)
        checks += [check.guarded(not_taken) for check in last.checks]
        value = last.to(result)
        for condition, then_value in reversed(values):
            value = pl.when(condition).then(then_value).otherwise(value)
        return Term(value, result, tuple(checks))

    def _fill_null(self, operand: Term, fill: Term, result: Dtype) -> Term:
        value = operand.to(result)
        checks = (*operand.checks, *(check.guarded(value.is_null()) for check in fill.checks))
        return Term(pl.coalesce(value, fill.to(result)), result, checks)

    def _list(self, operand: Term, op: wire.ListOp, result: Dtype) -> Term:
        element = element_of("", operand.dtype)
        match op:
            case ListFold():
                return lists.fold(op, operand, result)
            case wire.ListGet(index):
                return lists.get(operand, self.term(index), result)
            case wire.ListContains(item):
                return lists.contains(operand, element, self.term(item), result)
            case wire.ListFilter(var, predicate):
                return lists.filter_elements(
                    operand, self._inside(var, element).term(predicate), result
                )
            case wire.ListMap(var, body):
                return lists.map_elements(
                    operand,
                    self._inside(var, element).term(body),
                    result,
                    constant=var not in variables(body),
                )
            case unreachable:
                assert_never(unreachable)

    def _inside(self, var: str, element: Dtype) -> Compiler:
        # Without staging: a staged column has one value per row, not per list element.
        return Compiler(self.scope.inside(var, element), self.now)

    def _dict(self, operand: Term, op: wire.DictOp, result: Dtype) -> Term:
        match op:
            case wire.DictLen():
                return structs.dict_len(operand, result)
            case wire.DictContains(key):
                return structs.dict_contains(operand, self.term(key), result)
            case wire.DictGet(key, default):
                return structs.dict_get(
                    operand,
                    self.term(key),
                    _constant_text(key),
                    None if default is None else self.term(default),
                    result,
                )
            case unreachable:
                assert_never(unreachable)

    def _second_text(self, op: wire.StringOp) -> Term | None:
        match op:
            case (
                wire.StringContains(other)
                | wire.StartsWith(other)
                | wire.EndsWith(other)
                | wire.Concat(other)
            ):
                return self.term(other)
            case _:
                return None


def _column(name: str, dtype: Dtype) -> pl.Expr:
    """Return a column with NaN of a float column as null, as in the client's data frames."""
    column = pl.col(name)
    return column.fill_nan(None) if polars_type(dtype) == pl.Float64 else column


def _constant_text(key: wire.Expr) -> str | None:
    match key:
        case wire.Literal(text, Str()):
            value = json.loads(text)
            return value if isinstance(value, str) else None
        case _:
            return None
