"""Every kind of the client's expectations: which rows count, which fail, and what is refused."""

from __future__ import annotations

import ast
import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fennel_core.expectations import expected as expected_module
from fennel_core.expectations.errors import ExpectationInvalid
from fennel_core.expectations.expected import KINDS, Expected, Kind, passes, read_expectation
from fennel_core.expectations.values import Rule
from fennel_core.operators.rows import frame_columns
from fennel_core.vocab import dtypes as types
from fennel_core.vocab.dtypes import Field, Optional
from fennel_core.vocab.schema import Schema
from fennel_core.wire.entities import Expectation

CLIENT = Path(__file__).parents[3] / (
    ".venv-executor/lib/python3.11/site-packages/fennel/lib/expectations/supported_expectations.py"
)
NAN = float("nan")
FIRST, SECOND = (dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2))
COLUMNS: dict[str, tuple[types.Dtype, list[Any]]] = {
    "i": (Optional(types.Int()), [1, 2, None, 4, 5]),
    "j": (Optional(types.Int()), [1, 1, None, None, 9]),
    "f": (Optional(types.Float()), [0.5, NAN, None, 1.5, -2.0]),
    "s": (Optional(types.Str()), ["a", "bb", None, "", "ccc"]),
    "choice": (types.OneOf(types.Str(), ("x", "y")), ["x", "y", "x", "x", "y"]),
    "d": (Optional(types.Decimal(2)), [Decimal(n) for n in ("1.00", "2.50", "0.10", "-1", "7")]),
    "e": (types.Decimal(2), [Decimal(n) for n in ("1", "0.50", "9.90", "1", "2.99")]),
    "flag": (types.Bool(), [True, False, True, True, True]),
    "day": (Optional(types.Date()), [dt.date(2026, 1, 1), None, dt.date(2026, 2, 1), None, None]),
    "json": (types.Str(), ['{"a": 1}', '{"a": "x"}', "[1", "1" * 5000, "[" * 100_000]),
    "date": (types.Str(), ["2026-01-01", "1 May 2026", "no", "2026-02-30", "9" * 200]),
    "list": (types.List(types.Int()), [[1], [], [1, 2], [3], [4]]),
    "at": (types.Timestamp(), [FIRST, FIRST, SECOND, SECOND, SECOND]),
}
SCHEMA = Schema((), tuple(Field(name, dtype) for name, (dtype, _) in COLUMNS.items()), "at")
DTYPES = {name: dtype for name, (dtype, _) in COLUMNS.items()}
VALUES, PAIR = "expect_column_values_to_", "expect_column_pair_values_"
LENGTHS = "expect_column_value_lengths_to_"
SUM = "expect_multicolumn_sum_to_equal"
SCHEMA_OF_A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def frame() -> pl.DataFrame:
    columns = frame_columns(Schema(SCHEMA.keys, SCHEMA.values[:-1], "at"))
    return pl.DataFrame({n: v for n, (_, v) in COLUMNS.items()}, schema=columns, strict=False)


def read(kind: str, **arguments: Any) -> Expected:
    # As the client does, which sends its own defaults.
    sent = {"include_config": True, "strict_min": False, "parse_strings_as_datetimes": False}
    return read_expectation(Expectation(kind, json.dumps({**sent, **arguments})), DTYPES)


