"""The queries of a table of MySQL, and what is known between two reads, without a database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.connections.external_postgres import (
    CursorKind,
    ExternalColumn,
    ExternalTable,
    TransactionClock,
)
from fennel_core.sources.mysql_inspection import continued, settlement
from fennel_core.sources.mysql_queries import page_query
from fennel_core.sources.table_reads import (
    HorizonWentBack,
    ReadLevel,
    TableChanged,
    TableRead,
    following,
    taken,
)

AT = ExternalColumn("a`t", "timestamp(6)", "timestamp with time zone", "D", True)
ID = ExternalColumn("id", "bigint", "bigint", "N", True)
TABLE = ExternalTable("shop", "or`ders", "mysql/shop/x", 0, 0, (ID, AT), 0, frozenset(), "id")
NOW = 1_700_000_060_000_000
CLOCK = TransactionClock(NOW - 60_000_000, NOW - 60_000_000, NOW)


def read(now_us: int = NOW) -> TableRead:
    clock = replace(CLOCK, now_us=now_us)
    return TableRead(TABLE, AT, CursorKind.TIME, (ID, AT), clock, 0)


def test_a_page_begins_behind_its_place_and_ends_before_the_horizon() -> None:
    first = page_query(read(), None, 11)
    assert "shop.`or``ders`.`a``t` < from_unixtime(1700000000.000000)" in first
    assert ">" not in first
    level = ReadLevel(1_600_000_000_000_007, None, CLOCK.horizon)
    whole = following(None, read(), level, None, complete=False)
    assert "`a``t` > from_unixtime(1600000000.000007)" in page_query(read(), whole, 11)
    parted = following(None, read(), replace_row(level), None, complete=False)
    query = " ".join(page_query(read(), parted, 11).split())
    assert "`a``t` >= from_unixtime(1600000000.000007) AND (" in query
    assert "`or``ders`.id > 42) ORDER BY" in query
    assert query.endswith("LIMIT 11")


def replace_row(level: ReadLevel) -> ReadLevel:
    return ReadLevel(level.value, (42, 0), level.horizon)


def test_a_clock_at_what_was_read_is_an_error_and_a_settled_read_is_not_stored_again() -> None:
    level = ReadLevel(NOW - 61_000_000, None, CLOCK.horizon)
    cursor = following(None, read(), level, None, complete=True)
    with pytest.raises(HorizonWentBack, match="it went back"):
        continued(read(cursor.highest), cursor, "t")
    assert continued(read(cursor.highest + 1), cursor, "t") == (read(cursor.highest + 1), cursor)
    stored = cursor
    for _ in range(2):
        settled = settlement(read(), stored)
        assert settled is not None
        stored = settled
    assert stored.full
    assert settlement(read(), stored) is None
    again = settlement(read(), taken(stored))
    assert again is not None
    assert not again.taken
    with pytest.raises(TableChanged):
        continued(replace(read(), cursor=replace(AT, name="other")), cursor, "t")
