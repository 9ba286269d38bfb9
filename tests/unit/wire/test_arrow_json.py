"""Arrow columns as the JSON values that `log` reads."""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from decimal import Decimal as D

import numpy as np
import pyarrow as pa
import pytest

from fennel_core.vocab import dtypes
from fennel_core.wire.arrow_json import json_columns
from fennel_core.wire.errors import MalformedData
from fennel_core.wire.json_decode import decode_column

UTC = dt.UTC
NOON = dt.datetime.fromisoformat("2024-02-29T12:00:00.123456")
STRUCT = dtypes.Struct("S", (dtypes.Field("x", dtypes.Int()),))

CASES = [
    (pa.array([1, None, -(2**62)], pa.int64()), dtypes.Optional(dtypes.Int()), None),
    (pa.array([1, 255], pa.uint8()), dtypes.Int(), None),
    (pa.array([1.5, math.nan, math.inf, -math.inf]), dtypes.Optional(dtypes.Float()), [1.5, None]),
    (pa.array([0.1], pa.float32()), dtypes.Float(), [0.10000000149011612]),
    (pa.array(["é", None]), dtypes.Optional(dtypes.Str()), None),
    (pa.array(["a", "b", "a"]).dictionary_encode(), dtypes.Str(), None),
    (pa.array([b"abc"]), dtypes.Bytes(), None),
    (pa.array([NOON], pa.timestamp("us")), dtypes.Timestamp(), [NOON.replace(tzinfo=UTC)]),
    (pa.array([NOON], pa.timestamp("ns", "America/New_York")), dtypes.Timestamp(), None),
    (pa.array([NOON], pa.timestamp("us", "+02:00")), dtypes.Timestamp(), None),
    (pa.array([dt.date(1969, 12, 31), None]), dtypes.Optional(dtypes.Date()), None),
    (pa.array([D("12345678901234.56")]), dtypes.Decimal(2), None),
    (pa.array([[1, 2], [], None]).slice(1), dtypes.Optional(dtypes.List(dtypes.Int())), None),
    (pa.array([[1.5, 2.5]], pa.list_(pa.float32(), 2)), dtypes.Embedding(2), None),
    (pa.array([{"x": 1}, {"x": 2}]).slice(1), STRUCT, None),
    (pa.array([None, {"x": 2}]), dtypes.Optional(STRUCT), None),
    (
        pa.array([[("a", 1)], [("b", 2), ("c", 3)]], pa.map_(pa.string(), pa.int64())).slice(1),
        dtypes.Map(dtypes.Int()),
        [[("b", 2), ("c", 3)]],
    ),
    (pa.array([True, None]), dtypes.Optional(dtypes.Bool()), None),
    (pa.nulls(2), dtypes.Optional(dtypes.Str()), None),
    (pa.array([b"abc", b"\xff", None]), dtypes.Optional(dtypes.Bytes()), None),
    (pa.array([b"\xff" * 32], pa.binary(32)), dtypes.Bytes(), None),
    (pa.array([uuid.UUID(int=7).bytes], pa.uuid()), dtypes.Str(), [str(uuid.UUID(int=7))]),
    (pa.array([2, None], pa.duration("s")), dtypes.Optional(dtypes.Int()), [2_000_000, None]),
    (
        pa.array([[1], None, [2, 3]], pa.list_view(pa.int64())).slice(1),
        dtypes.Optional(dtypes.List(dtypes.Int())),
        None,
    ),
    (
        pa.array([-1, -1000, 1999], pa.timestamp("ns")),
        dtypes.Timestamp(),
        [dt.datetime.fromtimestamp(0, UTC) + dt.timedelta(microseconds=n) for n in (-1, -1, 1)],
    ),
    (pa.array([dt.time(12, 30)]), dtypes.Str(), ["12:30:00.000000"]),
]


def plain(values: list) -> list:
    """Return values with maps as pairs, whatever Arrow's type of them is."""
    return [
        [tuple(each.values()) if isinstance(each, dict) else each for each in value]
        if isinstance(value, list)
        else value
        for value in values
    ]


@pytest.mark.parametrize(("array", "dtype", "expected"), CASES, ids=[str(c[0].type) for c in CASES])
def test_a_column_is_decoded_to_the_values_that_it_had(
    array: pa.Array, dtype: dtypes.Dtype, expected: list | None
) -> None:
    columns = json_columns(pa.record_batch([array], ["c"]))
    # What is stored is JSON text, and what is replayed is decoded from it.
    stored = json.loads(json.dumps(columns["c"], allow_nan=False))
    for values in (columns["c"], stored):
        found = plain(decode_column(values, dtype, "c").to_pylist())
        wanted = array.to_pylist() if expected is None else expected
        assert found[: len(wanted)] == wanted


def test_infinities_are_kept() -> None:
    values = json_columns(pa.record_batch([pa.array([math.inf, -math.inf])], ["c"]))["c"]
    assert decode_column(values, dtypes.Float(), "c").to_pylist() == [math.inf, -math.inf]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            pa.record_batch([pa.array([None], pa.month_day_nano_interval())], ["c"]),
            r"`c` has the type month_day_nano",
        ),
        (
            pa.record_batch(
                [pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])], ["c"]
            ),
            "field `x` is there twice",
        ),
        (pa.record_batch([[1], [2]], ["c", "c"]), "`c` is there twice"),
        (pa.record_batch([], []), "no columns"),
    ],
)
def test_what_has_no_json_form_is_refused(rows: pa.RecordBatch, text: str) -> None:
    with pytest.raises(MalformedData, match=text):
        json_columns(rows)


def timestamps(number: int, unit: str, zone: str | None = None) -> pa.Array:
    return pa.array([number], pa.timestamp(unit, zone))


@pytest.mark.parametrize(
    "array",
    [
        timestamps(2**63 - 1, "ms"),
        timestamps(253_402_300_800, "s"),  # the year 10000
        pa.array([25 * 3600], pa.int32()).view(pa.time32("s")),
        timestamps(2**63 - 1, "us"),
        timestamps(-(2**63), "s"),
        pa.array([2**31 - 1], pa.int32()).view(pa.date32()),
        pa.array([2**62], pa.duration("s")),
        pa.Array.from_buffers(
            pa.string(),
            1,
            [None, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0])), pa.py_buffer(b"\xff")],
        ),
    ],
    ids=str,
)
def test_values_that_cannot_be_represented_are_malformed(array: pa.Array) -> None:
    with pytest.raises(MalformedData):
        json_columns(pa.record_batch([array], ["c"]))


def test_a_zone_that_nobody_knows_changes_no_timestamp() -> None:
    found = json_columns(pa.record_batch([timestamps(0, "us", "No/Where")], ["c"]))
    assert found == {"c": ["1970-01-01T00:00:00.000000+00:00"]}


def test_values_that_no_row_of_a_dictionary_has_are_not_looked_at() -> None:
    offsets = pa.py_buffer(np.array([0, 1, 2], dtype=np.int32))
    values = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xffa")])
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 1]), values)
    assert json_columns(pa.record_batch([column], ["c"])) == {"c": ["a", None, "a"]}
    outside = pa.DictionaryArray.from_arrays(pa.array([2]), values, safe=False)
    with pytest.raises(MalformedData, match="does not have"):
        json_columns(pa.record_batch([outside], ["c"]))
