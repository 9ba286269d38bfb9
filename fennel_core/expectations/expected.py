"""Read an expectation as the client sends it: a kind, and its arguments as JSON.

Theory. An expectation is applied to a batch of rows and gives two columns of booleans: which rows
it considers, and which of these are as expected. What a kind means is that of Great Expectations
for the client's arguments: a null (or NaN) is not considered, except by the kinds about nulls, and
`mostly` is the share of the considered rows that must be as expected. Whatever can be wrong is
found here, when it is committed: the arguments are checked, and the rule is applied to rows of the
dataset's types once.

Example. `expect_column_values_to_be_between(column="age", min_value=0, mostly=0.9)` over the ages
3, null, -1 and 5 considers three rows, of which two are as expected: 0.67, which is less than 0.9.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl
import pyarrow as pa

from fennel_core.expectations import kinds
from fennel_core.expectations.errors import ExpectationInvalid, first_line
from fennel_core.expectations.values import Rule
from fennel_core.vocab.dtypes import (
    Bool,
    Date,
    Decimal,
    Dtype,
    Float,
    Int,
    Str,
    Timestamp,
    arrow_type,
    base,
)
from fennel_core.wire.entities import Expectation

COLUMN: Final = "expect_column_values_to_"
PAIR: Final = "expect_column_pair_values_"
REPORT_ONLY: Final = frozenset({"result_format", "include_config", "catch_exceptions", "meta"})
"""Arguments that say how a report of Great Expectations looks, and not what is expected."""
PAIR_ARGUMENTS: Final = frozenset({"column_A", "column_B", "ignore_row_if"})
COLUMN_ARGUMENTS: Final = ("column", "column_A", "column_B", "column_list")
"""The arguments that name columns; `column_list` is a list."""
SAMPLES: Final[Mapping[type, Any]] = {
    Int: 1,
    Float: 0.5,
    Decimal: decimal.Decimal(0),
    Str: "1",
    Bool: True,
    Timestamp: dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    Date: dt.date(2026, 1, 1),
}
"""A value of each type that rules compare; other types are only present or null."""
Dtypes = Mapping[str, Dtype]
Make = Callable[[Mapping[str, Any], Dtypes], Rule]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: how its rule is made, and the arguments that it has besides its columns."""

    make: Make
    arguments: frozenset[str] = frozenset()
    has_mostly: bool = True


KINDS: Final[Mapping[str, Kind]] = {
    f"{COLUMN}be_null": Kind(kinds.nulls),
    f"{COLUMN}not_be_null": Kind(kinds.no_nulls),
    f"{COLUMN}be_of_type": Kind(kinds.of_type, frozenset({"type_"})),
    f"{COLUMN}be_in_type_list": Kind(kinds.of_types, frozenset({"type_list"})),
    f"{COLUMN}be_in_set": Kind(kinds.in_set, frozenset({"value_set"})),
    f"{COLUMN}not_be_in_set": Kind(kinds.not_in_set, frozenset({"value_set"})),
    f"{COLUMN}be_between": Kind(
        kinds.between, frozenset({"min_value", "max_value", "strict_min", "strict_max"})
    ),
    "expect_column_value_lengths_to_be_between": Kind(
        kinds.lengths_between, frozenset({"min_value", "max_value"})
    ),
    "expect_column_value_lengths_to_equal": Kind(kinds.length_equals, frozenset({"value"})),
    f"{COLUMN}match_regex": Kind(kinds.matches, frozenset({"regex"})),
    f"{COLUMN}not_match_regex": Kind(kinds.does_not_match, frozenset({"regex"})),
    f"{COLUMN}match_regex_list": Kind(kinds.matches_list, frozenset({"regex_list", "match_on"})),
    f"{COLUMN}not_match_regex_list": Kind(kinds.matches_none, frozenset({"regex_list"})),
    f"{COLUMN}match_strftime_format": Kind(kinds.matches_strftime, frozenset({"strftime_format"})),
    f"{COLUMN}be_dateutil_parseable": Kind(kinds.is_a_date),
    f"{COLUMN}be_json_parseable": Kind(kinds.is_json),
    f"{COLUMN}match_json_schema": Kind(kinds.matches_json_schema, frozenset({"json_schema"})),
    f"{PAIR}to_be_equal": Kind(kinds.pair_equal, PAIR_ARGUMENTS, has_mostly=False),
    f"{PAIR}a_to_be_greater_than_b": Kind(
        kinds.pair_greater, PAIR_ARGUMENTS | {"or_equal"}, has_mostly=False
    ),
    f"{PAIR}to_be_in_set": Kind(
        kinds.pair_in_set, PAIR_ARGUMENTS | {"value_pairs_set"}, has_mostly=False
    ),
    "expect_multicolumn_sum_to_equal": Kind(
        kinds.sum_equals, frozenset({"column_list", "sum_total"}), has_mostly=False
    ),
}
"""The expectations of the client, by the name that it sends."""


