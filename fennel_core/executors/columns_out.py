"""Convert results of user code to Arrow columns of declared types (executor environment).

A column that already has the declared dtype is wrapped. Other columns pass the client's own cast
and schema check, so that leniency and error texts are exactly those of the client's test server.
The layout on the wire is the platform's: large strings and lists, microseconds, maps as lists of
key and value.
"""

from __future__ import annotations

import datetime as dt
import json
from functools import lru_cache
from typing import Any

import fennel.gen.schema_pb2 as schema_proto
import numpy as np
import pandas as pd
import pyarrow as pa
from fennel.internal_lib.schema import data_schema_check, validate_field_in_df
from fennel.internal_lib.schema.schema import cast_col_to_arrow_dtype

from fennel_core.executors.columns_in import Description, base, optional
from fennel_core.executors.internal_errors import ResultInvalid

DECIMAL_PRECISION = 28
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NAT = np.iinfo(np.int64).min


def layout(description: Description) -> pa.DataType:
    """Return the platform's Arrow type of a description (as `vocab.dtypes.arrow_type`)."""
    match base(description):
        case "i":
            return pa.int64()
        case "f":
            return pa.float64()
        case "s":
            return pa.large_string()
        case "b":
            return pa.bool_()
        case "y":
            return pa.large_binary()
        case "t":
            return pa.timestamp("us", tz="UTC")
        case "d":
            return pa.date32()
        case "n":
            return pa.null()
        case ["decimal", scale]:
            return pa.decimal128(DECIMAL_PRECISION, scale)
        case ["embedding", _]:
            return pa.large_list(pa.float64())
        case ["list", of]:
            return pa.large_list(layout(of))
        case ["map", of]:
            return pa.large_list(pa.struct([("key", pa.large_string()), ("value", layout(of))]))
        case ["struct", _, fields]:
            return pa.struct([(name, layout(of)) for name, of in fields])
        case unknown:
            raise ResultInvalid(f"the description {unknown!r} is not known here")


def check(columns: pd.DataFrame, fields: list[list[Any]], entity: str) -> list[ValueError]:
    """Return the problems that the client's schema check finds; empty if there are none."""
    if all(name in columns and _agrees(columns[name], description) for name, description in fields):
        return []
    protos = [
        schema_proto.Field(name=name, dtype=_proto(json.dumps(description)))
        for name, description in fields
    ]
    problems: list[ValueError] = data_schema_check(
        schema_proto.DSSchema(values=schema_proto.Schema(fields=protos)),
        columns.reset_index(),
        entity,
    )
    return problems


def check_column(columns: pd.DataFrame, name: str, description: Description, entity: str) -> None:
    """Run the client's check of one assigned column, which raises ValueError."""
    if not _agrees(columns[name], description):
        validate_field_in_df(
            schema_proto.Field(name=name, dtype=_proto(json.dumps(description))), columns, entity
        )


def to_arrow(series: pd.Series, description: Description) -> pa.Array:
    """Return the column in the platform's layout.

    Raises the exceptions of the client's cast for values that do not fit the declaration.
    """
    quick = _wrapped(series, base(description))
    if quick is not None:
        if quick.null_count and not optional(description):
            raise ValueError("Null values found in non-optional field.")
        return quick
    if base(description) == "n":
        return pa.nulls(len(series))
    cast = cast_col_to_arrow_dtype(series, _proto(json.dumps(description)))
    array = pa.array(cast.array)
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    target = layout(description)
    if isinstance(array, pa.ChunkedArray):
        return pa.array([], target)
    if array.type.equals(target):
        return array
    if _has_map(description):
        return pa.array([_relaid(v, description) for v in array.to_pylist()], target)
    return array.cast(target, safe=False)


def cast_text(name: str, description: Description, error: Exception) -> str:
    """Return the client's text for a column that does not fit its declaration."""
    return (
        f"Failed to cast column2 `{name}` of type `{_type_name(description)}` to arrow "
        f"dtype. Error: {error}"
    )


def _agrees(series: pd.Series, description: Description) -> bool:
    """Return whether the column certainly fits its declaration; False: run the client's check."""
    kind = (
        description[1]
        if isinstance(description, list) and description[0] == "optional"
        else description
    )
    dtype = series.dtype
    match kind:
        case "i":
            fits = isinstance(dtype, pd.Int64Dtype) or dtype == np.int64
        case "f":
            fits = isinstance(dtype, pd.Float64Dtype) or dtype == np.float64
        case "s":
            fits = isinstance(dtype, pd.StringDtype)
        case "b":
            fits = isinstance(dtype, pd.BooleanDtype) or dtype == np.bool_
        case _:
            fits = False
    return fits and (optional(description) or not series.isna().any())


