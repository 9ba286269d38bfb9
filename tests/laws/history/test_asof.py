"""Law: the content as of any time equals a naive recompute, for all retractions and orders."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.history import asof
from fennel_core.operators.rows import frame_columns
from fennel_core.vocab.dtypes import Field, Float, Int, List, Optional, Str
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from tests.support.histories import META_TYPES, History, histories

KEYED = Schema(
    (Field("k", Str()), Field("n", Int())),
    (Field("v", Optional(Float())), Field("tags", List(Int()))),
    "t",
)
KEYLESS = Schema((), KEYED.fields[:-1], "t")
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from("ab"),
        "n": st.integers(0, 1),
        "v": st.none() | st.sampled_from([0.5, -1.0]),
        "tags": st.lists(st.integers(0, 2), max_size=2),
        "t": st.sampled_from([-5, 0, 1, 300]),
        "__tombstone": st.booleans(),
    }
)
TIMES = [-6, -5, 0, 1, 299, 300]


def versions(history: History, schema: Schema) -> pl.DataFrame:
    rows = [{**change.row, "__sign": change.sign} for batch in history.batches for change in batch]
    columns = {**frame_columns(schema), **META_TYPES}
    plain = pl.DataFrame(
        rows, schema={name: pl.Int64 if name == "t" else dtype for name, dtype in columns.items()}
    )
    return plain.with_columns(pl.col("t").cast(columns["t"]))


def rows(frame: pl.DataFrame) -> list[Any]:
    return sorted(frame.with_columns(pl.col("t").to_physical()).rows(), key=repr)


@settings(deadline=None, max_examples=60)
@given(histories(ROW))
def test_a_keyed_dataset_as_of_a_time_is_its_last_version_by_key_less_tombstones(
    history: History,
) -> None:
    frame = versions(history, KEYED)
    for at in TIMES:
        last: dict[Any, Any] = {}
        for row in sorted(history.left_over(), key=lambda row: (row["t"], row["__pos"])):
            if row["t"] <= at:
                last[row["k"], row["n"]] = row
        expected = [
            tuple(row[name] for name in KEYED.names)
            for row in last.values()
            if not row["__tombstone"]
        ]
        assert rows(asof.content(frame, KEYED, Micros(at))) == sorted(expected, key=repr)


@settings(deadline=None, max_examples=60)
@given(histories(ROW.map(lambda row: {**row, "__tombstone": False})))
def test_a_keyless_dataset_as_of_a_time_is_every_row_until_then(history: History) -> None:
    frame = versions(history, KEYLESS)
    for at in TIMES:
        expected = [
            tuple(row[name] for name in KEYLESS.names)
            for row in history.left_over()
            if row["t"] <= at
        ]
        assert rows(asof.content(frame, KEYLESS, Micros(at))) == sorted(expected, key=repr)


def test_erased_keys_are_absent_at_every_time() -> None:
    meta = {"__pos": [b"1", b"2", b"3"], "__sign": [1, 1, 1], "__tombstone": [False] * 3}
    held = {
        "k": ["a", "a", "b"],
        "n": [1, 2, 1],
        "v": [None] * 3,
        "tags": [[], [], []],
        "t": [0, 0, 0],
    }
    frame = pl.DataFrame({**held, **meta}, schema={**frame_columns(KEYED), **META_TYPES})
    one = ErasedKeys(
        ("k", "n"), frozenset(key_bytes(pl.DataFrame({"k": ["a"], "n": [2]}), ("k", "n")))
    )
    every = ErasedKeys(("k",), frozenset(key_bytes(pl.DataFrame({"k": ["a"]}), ("k",))))
    other = ErasedKeys(("unknown",), frozenset([b"\x91\xa1a"]))
    for erased, left in (
        ((one,), ["a", "b"]),
        ((every,), ["b"]),
        ((one, every), ["b"]),
        ((other,), ["a", "a", "b"]),
        ((), ["a", "a", "b"]),
    ):
        assert sorted(asof.content(frame, KEYED, Micros(0), erased)["k"].to_list()) == left
