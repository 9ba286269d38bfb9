"""Stored rows: every type survives encoding, and state keys have the order of versions."""

import datetime as dt
import decimal

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.operators import rows
from fennel_core.vocab.dtypes import (
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
    Optional,
    Str,
    Struct,
    Timestamp,
)
from fennel_core.vocab.schema import Schema

NESTED = Struct(
    "N",
    (Field("at", Timestamp()), Field("day", Optional(Date())), Field("money", List(Decimal(3)))),
)
TYPES = [
    Int(),
    Float(),
    Str(),
    Bool(),
    Bytes(),
    Timestamp(),
    Date(),
    Decimal(2),
    Embedding(2),
    NESTED,
]
TYPES += [
    List(Optional(Decimal(1))),
    Map(Timestamp()),
    Map(NESTED),
    List(List(Date())),
    List(NESTED),
]
SCHEMA = Schema((), tuple(Field(f"c{i}", Optional(dtype)) for i, dtype in enumerate(TYPES)), "t")
DAY = dt.date(2024, 2, 29)
MOMENT = dt.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=dt.UTC)
INNER = {"at": MOMENT, "day": None, "money": [decimal.Decimal("1.234")]}
FULL = [-5, 0.1, "é", False, b"\x00\xff", MOMENT, DAY, decimal.Decimal("-0.05"), [1.0, 2.5], INNER]
FULL += [
    [None, decimal.Decimal("9.9")],
    [{"key": "a", "value": MOMENT}],
    [{"key": "b", "value": INNER}],
    [[DAY], []],
    [INNER, {**INNER, "day": DAY}],
]


def test_every_type_survives_encoding_and_null_stays_null():
    columns = rows.columns_of(SCHEMA, SCHEMA.value_names)
    frame = pl.DataFrame([FULL, [None] * len(FULL), FULL], schema=columns, orient="row")
    assert rows.decode_rows(rows.encode_rows(frame, SCHEMA.value_names), columns).equals(frame)


def test_rows_without_columns_are_empty_arrays_and_as_many_as_the_frame_has():
    assert rows.encode_rows(pl.DataFrame({"a": [1, 2]}), []) == [b"\x90", b"\x90"]


VERSIONS = st.tuples(
    st.binary(min_size=1, max_size=3),
    st.integers(rows.MIN_TIME, rows.MAX_TIME),
    st.binary(min_size=14, max_size=18),
)


@given(st.lists(VERSIONS, min_size=1))
def test_state_keys_of_one_key_order_by_time_and_then_position(versions):
    key = b"\x91\x01"
    times = pl.Series([t for _, t, _ in versions], dtype=pl.Int64)
    state_keys = rows.ordered_keys(
        b"v", [key] * len(versions), times, pl.Series([p for *_, p in versions], dtype=pl.Binary)
    )
    assert [
        state_keys[i] for i in sorted(range(len(versions)), key=lambda i: versions[i][1:])
    ] == sorted(state_keys)
    (prefix,) = rows.prefixes(b"v", [key])
    assert [rows.time_of(state_key, len(prefix)) for state_key in state_keys] == times.to_list()


def test_prefixes_of_many_keys_are_those_of_each():
    keys = [bytes([0x91, n]) for n in range(100)]
    assert rows.prefixes(b"x", keys) == [rows.prefixes(b"x", [key])[0] for key in keys]
