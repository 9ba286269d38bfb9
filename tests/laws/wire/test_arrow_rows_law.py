"""Any Arrow rows become what `log` makes of the same values, or dead letters; nothing raises."""

import datetime as dt
import json

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.sources.read_rows import ArrowRows, RefusedRows, requests_of
from fennel_core.vocab import dtypes
from fennel_core.wire.errors import BadColumn
from fennel_core.wire.json_decode import decode_column

INT64 = st.integers(-(2**63), 2**63 - 1)
UNITS = st.sampled_from(["s", "ms", "us", "ns"])
ZONES = st.sampled_from([None, "UTC", "Europe/Berlin", "No/Where"])
MICROS = {"s": 1_000_000, "ms": 1000, "us": 1}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def micros(number: int | None, unit: str) -> int | None:
    """Return microseconds; None for null."""
    if number is None:
        return None
    return number // 1000 if unit == "ns" else number * MICROS[unit]


def moment(number: int | None, unit: str) -> object:
    """Return what a client of `log` has for a timestamp; OverflowError if it cannot have it."""
    exact = micros(number, unit)
    return None if exact is None else EPOCH + dt.timedelta(microseconds=exact)


def scalars(unit: str, zone: str | None):
    """Arrow type, dtype, values of Arrow, and a function to the values that a client logs."""
    small = st.one_of(INT64, st.integers(-(10**9), 10**9))
    return st.sampled_from(
        [
            (pa.int64(), dtypes.Int(), INT64, lambda v: v),
            (pa.uint64(), dtypes.Int(), st.integers(0, 2**64 - 1), lambda v: v),
            (pa.float64(), dtypes.Float(), st.floats(), lambda v: v),
            (pa.string(), dtypes.Str(), st.text(max_size=5), lambda v: v),
            (pa.string_view(), dtypes.Str(), st.text(max_size=20), lambda v: v),
            (pa.binary(), dtypes.Bytes(), st.binary(max_size=5), lambda v: v),
            (pa.bool_(), dtypes.Bool(), st.booleans(), lambda v: v),
            (pa.date32(), dtypes.Date(), st.integers(-(2**31), 2**31 - 1), day),
            (pa.timestamp(unit, zone), dtypes.Timestamp(), small, lambda v: moment(v, unit)),
            (pa.duration(unit), dtypes.Int(), small, lambda v: micros(v, unit)),
        ]
    )


def day(number: int | None) -> object:
    return None if number is None else EPOCH.date() + dt.timedelta(days=number)


def nested(of):
    kind, dtype, values, logged = of
    each = st.lists(values, max_size=3)
    return st.sampled_from(
        [
            of,
            (pa.list_(kind), dtypes.List(dtype), each, lambda v: v and [logged(x) for x in v]),
            (pa.list_view(kind), dtypes.List(dtype), each, lambda v: v and [logged(x) for x in v]),
            (
                pa.large_list_view(kind),
                dtypes.List(dtype),
                each,
                lambda v: v and [logged(x) for x in v],
            ),
            (
                pa.struct([("x", kind)]),
                dtypes.Struct("S", (dtypes.Field("x", dtypes.optional(dtype)),)),
                st.fixed_dictionaries({"x": st.none() | values}),
                lambda v: v and {"x": logged(v["x"])},
            ),
        ]
    )


TYPES = st.tuples(UNITS, ZONES).flatmap(lambda of: scalars(*of)).flatmap(nested).flatmap(nested)
COLUMNS = TYPES.flatmap(lambda of: st.tuples(st.just(of), st.lists(st.none() | of[2], max_size=5)))


def typed(values: list, dtype: dtypes.Dtype) -> object:
    """Return the typed rows; None for a dead letter."""
    try:
        return repr(decode_column(values, dtypes.optional(dtype), "c").to_pylist())
    except BadColumn:
        return None


def as_logged(value: object, dtype: dtypes.Dtype, logged) -> object:
    try:
        return typed([logged(value)], dtype)
    except OverflowError:
        return None


@given(COLUMNS, st.booleans(), st.integers(0, 2))
@settings(max_examples=300, deadline=None)
def test_any_rows_are_typed_as_logged_ones_or_are_dead_letters(column, encoded, skipped) -> None:
    (kind, dtype, _, logged), found = column
    array = pa.array(found, kind)
    if encoded and not pa.types.is_nested(kind) and not pa.types.is_string_view(kind):
        array = array.dictionary_encode()
    array, kept = array.slice(skipped), found[skipped:]
    rows = pa.record_batch([array], ["c"])
    part = ArrowRows("t", rows, np.arange(len(rows), dtype=np.int64))
    seen: dict[int, object] = {}
    for request in requests_of("n", "s", part):
        places = request.source.places.tolist()
        if isinstance(request, RefusedRows):
            seen |= dict.fromkeys(places)
            continue
        replayed = json.loads(request.body)["data"]["c"]
        for place, live, stored in zip(places, request.payload.columns["c"], replayed, strict=True):
            seen[place] = typed([live], dtype)
            assert typed([stored], dtype) == seen[place]
    assert sorted(seen) == list(range(len(kept)))
    for place, value in enumerate(kept):
        if seen[place] is not None:
            assert seen[place] == as_logged(value, dtype, logged)