@dataclass(frozen=True, slots=True)
class Expected:
    """An expectation that can be applied to rows of its dataset."""

    kind: str
    arguments: str
    """As the client sent them: JSON."""
    mostly: float
    columns: frozenset[str]
    """The columns that the rule reads."""
    rule: Rule = field(compare=False)

    def apply(self, rows: pl.DataFrame) -> tuple[int, int]:
        """Return how many rows were considered, and how many of these are not as expected."""
        if rows.is_empty():
            return 0, 0
        considered, passes = self.rule(rows)
        evaluated = int(considered.sum())
        return evaluated, evaluated - int((considered & passes.fill_null(value=False)).sum())


def read_expectation(declared: Expectation, dtypes: Dtypes) -> Expected:
    """Return an expectation about columns of these types.

    Raises ExpectationInvalid for an unknown kind, and for arguments that are missing, unknown or
    wrong.
    """
    kind = KINDS.get(declared.type)
    if kind is None:
        raise ExpectationInvalid(
            f"`{declared.type}` is unknown; use one of the client's `expect_…` functions"
        )
    given = _arguments(declared.kwargs)
    known = kind.arguments | {"column"} | REPORT_ONLY | ({"mostly"} if kind.has_mostly else set())
    if unknown := sorted(given.keys() - known):
        raise ExpectationInvalid(
            f"argument `{unknown[0]}` is not supported; remove it from the expectation"
        )
    mostly = given.get("mostly", 1.0)
    if isinstance(mostly, bool) or not isinstance(mostly, int | float) or not 0 <= mostly <= 1:
        raise ExpectationInvalid(f"`mostly` is a number from 0 to 1, not {mostly!r}")
    try:
        rule = kind.make(given, dtypes)
        columns = frozenset(_columns(given))
        _try(rule, {name: dtypes[name] for name in sorted(columns)})
    except ExpectationInvalid:
        raise
    # Whatever a value of a user makes a library raise, Polars' panics included, is an answer to the
    # commit, and must not end the process that evaluates the expectations of all.
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  # see above
        raise ExpectationInvalid(
            f"its arguments cannot be applied to the columns: {first_line(error)}"
        ) from None
    return Expected(declared.type, declared.kwargs, float(mostly), columns, rule)


def _columns(given: Mapping[str, Any]) -> Iterator[str]:
    for name in COLUMN_ARGUMENTS:
        value = given.get(name, [])
        yield from value if isinstance(value, list) else [value]


def _try(rule: Rule, dtypes: Dtypes) -> None:
    """Apply a rule to no row, a row of nulls and a row of values."""
    types = {name: arrow_type(dtype) for name, dtype in dtypes.items()}
    values = {name: SAMPLES.get(type(base(dtype))) for name, dtype in dtypes.items()}
    table = pa.table({name: pa.array([None, values[name]], kind) for name, kind in types.items()})
    rows = pl.from_arrow(table)
    assert isinstance(rows, pl.DataFrame), "an Arrow table is read as a frame"
    for sample in (rows.clear(), rows[:1], rows[1:]):
        for series in rule(sample):
            assert series.dtype == pl.Boolean, "a rule says yes or no"
            assert len(series) == sample.height, "a rule says something about each row"


def json_object(kwargs: str) -> dict[str, Any] | None:
    """Return the JSON object in the arguments of an expectation, None if they are something else.

    Half of a surrogate pair is no text: it could be neither compared nor shown.
    """
    try:
        given = json.loads(kwargs)
        json.dumps(given, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return given if isinstance(given, dict) else None


def _arguments(kwargs: str) -> dict[str, Any]:
    """Return the arguments that say something: the client sends defaults, too."""
    given = json_object(kwargs)
    if given is None:
        raise ExpectationInvalid("its arguments are not a JSON object of Unicode text")
    return {
        name: value
        for name, value in given.items()
        if value is not None and not (value is False and name not in {"value", "sum_total"})
    }


def passes(mostly: float, evaluated: int, failed: int) -> bool:
    """Return whether the share of rows that are as expected is enough."""
    return evaluated == 0 or (evaluated - failed) / evaluated >= mostly
