"""Which messages of a topic's tail are rows."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import polars as pl

from fennel_core.query.inspect import frame_columns, scanned_columns, tail_rows
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

SCHEMA = Schema((Field("uid", Int()),), (Field("name", Str()),), "ts")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def version(
    uid: int, name: str | None, position: int, sign: int = 1, *, gone: bool = False
) -> dict[str, object]:
    return {
        "uid": uid,
        "name": name,
        "ts": NOW,
        POS: position.to_bytes(4, "big"),
        SIGN: sign,
        IS_TOMBSTONE: gone,
    }


def names(versions: list[dict[str, object]], rows: int = 10) -> list[str]:
    frame = pl.DataFrame(versions, schema_overrides={SIGN: pl.Int8})
    return tail_rows(frame, SCHEMA, rows)["name"].to_list()


def test_rows_of_all_partitions_are_ordered_by_position() -> None:
    assert names([version(2, "second", 2), version(1, "first", 1), version(3, "third", 3)]) == [
        "first",
        "second",
        "third",
    ]


def test_only_the_last_rows_are_shown() -> None:
    assert names([version(n, str(n), n) for n in range(20)], rows=3) == ["17", "18", "19"]


def test_a_retracted_version_is_not_a_row() -> None:
    assert names(
        [
            version(1, "wrong", 1),
            version(2, "b", 2),
            version(1, "wrong", 1, -1),
            version(1, "right", 1),
        ]
    ) == ["right", "b"]


def test_a_retraction_of_a_row_before_the_tail_is_not_a_row() -> None:
    assert names([version(1, "old", 1, -1), version(2, "b", 2)]) == ["b"]


def test_a_tombstone_is_not_a_row() -> None:
    assert names([version(1, "a", 1), version(1, None, 2, gone=True)]) == ["a"]


def test_an_empty_dataset_has_empty_columns() -> None:
    assert [(field.name, list(column.values)) for field, column in frame_columns(SCHEMA, None)] == [
        ("uid", []),
        ("name", []),
        ("ts", []),
    ]


def test_scanned_rows_are_the_newest_by_event_time() -> None:
    encode = msgspec.msgpack.encode
    pairs = [(encode([uid]), encode([ts, f"at {ts}"])) for uid, ts in ((1, 30), (2, 10), (3, 20))]
    columns = {
        field.name: list(column.values) for field, column in scanned_columns(SCHEMA, pairs, 2)
    }
    assert columns == {"uid": [3, 1], "name": ["at 20", "at 30"], "ts": [20, 30]}