CASES: list[tuple[str, dict[str, Any], tuple[int, int]]] = [
    ("be_null", {"column": "i"}, (5, 4)),
    ("not_be_null", {"column": "i"}, (5, 1)),
    ("not_be_null", {"column": "f"}, (5, 2)),
    ("be_of_type", {"column": "i", "type_": "int64"}, (5, 0)),
    ("be_of_type", {"column": "i", "type_": "str"}, (5, 5)),
    ("be_in_type_list", {"column": "choice", "type_list": ["float", "str"]}, (5, 0)),
    ("be_in_set", {"column": "i", "value_set": [1, 5.0, None]}, (4, 2)),
    ("be_in_set", {"column": "choice", "value_set": ["x"]}, (5, 2)),
    ("be_in_set", {"column": "d", "value_set": [2.5, "7"]}, (5, 3)),
    ("be_in_set", {"column": "flag", "value_set": [True]}, (5, 1)),
    ("be_in_set", {"column": "at", "value_set": ["2026-01-01"]}, (5, 3)),
    ("be_in_set", {"column": "day", "value_set": ["2026-02-01"]}, (2, 1)),
    ("be_in_set", {"column": "i", "value_set": []}, (4, 4)),
    ("not_be_in_set", {"column": "s", "value_set": ["a", ""]}, (4, 2)),
    ("be_between", {"column": "i", "min_value": 2, "max_value": 4}, (4, 2)),
    ("be_between", {"column": "i", "min_value": 1, "strict_min": True}, (4, 1)),
    ("be_between", {"column": "i", "max_value": 1e30}, (4, 0)),
    ("be_between", {"column": "f", "min_value": 0}, (3, 1)),
    ("be_between", {"column": "d", "max_value": 2.5, "strict_max": True}, (5, 2)),
    ("be_between", {"column": "s", "min_value": "b"}, (4, 2)),
    ("be_between", {"column": "at", "max_value": "2026-01-01T00:00:00+00:00"}, (5, 3)),
    ("match_regex", {"column": "s", "regex": "^[ab]+$"}, (4, 2)),
    ("not_match_regex", {"column": "s", "regex": "b|c"}, (4, 2)),
    ("match_regex_list", {"column": "s", "regex_list": ["a", "b"], "match_on": "any"}, (4, 2)),
    ("match_regex_list", {"column": "s", "regex_list": ["c", "cc"], "match_on": "all"}, (4, 3)),
    ("not_match_regex_list", {"column": "s", "regex_list": ["a", "b"]}, (4, 2)),
    ("match_strftime_format", {"column": "date", "strftime_format": "%Y-%m-%d"}, (5, 4)),
    ("be_dateutil_parseable", {"column": "date"}, (5, 3)),
    ("be_json_parseable", {"column": "json"}, (5, 3)),
    ("match_json_schema", {"column": "json", "json_schema": SCHEMA_OF_A}, (5, 4)),
    ("match_json_schema", {"column": "json", "json_schema": json.dumps(SCHEMA_OF_A)}, (5, 4)),
]
OTHERS: list[tuple[str, dict[str, Any], tuple[int, int]]] = [
    (f"{LENGTHS}be_between", {"column": "s", "min_value": 1, "max_value": 2}, (4, 2)),
    (f"{LENGTHS}equal", {"column": "s", "value": 0}, (4, 3)),
    (f"{PAIR}to_be_equal", {"column_A": "i", "column_B": "j"}, (4, 3)),
    (
        f"{PAIR}to_be_equal",
        {"column_A": "i", "column_B": "j", "ignore_row_if": "either_value_is_missing"},
        (3, 2),
    ),
    (
        f"{PAIR}to_be_equal",
        {"column_A": "i", "column_B": "j", "ignore_row_if": "neither"},
        (5, 3),
    ),
    (f"{PAIR}a_to_be_greater_than_b", {"column_A": "j", "column_B": "i"}, (4, 3)),
    (
        f"{PAIR}a_to_be_greater_than_b",
        {"column_A": "j", "column_B": "i", "or_equal": True},
        (4, 2),
    ),
    (f"{PAIR}a_to_be_greater_than_b", {"column_A": "i", "column_B": "f"}, (4, 1)),
    (
        f"{PAIR}to_be_in_set",
        {"column_A": "i", "column_B": "j", "value_pairs_set": [[1, 1], [4, None]]},
        (4, 2),
    ),
    ("expect_multicolumn_sum_to_equal", {"column_list": ["d", "e"], "sum_total": 2}, (5, 4)),
    ("expect_multicolumn_sum_to_equal", {"column_list": ["i", "j"], "sum_total": 4}, (4, 3)),
    ("expect_multicolumn_sum_to_equal", {"column_list": ["f"], "sum_total": 0.5}, (4, 3)),
]


@pytest.mark.parametrize(
    ("kind", "arguments", "counts"), [(f"{VALUES}{k}", a, c) for k, a, c in CASES] + OTHERS
)
def test_rows_are_considered_and_fail_as_great_expectations_says(
    kind: str, arguments: dict[str, Any], counts: tuple[int, int]
) -> None:
    expected = read(kind, **arguments)
    assert expected.apply(frame()) == counts
    assert expected.apply(frame().clear()) == (0, 0)
    one_by_one = [expected.apply(frame()[n : n + 1]) for n in range(frame().height)]
    assert tuple(map(sum, zip(*one_by_one, strict=True))) == counts, "batches may be cut anywhere"