def _wrapped(series: pd.Series, kind: Description) -> pa.Array | None:
    """Return the Arrow array if the dtype is already the declared one; None if it needs the
    cast.
    """
    dtype = series.dtype
    match kind:
        case "i" if isinstance(dtype, pd.Int64Dtype) or dtype == np.int64:
            return pa.array(series.array, pa.int64())
        case "f" if isinstance(dtype, pd.Float64Dtype):
            return pa.array(series.array, pa.float64())
        case "f" if dtype == np.float64:
            return pa.array(series.to_numpy(), pa.float64(), from_pandas=True)
        case "b" if isinstance(dtype, pd.BooleanDtype) or dtype == np.bool_:
            return pa.array(series.array, pa.bool_())
        case "s" if isinstance(dtype, pd.StringDtype):
            return pa.array(series.to_numpy(dtype=object), pa.large_string(), from_pandas=True)
        case "t" if isinstance(dtype, pd.DatetimeTZDtype):
            values = series.array.asi8  # since the epoch in UTC, whatever the zone
            per_micro = {"ns": 1000, "us": 1}.get(dtype.unit)
            if per_micro is None:
                return None
            return pa.array(
                np.floor_divide(values, per_micro), pa.int64(), mask=values == _NAT
            ).view(layout("t"))
        case _:
            return None


def _has_map(description: Description) -> bool:
    match base(description):
        case ["map", _]:
            return True
        case ["list", of]:
            return _has_map(of)
        case ["struct", _, fields]:
            return any(_has_map(of) for _, of in fields)
        case _:
            return False


def _relaid(value: Any, description: Description) -> Any:
    """Convert maps inside a nested Python value to lists of key and value."""
    if value is None:
        return None
    match base(description):
        case ["map", of]:
            return [{"key": k, "value": _relaid(v, of)} for k, v in value]
        case ["list", of]:
            return [_relaid(v, of) for v in value]
        case ["struct", _, fields]:
            return {name: _relaid(value[name], of) for name, of in fields}
        case "t":
            return (
                round((value - _EPOCH) / dt.timedelta(microseconds=1))
                if isinstance(value, dt.datetime)
                else value
            )
        case _:
            return value


def _type_name(description: Description) -> str:
    """Return the type's name in the client's messages."""
    match description:
        case "i":
            return "int"
        case "f":
            return "float"
        case "s":
            return "string"
        case "b":
            return "bool"
        case "t":
            return "timestamp"
        case ["optional", of]:
            return f"optional({_type_name(of)})"
        case _:
            return str(_proto(json.dumps(description)))


@lru_cache(maxsize=4096)
def _proto(description_json: str) -> Any:
    """Return the client's protobuf of a description, for its checks and casts."""
    return _make_proto(json.loads(description_json))


_SIMPLE = {
    "i": ("int_type", schema_proto.IntType),
    "f": ("double_type", schema_proto.DoubleType),
    "s": ("string_type", schema_proto.StringType),
    "b": ("bool_type", schema_proto.BoolType),
    "y": ("bytes_type", schema_proto.BytesType),
    "t": ("timestamp_type", schema_proto.TimestampType),
    "d": ("date_type", schema_proto.DateType),
    "n": ("null_type", schema_proto.NullType),
}


def _make_proto(description: Description) -> Any:
    data_type = schema_proto.DataType
    match description:
        case str():
            name, kind = _SIMPLE[description]
            return data_type(**{name: kind()})
        case ["optional", of]:
            return data_type(optional_type=schema_proto.OptionalType(of=_make_proto(of)))
        case ["decimal", scale]:
            return data_type(decimal_type=schema_proto.DecimalType(scale=scale))
        case ["embedding", size]:
            return data_type(embedding_type=schema_proto.EmbeddingType(embedding_size=size))
        case ["list", of]:
            return data_type(array_type=schema_proto.ArrayType(of=_make_proto(of)))
        case ["map", of]:
            key = data_type(string_type=schema_proto.StringType())
            return data_type(map_type=schema_proto.MapType(key=key, value=_make_proto(of)))
        case ["struct", name, fields]:
            parts = [schema_proto.Field(name=field, dtype=_make_proto(of)) for field, of in fields]
            return data_type(struct_type=schema_proto.StructType(name=name, fields=parts))
        case ["regex", pattern]:
            return data_type(regex_type=schema_proto.RegexType(pattern=pattern))
        case ["between", of, low, high, strict_min, strict_max]:
            inner = _make_proto(of)
            bounds = [
                schema_proto.Value(int=v) if of == "i" else schema_proto.Value(float=v)
                for v in (low, high)
            ]
            return data_type(
                between_type=schema_proto.Between(
                    dtype=inner,
                    min=bounds[0],
                    max=bounds[1],
                    strict_min=strict_min,
                    strict_max=strict_max,
                )
            )
        case ["oneof", of, options]:
            values = [
                schema_proto.Value(int=v) if of == "i" else schema_proto.Value(string=v)
                for v in options
            ]
            return data_type(one_of_type=schema_proto.OneOf(of=_make_proto(of), options=values))
        case unknown:
            raise ResultInvalid(f"the description {unknown!r} is not known here")
