"""Files of history: rows survive a round trip, ordered by key group and offset."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest

from fennel_core.history import parquet
from fennel_core.history.conditions import AnyOf, Conditions
from fennel_core.history.parquet import GROUP, OFFSET, TimeLimit
from fennel_core.vocab.ids import Micros, Offset
from fennel_core.vocab.keys import key_bytes, key_group
from fennel_core.vocab.position import Hlc, stamp
from fennel_core.vocab.versions import META_FIELDS, decode, encode
from tests.support import history_world

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
COLUMNS = pa.schema(
    [
        ("user", pa.large_string()),
        ("score", pa.float64()),
        ("price", pa.decimal128(18, 2)),
        ("day", pa.date32()),
        ("tags", pa.large_list(pa.large_string())),
        ("place", pa.struct([("zip", pa.int64()), ("city", pa.large_string())])),
        ("raw", pa.large_binary()),
        ("ts", pa.timestamp("us", "UTC")),
        *META_FIELDS,
    ]
)


def message(users: list[str | None], server: int) -> bytes:
    count = len(users)
    values = {
        "user": users,
        "score": [float("nan"), 1.5, None][:1] * count,
        "price": [Decimal("3.10")] * count,
        "day": [date(2024, 5, 1)] * count,
        "tags": [["a", None], [], None][:1] * count,
        "place": [{"zip": 1, "city": None}] * count,
        "raw": [b"\x00\xff"] * count,
        "ts": [NOON] * count,
        "__pos": stamp(Hlc(1), server, count).to_pylist(),
        "__sign": [1] * count,
        "__tombstone": [False] * count,
    }
    return encode(pa.Table.from_pydict(values, schema=COLUMNS))


def test_rows_are_sorted_by_key_group_and_offset_stably() -> None:
    users = [f"user-{number % 7}" for number in range(100)]
    frame = parquet.file_frame(
        [(Offset(5), message(users, 1)), (Offset(9), message(users, 2))], ("user",)
    )
    assert frame[GROUP].to_list() == [key_group(key) for key in key_bytes(frame, ("user",))]
    order = list(zip(frame[GROUP], frame[OFFSET], frame["__pos"], strict=True))
    assert order == sorted(order), "positions grow within these messages"
    assert frame[OFFSET].value_counts().sort(OFFSET).rows() == [(5, 100), (9, 100)]


def test_rows_without_a_key_are_in_group_zero_in_topic_order() -> None:
    frame = parquet.file_frame(
        [(Offset(0), message(["b", "a"], 1)), (Offset(2), message(["c"], 2))], ()
    )
    assert (frame[GROUP].to_list(), frame["user"].to_list(), frame[OFFSET].to_list()) == (
        [0, 0, 0],
        ["b", "a", "c"],
        [0, 0, 2],
    )


def test_every_type_survives_a_round_trip() -> None:
    frame = parquet.file_frame(
        [(Offset(0), message(["b", "a"], 1)), (Offset(7), message(["c"], 2))], ("user",)
    )
    back = parquet.decode_file(parquet.encode_file(frame))
    assert back.schema == frame.schema
    assert back.equals(frame)
    assert (back.schema[OFFSET], back.schema[GROUP]) == (pl.Int64, pl.Int32)
    assert parquet.decode_file(parquet.encode_file(frame), ["user", OFFSET]).equals(
        frame.select("user", OFFSET)
    )


def test_an_empty_batch_between_others_adds_nothing() -> None:
    frame = parquet.file_frame(
        [(Offset(0), message([], 1)), (Offset(1), message(["c"], 2))], ("user",)
    )
    assert frame[OFFSET].to_list() == [1]
    assert parquet.decode_file(
        parquet.encode_file(parquet.file_frame([(Offset(0), message([], 1))], ("user",)))
    ).is_empty()


def numbered_file(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Rows 0 to 99 in row groups of ten; row n has the time n, and ten rows are one record."""
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 10)
    records = [(Offset(n), history_world.batch(10 * n, 10)) for n in range(10)]
    return parquet.encode_file(parquet.file_frame(records, ()))


def test_columns_of_a_file_are_read_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    body = numbered_file(monkeypatch)
    batches = list(parquet.file_batches(io.BytesIO(body), ["__pos", "at"]))
    assert [batch.height for batch in batches] == [10] * 10
    assert pl.concat(batches).equals(parquet.decode_file(body, ["__pos", "at"]))


def test_rows_later_than_a_limit_or_beyond_an_offset_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = numbered_file(monkeypatch)

    def read(limit: TimeLimit | None, below: Offset | None) -> list[list[int]]:
        batches = parquet.file_batches(io.BytesIO(body), ["k", "at"], limit, below)
        return [batch["at"].to_physical().to_list() for batch in batches]

    early = TimeLimit("at", Micros(14))
    assert read(early, None) == [list(range(10)), list(range(10, 15))]
    assert read(None, Offset(1)) == [list(range(10)), *([[]] * 9)]
    assert read(early, Offset(1)) == [list(range(10)), []]
    assert read(TimeLimit("at", Micros(-1)), None) == [], "row groups are skipped"


def test_row_groups_of_other_key_groups_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 10)
    messages = [(Offset(n), history_world.batch(20 * n, 20)) for n in range(5)]
    whole = parquet.file_frame(messages, ("k",))
    body = parquet.encode_file(whole)
    known = sorted(set(whole[GROUP]))
    assert len(known) == 5, "one key group per key, twenty rows each"
    for wanted in ({known[0]}, {known[1], known[3]}, {known[4] + 1, known[0] - 1}, set(known)):
        groups = Conditions((AnyOf(GROUP, tuple(sorted(wanted))),), ("k",))
        of_file = list(parquet.file_batches(io.BytesIO(body), ["k", "__pos"], groups))
        expected = whole.filter(pl.col(GROUP).is_in(wanted)).select("k", "__pos")
        assert pl.concat([expected.clear(), *of_file]).equals(expected)
        assert len(of_file) == expected.height // 10, "no other row group was read"
        of_tail = [groups.kept(decode(value)) for _, value in messages]
        assert sorted(pl.concat(of_tail)["__pos"]) == sorted(expected["__pos"])