def test_every_kind_of_the_client_is_known_and_tested_and_no_other() -> None:
    functions = {
        node.name.lower()
        for node in ast.parse(CLIENT.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("expect_")
    }
    assert set(KINDS) == functions
    assert {f"{VALUES}{kind}" for kind, *_ in CASES} | {kind for kind, *_ in OTHERS} == functions


@pytest.mark.parametrize(
    ("kind", "arguments", "why"),
    [
        ("be_lucky", {"column": "i"}, "is unknown"),
        ("be_null", {}, "`column` is required"),
        ("be_null", {"column": "none"}, "no column `none`"),
        ("be_null", {"column": ["i"]}, "no column"),
        ("be_null", {"column": "i", "mostly": 1.5}, "from 0 to 1"),
        ("be_null", {"column": "i", "mostly": True}, "from 0 to 1"),
        ("be_null", {"column": "i", "row_condition": "i > 1"}, "`row_condition` is not supported"),
        ("be_between", {"column": "i"}, "`min_value` or `max_value` is required"),
        ("be_between", {"column": "i", "min_value": "1"}, "not of the column's type"),
        ("be_between", {"column": "at", "min_value": "then"}, "not of the column's type"),
        ("be_between", {"column": "list", "min_value": 1}, "about values of int"),
        ("be_between", {"column": "flag", "min_value": 1}, "about values of int"),
        ("be_in_set", {"column": "i", "value_set": "abc"}, "is a list of values"),
        ("be_in_set", {"column": "i", "value_set": ["a"]}, "not of the column's type"),
        ("be_of_type", {"column": "i", "type_": "quark"}, "type `quark` is unknown"),
        ("match_regex", {"column": "i", "regex": "a"}, "about values of str"),
        ("match_regex", {"column": "s", "regex": "("}, "RE2 syntax"),
        ("match_regex", {"column": "s", "regex": "(?=a)b"}, "no look-around"),
        ("match_regex_list", {"column": "s", "regex_list": []}, "at least one element"),
        ("match_regex_list", {"column": "s", "regex_list": ["a"], "match_on": "one"}, "`any` or"),
        ("match_strftime_format", {"column": "s", "strftime_format": "%"}, "no format of a time"),
        ("match_json_schema", {"column": "s", "json_schema": {"type": 1}}, "is not a schema"),
        ("match_json_schema", {"column": "s", "json_schema": "{"}, "is a JSON object"),
        (
            "match_json_schema",
            {"column": "s", "json_schema": {"items": [{"pattern": "(a+)+b"}]}},
            "`pattern` in `json_schema` is not supported",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused_by_name(
    kind: str, arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(ExpectationInvalid, match=why):
        read(f"{VALUES}{kind}", **arguments)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("be_between", {"column": "d", "min_value": 1e-40}),
        ("be_between", {"column": "d", "max_value": 1e40}),
        ("be_between", {"column": "d", "max_value": math.inf}),
        ("be_between", {"column": "d", "max_value": "NaN"}),
        ("be_between", {"column": "d", "max_value": "1e999999"}),
        ("be_in_set", {"column": "d", "value_set": ["sNaN"]}),
        ("be_between", {"column": "i", "max_value": 10**400}),
        ("be_between", {"column": "f", "max_value": 10**400}),
        ("be_between", {"column": "i", "max_value": 1 << 63}),
        ("be_between", {"column": "at", "max_value": "9999-12-31T23:59:59-10:00"}),
        ("be_between", {"column": "s", "max_value": "\ud800"}),  # no text of UTF-8
        ("match_strftime_format", {"column": "s", "strftime_format": "%Y-%m-%d %H:%M %Y"}),
        ("match_regex_list", {"column": "s", "regex_list": ["a"], "match_on": ["any"]}),
        ("match_json_schema", {"column": "s", "json_schema": {"items": {"uniqueItems": True}}}),
        ("match_json_schema", {"column": "s", "json_schema": {"enum": ["x" * 20_000]}}),
    ],
)
def test_values_that_no_library_can_use_are_refused(kind: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ExpectationInvalid) as refused:
        read(f"{VALUES}{kind}", **arguments)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (SUM, {"column_list": ["i"], "sum_total": 1e300}),
        (SUM, {"column_list": ["i"], "sum_total": math.inf}),
        (SUM, {"column_list": ["d"], "sum_total": math.nan}),
        (SUM, {"column_list": ["f"], "sum_total": math.inf}),
        (SUM, {"column_list": ["f"], "sum_total": 10**400}),
        (f"{PAIR}to_be_equal", {"column_A": "i", "column_B": "j", "ignore_row_if": ["neither"]}),
    ],
)
def test_values_of_sums_and_pairs_that_no_library_can_use_are_refused(
    kind: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ExpectationInvalid):
        read(kind, **arguments)


def test_what_a_rule_raises_for_rows_of_the_types_is_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def panics(given: object, dtypes: object) -> Rule:
        return lambda rows: (rows["i"], rows.select(pl.lit(Decimal("1e-40")) > 0).to_series())

    kind = f"{VALUES}be_null"
    monkeypatch.setattr(expected_module, "KINDS", {kind: Kind(panics)})
    with pytest.raises(ExpectationInvalid, match="cannot be applied to the columns"):
        read(kind, column="i")


def test_values_within_the_bounds_are_applied() -> None:
    digits = "9" * 36
    rows = pl.DataFrame(
        {"d": [Decimal(f"{digits}.99"), Decimal(f"-{digits}.99"), Decimal("0.00")]},
        schema={"d": pl.Decimal(38, 2)},
    )
    between = f"{VALUES}be_between"
    assert read(between, column="d", min_value="1e-38").apply(rows) == (3, 2)
    assert read(between, column="d", max_value="1e37").apply(rows) == (3, 0)
    assert read(between, column="d", min_value=f"{digits}.99").apply(rows) == (3, 2)
    assert read(between, column="i", min_value=-(1 << 63)).apply(frame()) == (4, 0)
    assert read(between, column="f", max_value=math.inf).apply(frame()) == (3, 0)
    assert read(between, column="f", max_value=10**30).apply(frame()) == (3, 0)
    assert read(SUM, column_list=["f"], sum_total=1e300).apply(frame()) == (4, 4)


def test_a_row_whose_sum_does_not_fit_fails() -> None:
    most, dtypes = Decimal("9" * 38), {"a": types.Decimal(0), "b": types.Decimal(28)}
    rows = pl.DataFrame(
        {"a": [most, Decimal(2), most, None], "b": [Decimal(1)] * 4},
        schema={"a": pl.Decimal(38, 0), "b": pl.Decimal(38, 28)},
    )

    def counts(*columns: str, total: int) -> tuple[int, int]:
        arguments = json.dumps({"column_list": columns, "sum_total": total})
        return read_expectation(Expectation(SUM, arguments), dtypes).apply(rows)

    assert counts("a", "b", total=1) == (4, 3)
    assert counts("a", "b", total=3) == (4, 3)
    assert counts("a", "a", total=4) == (3, 2)


def test_a_long_text_is_not_compared_with_a_schema() -> None:
    expected = read(f"{VALUES}match_json_schema", column="s", json_schema={"type": "array"})
    texts = [f"[{'1,' * (size // 2)}1]" for size in (19_000, 20_001)]
    assert expected.apply(pl.DataFrame({"s": texts})) == (2, 1)
    big = {"enum": ["x" * 10_000, [1] * 1000]}
    expected = read(f"{VALUES}match_json_schema", column="s", json_schema=big)
    assert expected.apply(pl.DataFrame({"s": [json.dumps([1] * 1000)]})) == (1, 0)
    assert expected.apply(pl.DataFrame({"s": [json.dumps([1] * 1000) + " " * 1000]})) == (1, 1)


@pytest.mark.parametrize(
    ("kind", "arguments", "why"),
    [
        (f"{LENGTHS}equal", {"column": "s", "value": 1.5}, "number of characters"),
        (f"{LENGTHS}be_between", {"column": "s"}, "is required"),
        (f"{PAIR}to_be_equal", {"column_A": "i", "column_B": "s"}, "do not compare"),
        (f"{PAIR}to_be_equal", {"column_A": "d", "column_B": "i"}, "do not compare"),
        (f"{PAIR}to_be_equal", {"column_A": "list", "column_B": "list"}, "about values of"),
        (
            f"{PAIR}to_be_equal",
            {"column_A": "i", "column_B": "j", "ignore_row_if": "never"},
            "`ignore_row_if` is",
        ),
        (
            f"{PAIR}to_be_in_set",
            {"column_A": "i", "column_B": "j", "value_pairs_set": [[1]]},
            "list of pairs",
        ),
        (
            f"{PAIR}to_be_equal",
            {"column_A": "i", "column_B": "j", "mostly": 0.5},
            "`mostly` is not",
        ),
        (
            "expect_multicolumn_sum_to_equal",
            {"column_list": ["i", "s"], "sum_total": 1},
            "column `s`",
        ),
        (
            "expect_multicolumn_sum_to_equal",
            {"column_list": ["i"], "sum_total": "1"},
            "is a number",
        ),
    ],
)
def test_wrong_pairs_lengths_and_sums_are_refused_by_name(
    kind: str, arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(ExpectationInvalid, match=why):
        read(kind, **arguments)


def test_arguments_that_are_no_object_are_refused() -> None:
    for kwargs in ("", "[1]", "{", "[" * 100_000, f'{{"column": {"1" * 5000}}}'):
        with pytest.raises(ExpectationInvalid, match="not a JSON object"):
            read_expectation(Expectation(f"{VALUES}be_null", kwargs), DTYPES)


def test_a_pattern_that_would_hold_a_process_takes_no_time() -> None:
    rows = pl.DataFrame({"s": ["a" * 100_000]})
    expected = read(f"{VALUES}match_regex", column="s", regex="(a+)+b")
    assert expected.apply(rows) == (1, 1)


def test_the_share_of_rows_decides_whether_an_expectation_is_met() -> None:
    assert passes(1.0, 0, 0)
    assert passes(0.9, 10, 1)
    assert not passes(0.95, 10, 1)
    assert read(f"{VALUES}be_null", column="i", mostly=0.5).mostly == 0.5
    assert read(f"{VALUES}be_null", column="i").mostly == 1.0
