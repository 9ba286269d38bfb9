"""The value of JSON under a declared type, and the error text if it does not fit."""

import datetime as dt
import decimal

import polars as pl
import pyarrow as pa
import pytest

from fennel_core.vocab.dtypes import (
    Between,
    Bool,
    Bytes,
    Date,
    Decimal,
    Embedding,
    Field,
    Float,
    Int,
    List,
    Map,
    OneOf,
    Optional,
    Regex,
    Str,
    Struct,
    Timestamp,
    arrow_type,
)
from fennel_core.vocab.schema import Schema
from fennel_core.wire.errors import ForbiddenValues, RejectedRows, UncastableColumn
from fennel_core.wire.json_decode import decode_column, decode_table
from fennel_core.wire.json_encode import encode_column

UTC = dt.UTC
NEW_YEAR = dt.datetime(2024, 1, 1, tzinfo=UTC)
POINT = Struct("Point", (Field("x", Int()), Field("y", Optional(Float()))))
D = decimal.Decimal
AGE = Between(Int(), 0, 100)
SHARE = Between(Float(), 0.0, 1.0, strict_max=True)


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (Int(), [1, -(2**63), 2**63 - 1], [1, -(2**63), 2**63 - 1]),
        (Optional(Int()), [1.0, None, float("nan")], [1, None, None]),
        (Int(), ["1", "-7"], [1, -7]),
        (Int(), [1, 2.0, "3", True], [1, 2, 3, 1]),
        (Float(), [1, 2.5], [1.0, 2.5]),
        (Float(), ["1.5", 2, True], [1.5, 2.0, 1.0]),
        (Float(), [2**53 + 1], [float(2**53 + 1)]),
        (Optional(Float()), [float("nan"), None, "NaN"], [None, None, None]),
        (Str(), ["a", "é"], ["a", "é"]),
        (Str(), [1, 1.5, True, "x"], ["1", "1.5", "true", "x"]),
        (Bool(), [True, False], [True, False]),
        (Bool(), [1, 0, "true", "FALSE", 1.0], [True, False, True, False, True]),
        (Bytes(), ["hello", "é"], [b"hello", "é".encode()]),
        (Decimal(2), [1.1, 2.345, -0.005], [D("1.10"), D("2.35"), D("-0.01")]),
        (Decimal(2), [1, 2], [D("1.00"), D("2.00")]),
        (Decimal(12), [1, 2], [D(1), D(2)]),
        (Decimal(2), ["1.005", 3, 0.1], [D("1.01"), D("3.00"), D("0.10")]),
        (Embedding(2), [[1, 2.5]], [[1.0, 2.5]]),
        (List(Int()), [[1, 2], [], [3.0]], [[1, 2], [], [3]]),
        (Optional(List(Optional(Int()))), [None, [None, 1]], [None, [None, 1]]),
        (List(List(Str())), [[["a"], []], []], [[["a"], []], []]),
        (
            POINT,
            [{"x": 1, "y": None, "z": 9}, {"x": "2"}],
            [{"x": 1, "y": None}, {"x": 2, "y": None}],
        ),
        (Optional(POINT), [None, {"x": 1, "y": 2}], [None, {"x": 1, "y": 2.0}]),
        (Optional(Int()), [None, None], [None, None]),
        (Int(), [], []),
        (List(POINT), [], []),
    ],
)
def test_a_json_value_is_cast_to_the_declared_type(dtype, values, expected):
    array = decode_column(values, dtype, "c")
    assert array.type == arrow_type(dtype)
    assert array.to_pylist() == expected


def test_a_map_is_an_object_or_its_pairs():
    array = decode_column([{"a": 1, "b": 2}, [["c", 3]], {}], Map(Int()), "c")
    assert encode_column(array, Map(Int())) == [{"a": 1, "b": 2}, {"c": 3}, {}]


