"""A place in a binary log is a transaction's beginning, and a number of changes behind it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fennel_core.connections.change_engine import ChangeEngineFailed
from fennel_core.connections.external_binlog import LogPlace, NotedSchema, holds
from fennel_core.connections.external_changes import KeyColumn
from fennel_core.sources.binlog_cursor import (
    BinlogCursor,
    BinlogPlace,
    BinlogReading,
    decode_cursor,
    encode_cursor,
)
from fennel_core.sources.binlog_schema import noted_schema, packed, unpacked

SCHEMA = packed(noted_schema(NotedSchema("t", 1, "CREATE TABLE t (…)", "SET …", "CREATE …")))
AT = LogPlace("bin.1", 100, "0-1-5")
BEGUN = BinlogCursor(AT, SCHEMA)
READING = BinlogReading("shop", "t", (KeyColumn("id", "int"),), beat_ms=0)


def line(at: LogPlace, **event: Any) -> str:
    offset = {f: v for f in at.__struct_fields__ if (v := getattr(at, f)) is not None}
    return f"{json.dumps({**offset, 'ts_sec': 1, 'server_id': 1})}\t{json.dumps(event)}"


def within(event: int, row: int | None = None, gtids: str = "0-1-6") -> LogPlace:
    return LogPlace("bin.1", 200, gtids, event, row)


def row(number: int, at: LogPlace, op: str = "c") -> str:
    source = {"file": at.file, "pos": at.pos + number, "ts_ms": number, "gtid": "0-1-7"}
    return line(at, op=op, after={"id": number}, source=source)


def ddl(at: LogPlace, text: str = "ALTER TABLE t ADD COLUMN b INT", columns: int = 2) -> str:
    table = {"columns": [{}] * columns}
    changes = [{"type": "ALTER", "id": '"shop"."t"', "table": table}]
    source = {"file": at.file, "pos": at.pos, "gtid": "0-1-7"}
    return line(at, ddl=text, databaseName="shop", tableChanges=changes, source=source)


def beat(at: LogPlace, at_ms: int = 1) -> str:
    return line(at, ts_ms=at_ms)


def read(place: BinlogPlace | BinlogCursor, *lines: str) -> tuple[BinlogPlace, list[int]]:
    of = BinlogPlace.of(place) if isinstance(place, BinlogCursor) else place
    after, found = READING.read(of, lines)
    return after, [json.loads(each)["after"]["id"] for each in found.lines]


def where(place: BinlogPlace) -> tuple[LogPlace, int]:
    return place.cursor.at, place.cursor.passed


def begin(gtids: str = "0-1-6") -> LogPlace:
    return LogPlace("bin.1", 200, gtids)


def test_changes_are_counted_from_the_beginning_of_their_transaction() -> None:
    """Another server may write the same rows into other events."""
    place, taken = read(BEGUN, row(1, within(1, 1)))
    assert (taken, where(place)) == ([1], (begin(), 1))
    place, taken = read(place, row(2, within(2, 1)), row(3, within(2, 1)))
    assert (taken, where(place)) == ([2, 3], (begin(), 3))
    place, taken = read(place, row(4, within(1, 1, "0-1-7")))
    assert (taken, where(place)) == ([4], (begin("0-1-7"), 1))


def test_changes_that_were_written_are_left_out_although_the_place_has_another_form() -> None:
    written, _ = read(BEGUN, row(1, within(1, 1)), row(2, within(1, 2)))
    other = LogPlace("other.9", 7, "0-1-6", 3, 1)
    place, taken = read(written.cursor, row(1, other), row(2, other), row(3, other))
    assert (taken, where(place)) == ([3], (LogPlace("other.9", 7, "0-1-6"), 3))


def test_a_place_within_a_transaction_stays_until_the_next_one() -> None:
    """As earlier versions have written it."""
    begun = BinlogCursor(within(4, 2), SCHEMA, 1)
    place, taken = read(begun, row(1, within(4, 3)), row(2, within(6, 1)))
    assert (taken, where(place)) == ([2], (within(4, 2), 2))
    place, taken = read(place, row(3, within(1, 1, "0-1-7")))
    assert (taken, where(place)) == ([3], (begin("0-1-7"), 1))


def test_any_cursor_begins_behind_what_was_written() -> None:
    """Each prefix is a cursor, from which the rest and nothing else is taken."""
    lines = [
        row(1, within(1, 1), "d"),
        row(2, within(1, 1)),
        row(3, within(2, 1)),
        ddl(within(1, gtids="0-1-7")),
        row(4, within(1, 1, "0-1-8")),
        beat(LogPlace("bin.1", 300, "0-1-9")),
        row(5, within(1, 1, "0-1-9"), "t"),
        row(6, within(1, 1, "0-1-10")),
    ]
    for count in range(len(lines) + 1):
        cursor, before = read(BEGUN, *lines[:count])
        # The engine delivers again what is behind the place that it is given.
        again, taken = read(cursor.cursor, *lines[_behind(lines, cursor.cursor.at) :])
        assert before + taken == [1, 2, 3, 4, 5, 6]
        assert unpacked(again.schema) == unpacked(read(BEGUN, *lines)[0].schema)


def _behind(lines: list[str], at: LogPlace) -> int:
    """Return the first line behind a place: its transactions are those before."""
    numbers = [int((place_of(each).gtids or "").rpartition("-")[2]) for each in lines]
    wanted = int((at.gtids or "").rpartition("-")[2])
    beats = [n for n, each in enumerate(lines) if place_of(each) == at]
    return beats[0] + 1 if beats else [number >= wanted for number in numbers].index(True)


def place_of(each: str) -> LogPlace:
    given = json.loads(each.partition("\t")[0])
    return LogPlace(*(given.get(name) for name in LogPlace.__struct_fields__))


def test_a_statement_has_no_place_and_its_table_goes_with_the_next() -> None:
    at = within(1, gtids="0-1-7")
    place, _ = read(BEGUN, row(1, within(1, 1)), ddl(at))
    assert where(place) == (begin(), 1)
    assert place.cursor.schema == SCHEMA
    place, _ = read(place, beat(LogPlace("bin.1", 300, "0-1-7")))
    assert where(place) == (begin(), 1)
    place, _ = read(place, beat(LogPlace("bin.1", 400, "0-1-8")))
    assert where(place) == (LogPlace("bin.1", 400, "0-1-8"), 0)
    assert unpacked(place.cursor.schema).tables[0].columns == 2


def test_heartbeats_within_a_transaction_are_no_places() -> None:
    place, _ = read(BEGUN, beat(within(3)))
    assert where(place) == (AT, 0)


def test_heartbeats_move_the_place_now_and_then() -> None:
    slow = BinlogReading("shop", "t", READING.key, beat_ms=60_000)
    lines = [beat(LogPlace("bin.1", n, f"0-1-{n}"), n * 1000) for n in range(60, 200)]
    place, moved = BinlogPlace.of(BEGUN), 0
    for each in lines:
        after, _ = slow.read(place, [each])
        moved += after.cursor != place.cursor
        place = after
    assert moved == 3


def test_changes_outside_of_a_transaction_are_no_places() -> None:
    outside = LogPlace("bin.1", 200, "0-1-6", None, 1)
    place, _ = read(BEGUN, row(1, outside))
    assert where(place) == (AT, 1)
    place, _ = read(place, row(2, within(1, 1)))
    assert where(place) == (begin(), 1)


def test_statements_count_as_read_although_they_are_not_among_the_transactions() -> None:
    _, found = READING.read(BinlogPlace.of(BEGUN), [ddl(within(1, gtids="0-1-6"))])
    assert holds(found.token or "", "0-1-7")
    _, found = READING.read(BinlogPlace.of(BEGUN), [row(3, within(1, 1))])
    assert not holds(found.token or "", "0-1-7")
    assert (found.names, found.newest_ms) == (["bin.1:203"], 3)


def test_the_first_read_goes_on_behind_its_last_key() -> None:
    first = BinlogCursor(AT, SCHEMA, first=True)
    notice = line(AT, aggregate_type="Initial Snapshot", type="STARTED")
    place, taken = read(first, notice, row(1, AT, "r"), row(2, AT, "r"))
    assert taken == [1, 2]
    assert place.cursor == BinlogCursor(AT, SCHEMA, 0, first=True, key=("2",))
    assert decode_cursor(encode_cursor(place.cursor)) == place.cursor
    place, _ = read(place, line(AT, aggregate_type="Initial Snapshot", type="COMPLETED"))
    assert place.cursor == BEGUN
    with pytest.raises(ChangeEngineFailed, match="ended early"):
        read(first, line(AT, aggregate_type="Initial Snapshot", type="ABORTED"))


def test_what_is_no_change_is_not_passed_over() -> None:
    with pytest.raises(ChangeEngineFailed, match="no change"):
        read(BEGUN, line(within(1, 1), op="m", source={}))


def test_a_table_that_was_not_read_has_no_cursor() -> None:
    assert decode_cursor("") is None
