"""Columns in both forms and as JSON; their keys equal those that ingest wrote."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as Exact
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.query.columns import QueryColumn
from fennel_core.query.encode import SMALL_ROWS, json_values
from fennel_core.query.errors import ValueNotConvertible
from fennel_core.query.execution import key_bytes
from fennel_core.query.values import default_value, input_column
from fennel_core.vocab import dtypes, keys
from fennel_core.vocab.dtypes import (
    Bool,
    Bytes,
    Date,
    Dtype,
    Field,
    Float,
    Int,
    List,
    Map,
    Optional,
    Str,
    Struct,
    Timestamp,
    arrow_type,
)
from fennel_core.wire.json_encode import encode_column

POINT = Struct(
    "Point",
    (Field("at", Timestamp()), Field("cost", dtypes.Decimal(2)), Field("n", Optional(Int()))),
)
LEAVES: dict[Dtype, st.SearchStrategy[Any]] = {
    Int(): st.integers(-(2**63), 2**63 - 1),
    Float(): st.floats(allow_nan=False, allow_infinity=False),
    Str(): st.text(st.characters(exclude_categories=("Cs",)), max_size=5),
    Bool(): st.booleans(),
    Bytes(): st.binary(max_size=5),
    Timestamp(): st.integers(-(2**51), 2**51).map(
        lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    ),
    Date(): st.dates(date(1900, 1, 1), date(2100, 1, 1)),
    dtypes.Decimal(2): st.integers(-(10**9), 10**9).map(lambda n: Exact(n).scaleb(-2)),
}


def values_of(dtype: Dtype) -> st.SearchStrategy[Any]:
    match dtype:
        case Optional(of):
            return st.one_of(st.none(), values_of(of))
        case List(of):
            return st.lists(values_of(of), max_size=3)
        case Map(value):
            return st.dictionaries(st.text("abc", max_size=2), values_of(value), max_size=2).map(
                lambda found: [{"key": key, "value": item} for key, item in found.items()]
            )
        case Struct(_, fields):
            return st.fixed_dictionaries({f.name: values_of(f.dtype) for f in fields})
        case _:
            return LEAVES[dtype]


TYPES: list[Dtype] = [
    *LEAVES,
    *(Optional(leaf) for leaf in LEAVES),
    List(Int()),
    List(Optional(Timestamp())),
    Optional(List(dtypes.Decimal(2))),
    Map(Int()),
    Map(Timestamp()),
    POINT,
    Optional(POINT),
    List(POINT),
]


def series_of(dtype: Dtype, values: list[Any]) -> pl.Series:
    series = pl.from_arrow(pa.array(values, arrow_type(dtype)))
    assert isinstance(series, pl.Series)
    return series


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_both_forms_of_a_column_have_the_same_values(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(TYPES))
    series = series_of(dtype, data.draw(st.lists(values_of(dtype), max_size=5)))
    physical = QueryColumn(dtype, series=series).values
    assert physical == [row[0] for row in keys.physical(series.to_frame("x")).rows()]
    assert QueryColumn(dtype, physical).series.to_list() == series.to_list()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_key_bytes_are_those_that_ingest_and_engine_make(data: st.DataObject) -> None:
    kinds = data.draw(
        st.lists(st.sampled_from([*LEAVES, POINT, List(Int())]), min_size=1, max_size=3)
    )
    rows = data.draw(st.integers(1, 4))
    columns = [data.draw(st.lists(values_of(kind), min_size=rows, max_size=rows)) for kind in kinds]
    frame = pl.DataFrame(
        [
            series_of(kind, column).alias(f"k{n}")
            for n, (kind, column) in enumerate(zip(kinds, columns, strict=True))
        ]
    )
    made = key_bytes(
        [QueryColumn(kind, series=frame[f"k{n}"]).values for n, kind in enumerate(kinds)]
    )
    assert made == keys.key_bytes(frame, frame.columns)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_short_cuts_into_json_agree_with_the_codec(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(TYPES))
    size = data.draw(st.sampled_from([0, 1, 3, SMALL_ROWS + 1]))
    series = series_of(dtype, data.draw(st.lists(values_of(dtype), min_size=size, max_size=size)))
    quick = json_values(QueryColumn(dtype, QueryColumn(dtype, series=series).values))
    assert json.loads(msgspec.json.encode(quick)) == json.loads(
        msgspec.json.encode(encode_column(series, dtype))
    )


@pytest.mark.parametrize(
    ("dtype", "value", "sent"),
    [
        (Float(), float("nan"), "NaN"),
        (Float(), float("inf"), "Infinity"),
        (Float(), float("-inf"), "-Infinity"),
        (Optional(Float()), float("nan"), None),
    ],
)
def test_a_float_that_json_lacks_is_spelt_where_null_is_forbidden(
    dtype: Dtype, value: float, sent: object
) -> None:
    assert json.loads(msgspec.json.encode(json_values(QueryColumn(dtype, [value, 0.0])))) == [
        sent,
        0.0,
    ]


@pytest.mark.parametrize(
    ("dtype", "text", "physical"),
    [
        (Int(), "7", 7),
        (Float(), "1", 1.0),
        (Str(), '"x"', "x"),
        (dtypes.Decimal(2), '"1.5"', "1.50"),
        (dtypes.Decimal(2), "1.5", "1.50"),
        (Timestamp(), '"2024-01-02 03:04:05"', 1704164645000000),
        (Timestamp(), '"2024-01-02 03:04:05+00:00"', 1704164645000000),
        (Date(), '"1970-01-03"', 2),
        (List(Int()), "[1, 2]", [1, 2]),
        (Optional(Int()), "3", 3),
        (dtypes.OneOf(Str(), ("a",)), '"b"', "b"),
        (
            POINT,
            '{"at": "1970-01-01T00:00:01Z", "cost": 1, "n": null}',
            {"at": 1_000_000, "cost": "1.00", "n": None},
        ),
    ],
)
def test_defaults_are_read_by_their_type(dtype: Dtype, text: str, physical: object) -> None:
    assert default_value(text, dtype) == physical


def test_a_default_of_another_type_is_refused() -> None:
    with pytest.raises(ValueNotConvertible, match="not a value of type int"):
        default_value('"x"', Int())


@pytest.mark.parametrize(
    ("dtype", "values", "physical"),
    [
        (Int(), [1, 2.0, "3"], [1, 2, 3]),
        (Int(), [2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
        (Optional(Int()), [None, 1], [None, 1]),
        (Optional(Float()), [float("nan"), 1.5], [None, 1.5]),
        (Float(), [1, 2.5], [1.0, 2.5]),
        (Timestamp(), [1700000000000, "2023-11-14T22:13:20+00:00"], [1700000000000000] * 2),
        (Date(), [86400000 * 3], [3]),
        (dtypes.Decimal(1), [0.1, 2], ["0.1", "2.0"]),
        (Bytes(), ["ab"], [b"ab"]),
        (dtypes.Between(Int(), 0, 5), [9], [9]),
        (List(Int()), [[1, 2], []], [[1, 2], []]),
        (Map(Int()), [{"a": 1}], [[{"key": "a", "value": 1}]]),
    ],
)
def test_request_columns_are_read_by_their_type(
    dtype: Dtype, values: list[Any], physical: list[Any]
) -> None:
    assert list(input_column(values, dtype, "F.x").values) == physical


@pytest.mark.parametrize(
    ("dtype", "values"),
    [(Int(), [2**63]), (Int(), [None]), (Int(), [1.5]), (Float(), [float("nan")]), (Str(), [None])],
)
def test_a_value_that_cannot_be_cast_is_refused_with_its_column(
    dtype: Dtype, values: list[Any]
) -> None:
    with pytest.raises(ValueNotConvertible, match=r"F\.x"):
        input_column(values, dtype, "F.x")


def test_a_default_fills_nulls_only() -> None:
    column = QueryColumn(Optional(Int()), [1, None]).filled(7, Int())
    assert (column.dtype, list(column.values)) == (Int(), [1, 7])
