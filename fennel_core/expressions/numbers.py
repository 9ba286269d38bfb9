"""Arithmetic, comparison, logic and the `.num` functions over Polars expressions.

Theory. Ints have 64 bits and wrap; `/` always yields a float; `//` and `%` follow the divisor's
sign; an int divided by zero is null, a float is infinite or NaN. Logic is Kleene's. NaN equals
itself and is larger than every number (Polars' total order). Rounding is half away from zero. An
int is never NaN nor infinite, not even when it is null. The client's evaluator computes abs, ceil,
floor and round of ints in floats and so loses digits beyond 2^53; here an int stays an int. This is
the one deviation from a result of the client, because that result is clearly unintended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import polars as pl

from fennel_core.expressions.terms import RowCheck, Term, checks_of
from fennel_core.expressions.type_lattice import (
    common_type,
    non_optional,
    polars_type,
    unrestricted,
)
from fennel_core.vocab.dtypes import Bool, Dtype, Float, Int
from fennel_core.wire.expr import BinaryOp, Log, MathOp, MathUnary, Pow, Round, UnaryOp

ARITHMETIC: dict[BinaryOp, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    BinaryOp.ADD: pl.Expr.__add__,
    BinaryOp.SUB: pl.Expr.__sub__,
    BinaryOp.MUL: pl.Expr.__mul__,
    BinaryOp.DIV: pl.Expr.__truediv__,
    BinaryOp.MOD: pl.Expr.__mod__,
    BinaryOp.FLOOR_DIV: pl.Expr.__floordiv__,
}
COMPARISON: dict[BinaryOp, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    BinaryOp.EQ: pl.Expr.eq,
    BinaryOp.NE: pl.Expr.ne,
    BinaryOp.GT: pl.Expr.gt,
    BinaryOp.GTE: pl.Expr.ge,
    BinaryOp.LT: pl.Expr.lt,
    BinaryOp.LTE: pl.Expr.le,
}
FLOATING: dict[MathUnary, Callable[[pl.Expr], pl.Expr]] = {
    MathUnary.SQRT: pl.Expr.sqrt,
    MathUnary.SIN: pl.Expr.sin,
    MathUnary.COS: pl.Expr.cos,
    MathUnary.TAN: pl.Expr.tan,
    MathUnary.ASIN: pl.Expr.arcsin,
    MathUnary.ACOS: pl.Expr.arccos,
    MathUnary.ATAN: pl.Expr.arctan,
}


MAX_INT_POWER = 2**32 - 1
"""Polars' exponents are unsigned 32-bit ints; a larger one fails the whole batch."""


def unary(op: UnaryOp, operand: Term, result: Dtype) -> Term:
    """Compile a unary operator."""
    match op:
        case UnaryOp.NEG:
            return Term(-operand.to(result), result, operand.checks)
        case UnaryOp.NOT:
            return Term(~operand.to(result), result, operand.checks)
        case unreachable:
            assert_never(unreachable)


def binary(op: BinaryOp, left: Term, right: Term, result: Dtype) -> Term:
    """Compile a binary operator."""
    checks = checks_of(left, right)
    match op:
        case BinaryOp.AND:
            return Term(left.to(Bool()) & right.to(Bool()), result, checks)
        case BinaryOp.OR:
            return Term(left.to(Bool()) | right.to(Bool()), result, checks)
        case BinaryOp.EQ | BinaryOp.NE | BinaryOp.GT | BinaryOp.GTE | BinaryOp.LT | BinaryOp.LTE:
            side = common_type(left.dtype, right.dtype)
            assert side is not None, "the types were checked before"
            return Term(COMPARISON[op](left.to(side), right.to(side)), result, checks)
        case (
            BinaryOp.ADD
            | BinaryOp.SUB
            | BinaryOp.MUL
            | BinaryOp.DIV
            | BinaryOp.MOD
            | BinaryOp.FLOOR_DIV
        ):
            return Term(ARITHMETIC[op](left.to(result), right.to(result)), result, checks)
        case unreachable:
            assert_never(unreachable)


def math(op: MathOp, operand: Term, exponent: Term | None, result: Dtype) -> Term:
    """Compile a `.num` function; `exponent` is the term of `Pow`, None otherwise."""
    whole = isinstance(non_optional(unrestricted(operand.dtype)), Int)
    match op:
        case MathUnary.ABS:
            return Term(operand.to(result).abs(), result, operand.checks)
        case MathUnary.CEIL:
            return (
                operand
                if whole
                else Term(_to_int(operand.to(Float()).ceil()), result, operand.checks)
            )
        case MathUnary.FLOOR:
            return (
                operand
                if whole
                else Term(_to_int(operand.to(Float()).floor()), result, operand.checks)
            )
        case Round(precision):
            if precision == 0:
                return (
                    operand if whole else Term(_to_int(_round(operand, 0)), result, operand.checks)
                )
            return Term(_round(operand, precision), result, operand.checks)
        case MathUnary.TO_STRING:
            return Term(_to_string(operand), result, operand.checks)
        case MathUnary.IS_NAN:
            return Term(
                pl.lit(value=False) if whole else operand.to(Float()).is_nan(),
                result,
                operand.checks,
            )
        case MathUnary.IS_INFINITE:
            return Term(
                pl.lit(value=False) if whole else operand.to(Float()).is_infinite(),
                result,
                operand.checks,
            )
        case Log(base):
            return Term(operand.to(Float()).log(base), result, operand.checks)
        case Pow():
            assert exponent is not None, "a power has an exponent"
            return _power(operand, exponent, result)
        case _:
            return Term(FLOATING[op](operand.to(Float())), result, operand.checks)


def _to_int(value: pl.Expr) -> pl.Expr:
    """Return null where a float has no 64-bit int (NaN, infinite, too large)."""
    return value.cast(pl.Int64, strict=False)


def _round(operand: Term, precision: int) -> pl.Expr:
    return operand.to(Float()).round(precision, mode="half_away_from_zero")


def _to_string(operand: Term) -> pl.Expr:
    """Return the shortest digits that parse to the same number; exponents have no plus sign."""
    text = operand.value.cast(pl.String)
    return (
        text
        if polars_type(operand.dtype) == pl.Int64
        else text.str.replace("e+", "e", literal=True)
    )


def _power(base: Term, exponent: Term, result: Dtype) -> Term:
    checks = checks_of(base, exponent)
    if not isinstance(non_optional(result), Int):
        return Term(base.to(Float()).pow(exponent.to(Float())), result, checks)
    power = exponent.to(Int())
    bad = ~power.is_between(0, MAX_INT_POWER)
    check = RowCheck(
        bad,
        power,
        "bad-exponent",
        "an int power must not be negative, nor this large. Make base or exponent a float.",
    )
    return Term(base.to(Int()).pow(pl.when(~bad).then(power)), result, (*checks, check))
