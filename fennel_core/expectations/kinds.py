"""The rule of each kind of expectation.

Regular expressions are those of Polars (RE2 syntax), whose time is linear in the length of a text,
because a pattern of one workspace must not hold the process that evaluates those of all.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import polars as pl
from dateutil import parser as dateutil_parser
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from fennel_core.expectations.errors import ExpectationInvalid, first_line
from fennel_core.expectations.values import (
    COMPARABLE,
    DECIMAL_DIGITS,
    Rule,
    by_expression,
    by_value,
    decimal_of,
    present,
    require,
    shortened,
    texts,
    value_of,
)
from fennel_core.vocab.dtypes import (
    Bool,
    Bytes,
    Date,
    Decimal,
    Dtype,
    Embedding,
    Float,
    Int,
    List,
    Map,
    Str,
    Struct,
    Timestamp,
    base,
)

Arguments = Mapping[str, Any]
Dtypes = Mapping[str, Dtype]
TEXT_CHARACTERS: Final = 1_000_000
"""A longer text is never parsed: it is not as expected."""
DATE_CHARACTERS: Final = 100
SCHEMA_CHARACTERS: Final = 20_000
"""A schema of more characters is refused, and a longer text does not match any: both are compared
in Python."""
SCHEMA_COMPARISONS: Final = 40_000_000
"""Characters of a schema times those of a text: bounds the time of one comparison."""
TYPES: Final[Mapping[type, frozenset[str]]] = {
    Int: frozenset({"int", "int64", "Int64", "INTEGER", "BIGINT", "LongType", "IntegerType"}),
    Float: frozenset({"float", "float64", "Float64", "DOUBLE", "FLOAT", "DoubleType", "FloatType"}),
    Str: frozenset({"str", "string", "object", "O", "TEXT", "VARCHAR", "STRING", "StringType"}),
    Bool: frozenset({"bool", "boolean", "BOOLEAN", "BooleanType"}),
    Bytes: frozenset({"bytes", "BINARY", "BinaryType"}),
    Timestamp: frozenset(
        {"datetime", "datetime64", "datetime64[ns]", "Timestamp", "TIMESTAMP", "TimestampType"}
    ),
    Date: frozenset({"date", "DATE", "DateType"}),
    Decimal: frozenset({"Decimal", "decimal", "DECIMAL", "NUMERIC", "DecimalType"}),
    List: frozenset({"list", "ARRAY", "ArrayType"}),
    Embedding: frozenset({"list", "ARRAY", "ArrayType"}),
    Map: frozenset({"dict", "MAP", "MapType"}),
    Struct: frozenset({"dict", "STRUCT", "StructType"}),
}
"""Names of a column's type in Python, pandas, SQL and Spark, which Great Expectations accepts."""
SLOW_KEYWORDS: Final = frozenset(
    {
        "pattern",
        "patternProperties",
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "uniqueItems",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Keywords of JSON Schema whose time is more than the product of the sizes of schema and text."""
MISSING_BOTH, MISSING_EITHER, MISSING_NEVER = (
    "both_values_are_missing",
    "either_value_is_missing",
    "neither",
)


def nulls(given: Arguments, dtypes: Dtypes) -> Rule:
    """Every value is null."""
    name, _ = _column(given, dtypes)
    return lambda rows: (_all(rows), ~present(rows, name))


def no_nulls(given: Arguments, dtypes: Dtypes) -> Rule:
    """No value is null."""
    name, _ = _column(given, dtypes)
    return lambda rows: (_all(rows), present(rows, name))


def of_type(given: Arguments, dtypes: Dtypes) -> Rule:
    """The column has a type."""
    return of_types({**given, "type_list": [_required(given, "type_")]}, dtypes)


def of_types(given: Arguments, dtypes: Dtypes) -> Rule:
    """The column has one of some types."""
    _, dtype = _column(given, dtypes)
    names = texts(_required(given, "type_list"), "type_list")
    known = frozenset[str]().union(*TYPES.values())
    if unknown := sorted(set(names) - known):
        raise ExpectationInvalid(
            f"type `{unknown[0]}` is unknown; use one of {', '.join(sorted(known))}"
        )
    fits = not TYPES.get(type(base(dtype)), frozenset()).isdisjoint(names)
    return lambda rows: (_all(rows), pl.repeat(fits, rows.height, dtype=pl.Boolean, eager=True))


def in_set(given: Arguments, dtypes: Dtypes) -> Rule:
    """Every value is in a set."""
    name, dtype = _column(given, dtypes)
    require(dtype, (*COMPARABLE, Bool), f"column `{name}`")
    values = _required(given, "value_set")
    if not isinstance(values, list):
        raise ExpectationInvalid("`value_set` is a list of values")
    wanted = frozenset(value_of(value, dtype) for value in values if value is not None)
    return by_value(name, lambda value: value in wanted)


def not_in_set(given: Arguments, dtypes: Dtypes) -> Rule:
    """No value is in a set."""
    inside = in_set(given, dtypes)

    def rule(rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
        there, found = inside(rows)
        return there, ~found

    return rule


def between(given: Arguments, dtypes: Dtypes) -> Rule:
    """Every value is between two bounds, inclusive unless `strict_…`."""
    name, dtype = _column(given, dtypes)
    require(dtype, COMPARABLE, f"column `{name}`")
    column, parts = pl.col(name), []
    if "min_value" in given:
        least = pl.lit(value_of(given["min_value"], dtype))
        parts.append(column > least if given.get("strict_min") else column >= least)
    if "max_value" in given:
        most = pl.lit(value_of(given["max_value"], dtype))
        parts.append(column < most if given.get("strict_max") else column <= most)
    if not parts:
        raise ExpectationInvalid("`min_value` or `max_value` is required")
    return by_expression(name, pl.all_horizontal(parts))


def lengths_between(given: Arguments, dtypes: Dtypes) -> Rule:
    """Every text has a number of characters between two bounds, inclusive."""
    name = _text_column(given, dtypes)
    length, parts = pl.col(name).str.len_chars().cast(pl.Int64), []
    if "min_value" in given:
        parts.append(length >= _whole(given, "min_value"))
    if "max_value" in given:
        parts.append(length <= _whole(given, "max_value"))
    if not parts:
        raise ExpectationInvalid("`min_value` or `max_value` is required")
    return by_expression(name, pl.all_horizontal(parts))


def length_equals(given: Arguments, dtypes: Dtypes) -> Rule:
    """Every text has a number of characters."""
    name = _text_column(given, dtypes)
    return by_expression(
        name, pl.col(name).str.len_chars().cast(pl.Int64) == _whole(given, "value")
    )


def matches(given: Arguments, dtypes: Dtypes) -> Rule:
    """Every text matches a pattern anywhere."""
    return _patterns(given, dtypes, [_required(given, "regex")], pl.all_horizontal)


def does_not_match(given: Arguments, dtypes: Dtypes) -> Rule:
    """No text matches a pattern anywhere."""
    return matches_none({**given, "regex_list": [_required(given, "regex")]}, dtypes)


def matches_list(given: Arguments, dtypes: Dtypes) -> Rule:
    """Every text matches any, or all, of some patterns."""
    match_on = given.get("match_on", "any")
    if match_on not in ("any", "all"):  # a tuple: the value may not be hashable
        raise ExpectationInvalid("`match_on` is `any` or `all`")
    combine = pl.any_horizontal if match_on == "any" else pl.all_horizontal
    return _patterns(given, dtypes, _required(given, "regex_list"), combine)


def matches_none(given: Arguments, dtypes: Dtypes) -> Rule:
    """No text matches any of some patterns."""
    patterns = _required(given, "regex_list")
    return _patterns(given, dtypes, patterns, lambda parts: ~pl.any_horizontal(parts))


def matches_strftime(given: Arguments, dtypes: Dtypes) -> Rule:
    """Every text is a time in a format of Python's strptime."""
    name, pattern = _text_column(given, dtypes), _required(given, "strftime_format")
    try:
        dt.datetime.strptime(dt.datetime(2020, 1, 2, tzinfo=dt.UTC).strftime(pattern), pattern)  # noqa: DTZ007  # only whether it can be read
    except (TypeError, ValueError, re.error) as wrong:
        raise ExpectationInvalid(f"`strftime_format` is no format of a time: {wrong}") from None

    def test(text: str) -> bool:
        return _reads(lambda: dt.datetime.strptime(text[:DATE_CHARACTERS], pattern))  # noqa: DTZ007  # only whether it can be read

    return by_value(name, test)


def is_a_date(given: Arguments, dtypes: Dtypes) -> Rule:
    """Every text can be read by dateutil."""

    def test(text: str) -> bool:
        return len(text) <= DATE_CHARACTERS and _reads(lambda: dateutil_parser.parse(text))

    return by_value(_text_column(given, dtypes), test)


def is_json(given: Arguments, dtypes: Dtypes) -> Rule:
    """Every text is JSON."""
    return by_value(_text_column(given, dtypes), lambda text: _reads(lambda: _json(text)))


def matches_json_schema(given: Arguments, dtypes: Dtypes) -> Rule:
    """Every text is JSON that matches a schema."""
    name, schema = _text_column(given, dtypes), _required(given, "json_schema")
    if isinstance(schema, str):
        schema = _object_in(schema)
    if not isinstance(schema, dict):
        raise ExpectationInvalid("`json_schema` is a JSON object")
    if (size := len(json.dumps(schema))) > SCHEMA_CHARACTERS:
        raise ExpectationInvalid(f"`json_schema` has more than {SCHEMA_CHARACTERS} characters")
    longest = min(SCHEMA_CHARACTERS, SCHEMA_COMPARISONS // size)
    if slow := sorted(SLOW_KEYWORDS & _keywords(schema)):
        raise ExpectationInvalid(f"`{slow[0]}` in `json_schema` is not supported; write it out")
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError) as wrong:
        raise ExpectationInvalid(f"`json_schema` is not a schema: {first_line(wrong)}") from None
    validator = Draft202012Validator(schema)

    def test(text: str) -> bool:
        return len(text) <= longest and _reads(lambda: _require_valid(validator, _json(text)))

    return by_value(name, test)


def pair_equal(given: Arguments, dtypes: Dtypes) -> Rule:
    """The values of two columns are equal."""
    first, second = _pair(given, dtypes)
    for name in (first, second):
        require(dtypes[name], (*COMPARABLE, Bool), f"column `{name}`")
    return _over_pairs(given, first, second, pl.col(first).eq_missing(pl.col(second)))


def pair_greater(given: Arguments, dtypes: Dtypes) -> Rule:
    """The values of a column are greater than those of another one."""
    first, second = _pair(given, dtypes)
    for name in (first, second):
        require(dtypes[name], COMPARABLE, f"column `{name}`")
    left, right = pl.col(first), pl.col(second)
    return _over_pairs(
        given, first, second, left >= right if given.get("or_equal") else left > right
    )


def pair_in_set(given: Arguments, dtypes: Dtypes) -> Rule:
    """The values of two columns are one of some pairs."""
    first, second = _pair(given, dtypes)
    pairs = _required(given, "value_pairs_set")
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        raise ExpectationInvalid("`value_pairs_set` is a list of pairs of values")
    wanted = frozenset(
        tuple(
            None if value is None else value_of(value, dtypes[name])
            for name, value in zip((first, second), pair, strict=True)
        )
        for pair in pairs
    )

    def rule(rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
        found = [pair in wanted for pair in rows.select(first, second).rows()]
        return _considered(given, rows, first, second), pl.Series(found, dtype=pl.Boolean)

    for name in (first, second):
        require(dtypes[name], (*COMPARABLE, Bool), f"column `{name}`")
    return rule


def sum_equals(given: Arguments, dtypes: Dtypes) -> Rule:
    """The values of some columns add up to a number in each row; a null adds nothing."""
    names = texts(_required(given, "column_list"), "column_list")
    for name in names:
        require(_dtype(name, dtypes), (Int, Float, Decimal), f"column `{name}`")
    stored = [base(dtypes[name]) for name in names]
    is_exact = not any(isinstance(each, Float) for each in stored)
    scale = max((each.scale for each in stored if isinstance(each, Decimal)), default=0)
    wanted = _total(given, is_exact=is_exact)
    kind = pl.Decimal(DECIMAL_DIGITS, scale) if is_exact else pl.Float64()
    columns = [pl.col(name).fill_null(0).cast(kind, strict=False) for name in names]
    most = pl.lit(decimal.Decimal(f"{(10**DECIMAL_DIGITS - 1) // len(names)}E-{scale}"))
    # What does not fit would be null, which adds nothing, or an error of the sum: the row fails.
    fits = [column.is_between(-most, most).fill_null(value=False) for column in columns]
    summed = [
        pl.when(pl.all_horizontal(fits)).then(column) if is_exact else column for column in columns
    ]
    equal = pl.sum_horizontal(summed) == pl.lit(wanted)
    good = pl.all_horizontal(*fits, equal) if is_exact else equal

    def rule(rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
        there = rows.select(pl.any_horizontal(pl.col(*names).is_not_null())).to_series()
        return there, rows.select(good).to_series()

    return rule


def _total(given: Arguments, *, is_exact: bool) -> decimal.Decimal | float:
    total = given.get("sum_total")
    if isinstance(total, bool) or not isinstance(total, int | float):
        raise ExpectationInvalid("`sum_total` is a number")
    try:
        wanted = decimal_of(total) if is_exact else float(total)
    except (ValueError, OverflowError) as wrong:
        raise ExpectationInvalid(f"`sum_total` cannot be {shortened(total)}: {wrong}") from None
    if not math.isfinite(wanted):
        raise ExpectationInvalid(f"`sum_total` cannot be {shortened(total)}: it is not finite")
    return wanted


def _all(rows: pl.DataFrame) -> pl.Series:
    return pl.repeat(True, rows.height, dtype=pl.Boolean, eager=True)  # the value to repeat


def _required(given: Arguments, name: str) -> Any:
    if name not in given:
        raise ExpectationInvalid(f"`{name}` is required")
    return given[name]


def _dtype(name: Any, dtypes: Dtypes) -> Dtype:
    found = dtypes.get(name) if isinstance(name, str) else None
    if found is None:
        raise ExpectationInvalid(f"there is no column `{name}`; columns: {', '.join(dtypes)}")
    return found


def _column(given: Arguments, dtypes: Dtypes) -> tuple[str, Dtype]:
    name = _required(given, "column")
    return name, _dtype(name, dtypes)


def _text_column(given: Arguments, dtypes: Dtypes) -> str:
    name, dtype = _column(given, dtypes)
    require(dtype, (Str,), f"column `{name}`")
    return name


def _pair(given: Arguments, dtypes: Dtypes) -> tuple[str, str]:
    first, second = _required(given, "column_A"), _required(given, "column_B")
    kinds = [base(_dtype(name, dtypes)) for name in (first, second)]
    numbers = all(isinstance(kind, Int | Float) for kind in kinds)
    if kinds[0] != kinds[1] and not numbers:
        raise ExpectationInvalid(f"columns `{first}` and `{second}` have types that do not compare")
    ignored = given.get("ignore_row_if", MISSING_BOTH)
    if ignored not in (MISSING_BOTH, MISSING_EITHER, MISSING_NEVER):  # it may not be hashable
        raise ExpectationInvalid(
            f"`ignore_row_if` is `{MISSING_BOTH}`, `{MISSING_EITHER}` or `{MISSING_NEVER}`"
        )
    return first, second


def _considered(given: Arguments, rows: pl.DataFrame, first: str, second: str) -> pl.Series:
    left, right = present(rows, first), present(rows, second)
    match given.get("ignore_row_if", MISSING_BOTH):
        case "both_values_are_missing":
            return left | right
        case "either_value_is_missing":
            return left & right
        case _:
            return _all(rows)


def _over_pairs(given: Arguments, first: str, second: str, expression: pl.Expr) -> Rule:
    def rule(rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
        return _considered(given, rows, first, second), rows.select(expression).to_series()

    return rule


def _whole(given: Arguments, name: str) -> int:
    value = _required(given, name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise ExpectationInvalid(f"`{name}` is a number of characters")
    return value


def _patterns(
    given: Arguments,
    dtypes: Dtypes,
    patterns: Any,
    combine: Callable[[Sequence[pl.Expr]], pl.Expr],
) -> Rule:
    name = _text_column(given, dtypes)
    for pattern in texts(patterns, "regex"):
        try:
            pl.Series(["text"]).str.contains(pattern)
        except pl.exceptions.ComputeError as wrong:
            raise ExpectationInvalid(
                f"pattern {pattern!r} is not one of RE2 syntax, which has no look-around and no "
                f"back-references: {first_line(wrong)}"
            ) from None
    return by_expression(name, combine([pl.col(name).str.contains(p) for p in patterns]))


def _reads(read: Callable[[], object]) -> bool:
    """Return whether a text can be read; what the readers raise says no more than that."""
    try:
        read()
    except (ValueError, OverflowError, RecursionError, TypeError, ArithmeticError):
        return False
    return True


def _json(text: str) -> Any:
    if len(text) > TEXT_CHARACTERS:
        raise ValueError("too long")
    return json.loads(text)


def _object_in(text: str) -> Any:
    """Return the JSON value in a text; None if it is not JSON."""
    try:
        return _json(text)
    except (ValueError, RecursionError):
        return None


def _require_valid(validator: Draft202012Validator, value: Any) -> None:
    if not validator.is_valid(value):
        raise ValueError("it does not match the schema")


def _keywords(schema: Any) -> set[str]:
    """Return every name of an object within a schema."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            found |= each.keys()
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return found
