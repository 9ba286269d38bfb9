"""The messages of events: types as Debezium's, without schemas."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import polars as pl

from fennel_core.sinks.changes import events_of
from fennel_core.sinks.debezium import ChangeSource, change_records
from fennel_core.vocab import dtypes as d
from fennel_core.vocab.dtypes import Field
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import arrow_schema
from tests.support.sink_world import USERS, frame, located, shown

AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
WIDE = Schema(
    (Field("id", d.Int()),),
    (
        Field("price", d.Decimal(2)),
        Field("day", d.Date()),
        Field("raw", d.Bytes()),
        Field("ratio", d.Float()),
        Field("names", d.Map(d.Int())),
        Field("days", d.List(d.Date())),
        Field("note", d.Optional(d.Str())),
    ),
    "at",
)


def test_values_are_those_of_debezium() -> None:
    row = {
        "id": 7,
        "price": Decimal("1.50"),
        "day": datetime.date(1970, 1, 3),
        "raw": b"\x00\x01",
        "ratio": float("nan"),
        "names": [{"key": "a", "value": 1}],
        "days": [datetime.date(1970, 1, 2)],
        "note": None,
        "at": AT,
        "__pos": b"\x01",
        "__sign": 1,
        "__tombstone": False,
    }
    types = pl.from_arrow(arrow_schema(WIDE).empty_table())
    assert isinstance(types, pl.DataFrame)
    versions = located([(3, 9, pl.DataFrame([row], schema=dict(types.schema)))], WIDE)
    of = ChangeSource("kafka", "shop", "Wide", WIDE)
    (record,) = change_records(versions, events_of(versions, WIDE), of, 42)
    assert record.key == b'{"id":7}'
    assert json.loads(record.value or b"") == {
        "before": None,
        "after": {
            "id": 7,
            "price": "1.50",
            "day": 2,
            "raw": "AAE=",
            "ratio": None,
            "names": {"a": 1},
            "days": [1],
            "note": None,
            "at": "2026-01-02T03:04:05.000006Z",
        },
        "source": {
            "connector": "fennel",
            "name": "kafka",
            "snapshot": "false",
            "db": "shop",
            "table": "Wide",
            "ts_ms": 1767323045000,
            "ts_us": 1767323045000006,
            "position": "01",
            "partition": 3,
            "offset": 9,
            "withdrawn": None,
            "retraction": False,
        },
        "op": "c",
        "ts_ms": 42,
    }


def events(*versions: tuple[int, int | None, int, int, int]) -> list[tuple]:
    batch = located([(0, 0, frame(versions))])
    of = ChangeSource("kafka", "shop", "Users", USERS)
    return shown(change_records(batch, events_of(batch, USERS), of, 42))


def sources(*versions: tuple[int, int | None, int, int, int]) -> list[dict]:
    batch = located([(0, 0, frame(versions))])
    of = ChangeSource("kafka", "shop", "Users", USERS)
    found = change_records(batch, events_of(batch, USERS), of, 42)
    return [json.loads(each.value or b"")["source"] for each in found]


def test_a_replaced_row_has_both_images() -> None:
    assert events((1, 10, 5, 1, -1), (1, 11, 5, 1, 1)) == [(1, "u", 10, 11)]


def test_a_delete_has_the_old_row_if_it_is_known() -> None:
    assert events((1, None, 5, 1, 1)) == [(1, "d", None, None)]
    assert events((1, 10, 5, 1, -1), (1, None, 5, 1, 1)) == [(1, "d", 10, None)]


def test_a_row_that_moves_in_time_is_there_at_the_end() -> None:
    assert events((1, 10, 9, 1, -1), (1, 11, 3, 2, 1)) == [(1, "u", 10, 11)]
    source = sources((1, 10, 9, 1, -1), (1, 11, 3, 2, 1))[0]
    assert (source["ts_us"], source["position"], source["retraction"]) == (3, "00000002", False)
    assert source["withdrawn"] == {"ts_us": 9, "position": "00000001"}


def test_a_retraction_names_the_version_that_it_withdraws() -> None:
    assert events((1, 10, 9, 1, -1)) == [(1, "d", 10, None)]
    assert events((1, None, 9, 1, -1)) == [(1, "d", None, None)]
    for value in (10, None):
        (source,) = sources((1, value, 9, 1, -1))
        assert source["retraction"]
        assert source["withdrawn"] == {"ts_us": 9, "position": "00000001"}
    assert not sources((1, None, 9, 1, 1))[0]["retraction"]


def test_an_addition_is_paired_with_the_nearest_retraction() -> None:
    changed = events((1, 10, 5, 1, -1), (1, 20, 5, 2, -1), (1, 21, 5, 2, 1), (1, 30, 5, 3, 1))
    assert changed == [(1, "u", 20, 21), (1, "u", 10, 30)]


def test_a_retraction_of_one_key_changes_no_order_of_others() -> None:
    added = [(2, 20, 5, 2, 1), (3, 30, 5, 2, 1), (4, 40, 4, 3, 1)]
    alone = events(*added)
    assert events((1, 10, 9, 1, -1), *added) == [(1, "d", 10, None), *alone]


def test_the_latest_of_a_message_comes_last() -> None:
    assert [e[3] for e in events((1, 30, 7, 1, 1), (1, 10, 5, 2, 1))] == [10, 30]


def test_without_keys_each_version_is_an_event_in_order() -> None:
    bag = Schema((), (Field("age", d.Int()),), "at")
    keyless = frame([(1, 10, 5, 1, 1), (1, 10, 5, 1, -1), (1, 11, 5, 2, 1)]).drop("user")
    batch = _bag(keyless)
    of = ChangeSource("kafka", "shop", "Bag", bag)
    records = change_records(batch, events_of(batch, bag), of, 42)
    assert [(r.key, r.part) for r in records] == [(None, 4)] * 3
    assert [json.loads(r.value or b"")["op"] for r in records] == ["c", "d", "c"]
    late = _bag(frame([(1, 10, 5, 1, 1), (1, 11, 3, 2, 1)]).drop("user"))
    records = change_records(late, events_of(late, bag), of, 42)
    assert [json.loads(r.value or b"")["after"]["age"] for r in records] == [10, 11]


def _bag(keyless: pl.DataFrame) -> pl.DataFrame:
    return keyless.with_columns(
        pl.lit(4, pl.Int64).alias("__part"), pl.lit(0, pl.Int64).alias("__offset")
    )