@pytest.mark.parametrize(
    "value",
    [
        1704067200,
        1704067200_000,
        1704067200_000_000,
        1704067200_000_000_000,
        1704067200.9,
        "2024-01-01",
        "2024-01-01T00:00:00",
        "2024-01-01 00:00:00+00:00",
        "2024-01-01T02:00:00+02:00",
        "2024-01-01T00:00:00.000Z",
        "2024-01-01T00:00:00.000000123Z",
        "1704067200000",
        "20240101",
        "Jan 1 2024",
        NEW_YEAR,
        dt.datetime(2024, 1, 1),  # noqa: DTZ001 - naive is UTC
    ],
)
def test_a_datetime_is_read_in_any_unit_and_form_alone_and_among_others(value):
    for column in ([value], [value, None, value], [value, "2024-01-01T00:00:00Z", 1704067200]):
        moments = decode_column(column, Optional(Timestamp()), "t").to_pylist()
        assert moments == [None if v is None else NEW_YEAR for v in column]


def test_the_unit_of_an_epoch_number_is_chosen_per_value():
    column = [
        1704067200,
        1704067200_000,
        None,
        1704067200_000_000,
        -1,
        9_223_372_036,
        9_223_372_037,
    ]
    assert decode_column(column, Optional(Timestamp()), "t").cast(pa.int64()).to_pylist() == [
        1704067200_000_000,
        1704067200_000_000,
        None,
        1704067200_000_000,
        -1_000_000,
        9_223_372_036_000_000,
        9_223_372_037_000,
    ]


def test_a_date_is_epoch_milliseconds_or_text():
    days = [dt.date(2024, 1, 1), dt.date(1969, 12, 31)]
    assert decode_column([1704067200000, -1], Date(), "d").to_pylist() == days
    assert decode_column(["2024-01-01", "1969-12-31"], Date(), "d").to_pylist() == days
    assert decode_column(["2024-01-01T05:00:00", -86400000], Date(), "d").to_pylist() == days
    # As Debezium writes dates where times are text.
    assert decode_column(["2024-01-01Z", "1969-12-31Z"], Date(), "d").to_pylist() == days
    assert decode_column(["2024-01-01Z", -86400000], Date(), "d").to_pylist() == days
    assert decode_column(["2024-01-01Z"], Timestamp(), "t").to_pylist() == [NEW_YEAR]


@pytest.mark.parametrize(
    ("dtype", "values", "text"),
    [
        (Int(), [1, None, 2], "of type `int`: Null values found in non-optional field. (row 1)"),
        (Float(), [float("nan")], "of type `float`: Null values found in non-optional field."),
        (Int(), ["not_an_int"], 'of type `int`: Unable to parse string "not_an_int" at position 0'),
        (
            Optional(Int()),
            ["32yrs", 24],
            "of type `optional(int)`: Expected bytes, got a 'int' object",
        ),
        (
            Int(),
            [1, 1.5],
            "of type `int`: Float value 1.5 was truncated converting to int64 (row 1)",
        ),
        (Int(), [2**63], f"of type `int`: Value {2**63} too large to fit in int64"),
        (Int(), [{}], "of type `int`: Expected type int, got dict for value {}"),
        (Bool(), [2], "of type `bool`: Expected type bool, got int for value 2"),
        (
            Timestamp(),
            ["not a time"],
            "Unknown datetime string format, unable to parse: not a time, at position 0",
        ),
        (
            Timestamp(),
            ["10:30"],
            "Unknown datetime string format, unable to parse: 10:30, at position 0",
        ),
        (
            Timestamp(),
            ["now"],
            "Unknown datetime string format, unable to parse: now, at position 0",
        ),
        (Int(), ["9" * 5000], '…" at position 0'),
        (Float(), ["1_000"], 'Unable to parse string "1_000" at position 0'),
        (Decimal(1), ["1_000"], 'Unable to parse string "1_000" at position 0'),
        (Str(), ["\ud800"], "text with a lone surrogate is not UTF-8: \\ud800"),
        (Bytes(), ["\ud800"], "text with a lone surrogate is not UTF-8: \\ud800"),
        (Map(Int()), [{"\ud800": 1}], "text with a lone surrogate is not UTF-8: \\ud800"),
        (Timestamp(), [True], "Expected type datetime, got bool for value True"),
        (Date(), [-62_135_596_800_001], "Value -62135596800001 is out of the range of dates"),
        (Decimal(2), [1e30], "does not fit the 28 digits of Decimal[2]"),
        (
            Decimal(2),
            ["x", None, 1],
            'Unable to parse string "x" at position 0 (rows 0, 1; 2 of 3)',
        ),
        (Embedding(2), [[1.0, 2.0], [1.0]], "Expected embedding of size 2, got 1 (row 1)"),
        (List(Int()), [[1], [2, None]], "Null values found in non-optional field. (row 1)"),
        (List(Int()), [[], 3], "Expected type list, got int for value 3 (row 1)"),
        (
            POINT,
            [{"x": 1}, {"y": 2}],
            "field `x` of `Point`: Null values found in non-optional field. (row 1)",
        ),
        (Map(Int()), [{"a": "x"}], 'Unable to parse string "x" at position 0'),
        (Str(), [[1]], "Expected type str, got list for value [1]"),
    ],
)
def test_a_value_that_cannot_be_cast_names_column_row_and_value(dtype, values, text):
    with pytest.raises(UncastableColumn) as caught:
        decode_column(values, dtype, "c")
    assert str(caught.value).startswith("Failed to cast data logged to column `c` of type `")
    assert str(caught.value).endswith(text)


