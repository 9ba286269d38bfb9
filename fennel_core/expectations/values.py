"""Values of expectations in the types of columns, and tests of one value applied to a batch."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from typing import Any, Final

import polars as pl

from fennel_core.expectations.errors import ExpectationInvalid
from fennel_core.vocab.dtypes import (
    Bool,
    Date,
    Decimal,
    Dtype,
    Float,
    Int,
    Str,
    Timestamp,
    base,
    show,
)

Rule = Callable[[pl.DataFrame], tuple[pl.Series, pl.Series]]
"""Returns which rows are considered, and which are as expected; the latter may be null."""
COMPARABLE: Final = (Int, Float, Decimal, Str, Timestamp, Date)
DECIMAL_DIGITS: Final = 38
"""Of a decimal in Polars, before and behind the point together."""
SHOWN_CHARACTERS: Final = 100
_INT64: Final = 1 << 63


def require(dtype: Dtype, wanted: tuple[type, ...], what: str) -> None:
    """Raise ExpectationInvalid unless the values of a column are of one of the types `wanted`."""
    if not isinstance(base(dtype), wanted):
        names = ", ".join(each.__name__.lower() for each in wanted)
        raise ExpectationInvalid(
            f"{what} is `{show(dtype)}`, and this expectation is about values of {names}"
        )


def value_of(given: Any, dtype: Dtype) -> Any:
    """Return a value of an argument in the type of a column. Raises ExpectationInvalid."""
    kind = base(dtype)
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    try:
        match kind:
            case Bool() if isinstance(given, bool):
                return given
            case Int() if is_number and (isinstance(given, float) or _is_int64(given)):
                return given
            case Float() if is_number:
                return given if isinstance(given, float) or _is_int64(given) else float(given)
            case Decimal() if is_number or isinstance(given, str):
                return decimal_of(given)
            case Str() if isinstance(given, str):
                return given
            case Timestamp() if isinstance(given, str):
                moment = dt.datetime.fromisoformat(given)
                return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).astimezone(
                    dt.UTC
                )
            case Date() if isinstance(given, str):
                return dt.date.fromisoformat(given)
            case _:
                wrong = True
    except (ValueError, OverflowError, decimal.InvalidOperation):
        wrong = True
    assert wrong, "every other case returns"
    raise ExpectationInvalid(
        f"the value {shortened(given)} is not of the column's type `{show(dtype)}`"
    )


def decimal_of(given: float | str) -> decimal.Decimal:
    """Return a number that a decimal column can be compared with. Raises ValueError."""
    number = decimal.Decimal(str(given))
    if not number.is_finite():
        raise ValueError("it is not finite")
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "the number is finite"
    whole, fraction = max(len(digits) + exponent, 0), max(-exponent, 0)
    if whole + fraction > DECIMAL_DIGITS:
        raise ValueError(f"it has more than {DECIMAL_DIGITS} digits")
    return number


def shortened(given: Any) -> str:
    """Return a value of an argument for a message."""
    shown = repr(given)
    return shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[:SHOWN_CHARACTERS]}…"


def _is_int64(given: int) -> bool:
    return -_INT64 <= given < _INT64


def present(rows: pl.DataFrame, column: str) -> pl.Series:
    """Return which rows have a value: neither null nor NaN."""
    series = rows[column]
    there = series.is_not_null()
    return there & series.is_not_nan().fill_null(value=False) if series.dtype.is_float() else there


def by_expression(column: str, expression: pl.Expr) -> Rule:
    """Return the rule that the values of a column satisfy a vectorized expression."""

    def rule(rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
        return present(rows, column), rows.select(expression).to_series()

    return rule


def by_value(column: str, test: Callable[[Any], bool]) -> Rule:
    """Return the rule that the values of a column pass a test, which sees each value once."""

    def rule(rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
        there = present(rows, column)
        distinct = rows[column].filter(there).unique()
        passed = [test(value) for value in distinct.to_list()]
        good = distinct.filter(pl.Series(passed, dtype=pl.Boolean))
        return there, rows[column].is_in(good.implode())

    return rule


def texts(given: Any, name: str) -> Sequence[str]:
    """Return a list of text; ExpectationInvalid if it is none, or empty."""
    if not isinstance(given, list) or not given or not all(isinstance(t, str) for t in given):
        raise ExpectationInvalid(f"`{name}` is a list of text with at least one element")
    return given
