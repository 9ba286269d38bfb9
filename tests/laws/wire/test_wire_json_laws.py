"""Laws of the JSON codec.

Encoded values decode to themselves, and the cast of a value does not depend on other values.
"""

import base64
import datetime as dt
import decimal
import json

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import arrow_type
from fennel_core.wire.errors import BadColumn
from fennel_core.wire.json_decode import decode_column
from fennel_core.wire.json_encode import encode_column

LEAVES = st.sampled_from(
    [
        dtypes.Int(),
        dtypes.Float(),
        dtypes.Str(),
        dtypes.Bool(),
        dtypes.Timestamp(),
        dtypes.Date(),
        dtypes.Decimal(2),
        dtypes.Between(dtypes.Int(), -(2**63), 2**63 - 1),
        dtypes.Regex(".*"),
    ]
)


def wider(inner: st.SearchStrategy) -> st.SearchStrategy:
    field_names = st.sampled_from([("a",), ("a", "b"), ("key", "value")])
    structs = field_names.flatmap(
        lambda names: st.tuples(*(inner for _ in names)).map(
            lambda of: dtypes.Struct(
                "S", tuple(dtypes.Field(n, d) for n, d in zip(names, of, strict=True))
            )
        )
    )
    return st.one_of(
        inner.map(dtypes.optional),
        inner.map(dtypes.List),
        inner.map(dtypes.Map),
        structs,
        st.integers(1, 3).map(dtypes.Embedding),
    )


TYPES = st.recursive(LEAVES, wider, max_leaves=4)
SINCE, UNTIL = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)  # noqa: DTZ001 - hypothesis adds the zone


def values_of(dtype) -> st.SearchStrategy:
    """Python values that the Arrow layout of `dtype` holds."""
    match dtype:
        case dtypes.Optional(of):
            return st.none() | values_of(of)
        case dtypes.Int() | dtypes.Between():
            return st.integers(-(2**63), 2**63 - 1)
        case dtypes.Float():
            return st.floats(allow_nan=False, allow_infinity=False)
        case dtypes.Str() | dtypes.Regex():
            return st.text(max_size=8)
        case dtypes.Bool():
            return st.booleans()
        case dtypes.Timestamp():
            return st.datetimes(SINCE, UNTIL, timezones=st.just(dt.UTC))
        case dtypes.Date():
            return st.dates()
        case dtypes.Decimal(scale):
            return st.integers(-(10**12), 10**12).map(lambda n: decimal.Decimal(n).scaleb(-scale))
        case dtypes.Embedding(size):
            return st.lists(
                st.floats(allow_nan=False, allow_infinity=False), min_size=size, max_size=size
            )
        case dtypes.List(of):
            return st.lists(values_of(of), max_size=3)
        case dtypes.Map(value):
            entries = st.dictionaries(st.text(max_size=3), values_of(value), max_size=3)
            return entries.map(lambda d: [{"key": k, "value": v} for k, v in d.items()])
        case dtypes.Struct(_, fields):
            return st.fixed_dictionaries({f.name: values_of(f.dtype) for f in fields})
    raise AssertionError(dtype)


COLUMNS = TYPES.flatmap(
    lambda dtype: st.tuples(st.just(dtype), st.lists(values_of(dtype), max_size=5))
)


@given(COLUMNS)
@settings(max_examples=120, deadline=None)
def test_an_encoded_column_decodes_to_itself(column):
    dtype, values = column
    array = pa.array(values, arrow_type(dtype))
    encoded = json.loads(json.dumps(encode_column(array, dtype), allow_nan=False))
    assert decode_column(encoded, dtype, "c").equals(array)


ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.integers(-3, 3),
    st.floats(allow_infinity=False),
    st.integers(-(10**12), 10**12).map(lambda n: n / 1000),
    st.text(max_size=4),
    st.sampled_from(
        [
            "1",
            "-2.5",
            "true",
            "2024-01-01",
            "2024-01-01T00:00:00.5Z",
            "1704067200000",
            "2024-01-01 01:02:03+05:30",
            "10:30",
            "1_0",
            "\ud800",
        ]
    ),
)


def outcome(values, dtype):
    try:
        return decode_column(values, dtypes.optional(dtype), "c").to_pylist()
    except BadColumn as error:
        return {b.row: b.reason.replace(f"position {b.row}", "position") for b in error.bad}


@given(LEAVES, st.lists(ODD_VALUES, min_size=1, max_size=6))
@settings(max_examples=200, deadline=None)
def test_the_cast_of_a_value_does_not_depend_on_other_values(dtype, values):
    alone = [outcome([value], dtype) for value in values]
    together = outcome(values, dtype)
    if isinstance(together, list):
        assert [a[0] for a in alone] == together
    else:
        assert {row: a[0] for row, a in enumerate(alone) if isinstance(a, dict)} == together


@given(st.lists(st.none() | st.binary(max_size=9), max_size=5))
def test_bytes_are_encoded_in_base64(values):
    encoded = encode_column(pa.array(values, pa.large_binary()), dtypes.Bytes())
    assert [None if text is None else base64.b64decode(text) for text in encoded] == values