def test_all_bad_values_are_counted_and_the_first_rows_listed():
    with pytest.raises(UncastableColumn) as caught:
        decode_column(["x"] * 9 + [1], Int(), "c")
    assert len(caught.value.bad) == 9
    assert [b.row for b in caught.value.bad] == list(range(9))
    with pytest.raises(UncastableColumn, match=r"\(rows 1, 2, 3, 4, 5, …; 9 of 10\)"):
        decode_column([1] + [None] * 9, Int(), "c")


@pytest.mark.parametrize(
    ("dtype", "values", "text"),
    [
        (
            Between(Int(), 0, 100),
            [123],
            "Field `c` is of type between, but Value 123 is out of bounds for "
            "between type, bounds are [0, 100].",
        ),
        (
            Between(Float(), 0.0, 1.0, strict_max=True),
            [0.0, 1.0],
            "Value 1.0 is out of bounds for between type, bounds are [0.0, 1.0) (row 1).",
        ),
        (
            OneOf(Str(), ("male", "female")),
            ["other"],
            "Field `c` is of type oneof, but Value other is not in options ['male', 'female'].",
        ),
        (OneOf(Int(), (1, 2)), [1, 3], "Value 3 is not in options [1, 2] (row 1)."),
        (
            Regex("[a-z]+@[a-z]+"),
            ["nobody"],
            "Field `c` is of type regex[str], but Value nobody does not match regex [a-z]+@[a-z]+.",
        ),
        (
            List(Between(Int(), 0, 1)),
            [[0], [1, 5]],
            "Value 5 is out of bounds for between type, bounds are [0, 1] (row 1).",
        ),
    ],
)
def test_a_value_that_violates_its_types_restriction_is_forbidden(dtype, values, text):
    with pytest.raises(ForbiddenValues) as caught:
        decode_column(values, dtype, "c")
    assert str(caught.value).endswith(text)


def test_allowed_values_of_restricted_types_are_accepted():
    assert decode_column([0, 100], Between(Int(), 0, 100), "c").to_pylist() == [0, 100]
    assert decode_column(["21"], Between(Int(), 0, 100), "c").to_pylist() == [21]
    assert decode_column([None, "b"], Optional(OneOf(Str(), ("a", "b"))), "c").to_pylist() == [
        None,
        "b",
    ]
    assert decode_column(
        ["a@b and more", None], Optional(Regex("[a-z]+@[a-z]+")), "c"
    ).to_pylist() == ["a@b and more", None]


