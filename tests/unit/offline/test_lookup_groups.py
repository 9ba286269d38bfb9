"""Requests of a group of lookups: their keys and times, and the rows that cannot be looked up."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from fennel_core.connections.erasures import ErasableKeys
from fennel_core.offline.lookup_groups import LookupGroup, with_requests
from fennel_core.offline.rows import AT, ELEMENT, REASON, ROW, register
from fennel_core.offline.scratch import ScratchStore, open_spill
from fennel_core.offline.sources import AggregateSource
from fennel_core.offline.tile_lookups import TileLookups
from fennel_core.offline.timeline import KEY, TIME, in_order, request_rows, version_rows
from fennel_core.operators.spec import AggregateSpec
from fennel_core.query.columns import QueryColumn
from fennel_core.query.errors import ValueNotConvertible
from fennel_core.query.execution import key_values
from fennel_core.query.program import BoundLookup
from fennel_core.vocab.dtypes import Field, Int, Str, Timestamp
from fennel_core.vocab.ids import DatasetName, JobId, WorkspaceId
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire

ERASABLE = ErasableKeys(WorkspaceId("w"), DatasetName("D"), ("k",))
VALUES = ["5", "x", "-1"]


def group(*, listed: bool) -> LookupGroup:
    lookup = BoundLookup(
        JobId("j"), 1, (0,), (Int(),), ("k",), b"", (), listed, 0, ERASABLE, ("F.v",)
    )
    return LookupGroup((lookup,), ())


def rows(values: list[Any]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            ROW: pl.Series(range(len(values)), dtype=pl.Int64),
            AT: pl.Series(range(len(values)), dtype=pl.Int64).cast(pl.Datetime("us", "UTC")),
            register(0): values,
        }
    )


def keys(*values: int) -> list[bytes]:
    return key_bytes(pl.DataFrame({"k": values}), ["k"])


def test_a_key_that_its_field_cannot_hold_fails_its_row_as_online() -> None:
    for value in VALUES:
        column = QueryColumn(Str(), [value])
        if value == "x":
            with pytest.raises(ValueNotConvertible, match="cannot be looked up as"):
                key_values(column, Int())
        else:
            assert key_values(column, Int()) == [int(value)]

    requests, failures = with_requests(rows(VALUES), group(listed=False))

    assert requests.select(ROW, KEY, TIME).rows() == list(
        zip([0, 2], keys(5, -1), [0, 2], strict=True)
    )
    assert failures[ROW].to_list() == [1]
    assert "cannot be looked up as" in failures[REASON].item()


def test_a_list_with_such_a_key_fails_its_row_once() -> None:
    requests, failures = with_requests(
        rows([["5", "-1"], ["7", "x", "x"], [], ["8"]]), group(listed=True)
    )
    assert requests.select(ROW, ELEMENT, KEY).rows() == list(
        zip([0, 0, 3], [0, 1, 0], keys(5, -1, 8), strict=True)
    )
    assert failures[ROW].to_list() == [1]


def test_an_event_counts_by_the_column_that_its_aggregation_names(tmp_path: Any) -> None:
    events = Schema((), (Field("k", Int()), Field("paid", Timestamp())), "t")
    specs = (wire.Count("n", wire.Forever(), None, False, False, False),)
    output = Schema((Field("k", Int()),), (Field("n", Int()),), "t")
    source = AggregateSource(AggregateSpec(events, ("k",), specs, "paid", True, output), ("n",))
    time = pl.Datetime("us", "UTC")
    frame = pl.DataFrame({"k": [1], "paid": [1], "t": [50], "__pos": [b"p"]}).select(
        "k",
        pl.col("paid", "t").cast(time),
        "__pos",
        pl.lit(1, dtype=pl.Int8).alias("__sign"),
        pl.lit(value=False).alias("__tombstone"),
    )
    asked = request_rows(pl.DataFrame({KEY: keys(1, 1), TIME: [0, 2]}))
    parts = [version_rows(frame, 0, source.keys, source.time, source.version_columns), asked]
    lookups = TileLookups(source, 0, ScratchStore(lambda: open_spill(tmp_path)))
    found = pl.concat([lookups.answer(chunk.seen_by(0)) for chunk in in_order(parts, 1, 1)])
    assert found["n"].to_list() == [None, 1]
