"""A place in a log of changes is a commit and a number of changes behind it."""

from __future__ import annotations

import base64
import json

import pytest

from fennel_core.connections.change_engine import ChangeEngineFailed
from fennel_core.connections.external_changes import KeyColumn
from fennel_core.sources.change_cursor import (
    ChangeCursor,
    ChangePlace,
    decode_cursor,
    encode_cursor,
    read_changes,
)

KEY = (KeyColumn("id", "bigint"), KeyColumn("day", "date"))
AT = ChangeCursor("slot", "publication", 100)
FIRST = ChangeCursor("slot", "publication", 100, first=True)


def change(commit: int | None, number: int, op: str = "c") -> str:
    sequence = json.dumps([None if commit is None else str(commit), str(number)])
    source = {"sequence": sequence, "lsn": number, "ts_ms": number}
    return json.dumps({"op": op, "after": {"id": number}, "source": source})


def mark(commit: int | None, token: str, prefix: str = "marks", content: str = "") -> str:
    message = {"prefix": prefix, "content": content or base64.b64encode(token.encode()).decode()}
    source = {"sequence": json.dumps([None if commit is None else str(commit), "1"])}
    return json.dumps({"op": "m", "source": source, "message": message})


def notice(kind: str) -> str:
    return json.dumps({"aggregate_type": "Initial Snapshot", "type": kind})


def row(number: int, day: str = "2026-01-31Z") -> str:
    return json.dumps({"op": "r", "after": {"id": number, "day": day}, "source": {}})


def read(cursor: ChangeCursor, *lines: str) -> tuple[ChangeCursor, list[int]]:
    place, found = read_changes(ChangePlace.at(cursor), lines, "marks", KEY)
    return place.cursor, [json.loads(each)["after"]["id"] for each in found.lines]


def test_changes_are_counted_behind_the_commit_before_them() -> None:
    cursor, taken = read(AT, change(None, 1), change(None, 2), change(130, 3))
    assert taken == [1, 2, 3]
    assert (cursor.lsn, cursor.passed) == (130, 1)


def test_a_reader_that_begins_within_a_transaction_leaves_out_what_is_written() -> None:
    lines = [change(None, 1), change(None, 2), change(None, 3), change(130, 4)]
    for passed in range(4):
        cursor, taken = read(ChangeCursor("slot", "publication", 100, passed), *lines)
        assert taken == [1, 2, 3, 4][passed:]
        assert (cursor.lsn, cursor.passed) == (130, 1)


def test_a_cursor_stays_while_changes_are_left_out() -> None:
    half = ChangeCursor("slot", "publication", 100, 3)
    assert read(half, change(None, 1), mark(None, "x")) == (half, [])


def test_a_commit_that_is_seen_now_and_was_not_before_loses_no_change() -> None:
    """A server may send an empty transaction now that it left out before, or the reverse."""
    half = ChangeCursor("slot", "publication", 100, 1)
    cursor, taken = read(half, change(110, 1), change(110, 2))
    assert (taken, cursor.lsn, cursor.passed) == ([2], 110, 2)


def test_marks_move_the_place_and_are_no_changes() -> None:
    place, found = read_changes(
        ChangePlace.at(AT),
        [change(None, 1), mark(150, "a"), mark(160, "b"), mark(170, "c", prefix="another")],
        "marks",
        KEY,
    )
    assert (len(found.lines), found.token) == (1, "b")
    assert (place.cursor.lsn, place.cursor.passed) == (170, 0)
    assert read_changes(place, [mark(180, "", content="?")], "marks", KEY)[1].token is None


def test_places_of_changes_name_where_they_are_in_the_log() -> None:
    _, found = read_changes(ChangePlace.at(AT), [change(None, 2**32 + 17)], "marks", KEY)
    assert (found.names, found.newest_ms) == (["1/11"], 2**32 + 17)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((change(150, 1), change(140, 2)), "went back from commit 0/96 to 0/8C"),
        ((change(90, 1),), "went back"),
        ((change(150, 1), change(None, 1)), "began again by itself"),
        (('{"op": "c", "after": {}}',), "no change"),
    ],
)
def test_an_engine_that_does_not_go_on_is_noticed(lines: tuple[str, ...], words: str) -> None:
    with pytest.raises(ChangeEngineFailed, match=words):
        read(AT, *lines)


def test_the_first_read_goes_on_behind_its_last_key() -> None:
    cursor, taken = read(FIRST, notice("STARTED"), row(1), row(2), notice("IN_PROGRESS"))
    assert taken == [1, 2]
    assert cursor == ChangeCursor("slot", "publication", 100, 0, True, ("2", "2026-01-31"))
    assert decode_cursor(encode_cursor(cursor)) == cursor


def test_behind_the_first_read_come_the_changes_since_before_it() -> None:
    place, found = read_changes(
        ChangePlace.at(FIRST),
        [row(1), notice("TABLE_SCAN_COMPLETED"), notice("COMPLETED")],
        "",
        KEY,
    )
    assert (place.cursor, found.ended, len(found.lines)) == (AT, True, 1)
    empty, _ = read_changes(ChangePlace.at(FIRST), [notice("COMPLETED")], "", KEY)
    assert empty.cursor == AT


def test_a_first_read_that_is_given_up_is_no_end() -> None:
    with pytest.raises(ChangeEngineFailed, match="ended early"):
        read(FIRST, row(1), notice("ABORTED"))


def test_a_table_that_was_not_read_has_no_cursor() -> None:
    assert decode_cursor("") is None