USERS = Schema(
    (Field("id", Int()),),
    (Field("age", Between(Int(), 0, 100)), Field("sex", OneOf(Str(), ("f", "m")))),
    "at",
)


def test_a_table_has_the_schemas_columns_in_its_order():
    body = {"at": [1704067200000], "age": [3], "more": [1], "sex": ["f"], "id": [7]}
    assert decode_table(body, USERS, "Users").to_pylist() == [
        {"id": 7, "age": 3, "sex": "f", "at": NEW_YEAR}
    ]
    assert decode_table(body, USERS, "Users").schema == USERS.arrow()


def test_violations_in_several_columns_are_reported_in_the_clients_form():
    with pytest.raises(RejectedRows) as caught:
        decode_table({"id": [1], "age": [123], "sex": ["x"], "at": [1]}, USERS, "Users")
    assert str(caught.value) == (
        "Schema validation failed during data insertion to `Users` "
        "[ValueError('Field `age` is of type between, but Value 123 is out of bounds "
        "for between type, bounds are [0, 100].'), "
        "ValueError(\"Field `sex` is of type oneof, but Value x is not in options ['f', 'm'].\")]"
    )


def test_failed_casts_and_missing_columns_are_reported_before_violations():
    with pytest.raises(RejectedRows) as caught:
        decode_table({"id": ["x"], "age": [123], "at": ["y"]}, USERS, "Users")
    assert str(caught.value) == (
        "Schema validation failed during data insertion to `Users`: "
        "Failed to cast data logged to column `id` of type `int`: Unable to parse "
        'string "x" at position 0; '
        "Field `sex` not found in dataframe while logging to dataset; "
        "Failed to cast data logged to timestamp column at: Unknown datetime string "
        "format, unable to parse: y, at position 0"
    )
    assert len(caught.value.causes) == 4


def test_columns_of_different_lengths_are_rejected():
    with pytest.raises(RejectedRows, match="equally long"):
        decode_table({"id": [1, 2], "age": [1], "sex": ["f"], "at": [1]}, USERS, "Users")


def test_encoded_values_have_the_form_that_the_client_reads():
    at = dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert encode_column(pa.array([at, None], arrow_type(Timestamp())), Timestamp()) == [
        "2024-01-02T03:04:05.000006+00:00",
        None,
    ]
    assert encode_column(pa.array([at.date()], pa.date32()), Date()) == ["2024-01-02"]
    assert encode_column(pa.array([D("1.10"), None], arrow_type(Decimal(2))), Decimal(2)) == [
        1.1,
        None,
    ]
    assert encode_column(pa.array([b"hello"], pa.large_binary()), Bytes()) == ["aGVsbG8="]
    assert encode_column(pa.array([1.5, float("nan"), float("inf"), None]), Float()) == [
        1.5,
        None,
        None,
        None,
    ]
    moments = decode_column([[1704067200000], []], List(Timestamp()), "c")
    assert encode_column(moments, List(Timestamp())) == [["2024-01-01T00:00:00.000000+00:00"], []]


def test_polars_columns_and_slices_encode_like_whole_arrays():
    dtype = List(POINT)
    array = decode_column([[{"x": 1}], [], [{"x": 2, "y": 3}, {"x": 4}], [{"x": 5}]], dtype, "c")
    whole = encode_column(array, dtype)
    assert encode_column(array.slice(1, 2), dtype) == whole[1:3]
    assert encode_column(pl.Series(array), dtype) == whole
    assert encode_column(pa.chunked_array([array.slice(0, 1), array.slice(1)]), dtype) == whole


def test_large_decimals_are_encoded_as_the_nearest_number():
    value = D("12345678901234567890123456.78")
    assert encode_column(pa.array([value], arrow_type(Decimal(2))), Decimal(2)) == [float(value)]
