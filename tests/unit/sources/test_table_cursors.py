"""What is known of a table between two reads, without a database."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fennel_core.connections.external_postgres import (
    CursorKind,
    ExternalColumn,
    ExternalTable,
    TransactionClock,
)
from fennel_core.sources.read_rows import StreamPlace
from fennel_core.sources.table_pages import empty_batch
from fennel_core.sources.table_reads import (
    NEWER,
    HorizonWentBack,
    ReadLevel,
    TableChanged,
    TableCursor,
    TableRead,
    at_page,
    cursor_of,
    encode,
    following,
    page_query,
    require_readable,
    require_same_columns,
)

AT = ExternalColumn("at", "bigint", "bigint", "N", True)
TABLE = ExternalTable("public", "orders", "1/2/3", 4, (AT,))
READ = TableRead(TABLE, AT, CursorKind.INTEGER, (AT,), TransactionClock(100, 120), 10)


def later(horizon: int) -> TableRead:
    return replace(READ, clock=TransactionClock(horizon, horizon + 20))


def complete() -> TableCursor:
    return following(None, READ, ReadLevel(7, (0, 1), 100), complete=True)


def test_a_cursor_is_stored_with_its_column() -> None:
    assert cursor_of(encode(complete()).decode()) == complete()
    assert (complete().column, complete().kind) == ("at", CursorKind.INTEGER)


def test_a_read_without_rows_stores_its_horizon_before_it_is_too_old() -> None:
    place = StreamPlace(5, encode(complete()).decode())
    assert empty_batch(later(100 + NEWER - 1), place, complete()) is None
    assert empty_batch(later(1 << 40), StreamPlace(), None) is None
    batch = empty_batch(later(100 + NEWER), place, complete())
    assert batch is not None
    assert (batch.after, batch.end.next, batch.parts) == (place, 5, ())
    stored = cursor_of(batch.end.cursor)
    assert stored is not None
    assert stored.levels == (ReadLevel(7, None, 100 + NEWER),)
    assert stored.full


def test_a_read_without_rows_ends_a_chain_whose_oldest_level_is_behind() -> None:
    levels = (ReadLevel(5, (0, 1), 90 + NEWER), ReadLevel(7, None, 90))
    chain = TableCursor(levels, READ.types, 4, True, "at", CursorKind.INTEGER)
    batch = empty_batch(later(90 + NEWER), StreamPlace(5, "x"), chain)
    assert batch is not None
    stored = cursor_of(batch.end.cursor)
    assert stored is not None
    assert stored.levels == (ReadLevel(7, None, 90 + NEWER),)


def test_a_server_that_is_behind_what_was_read_is_an_error() -> None:
    require_readable(READ, complete(), 7, "`orders`")
    with pytest.raises(HorizonWentBack, match=r"below 100 had ended.*below 99 have now"):
        require_readable(later(99), complete(), 7, "`orders`")


def test_another_cursor_is_an_error() -> None:
    require_same_columns(READ, complete(), "`orders`")
    for other in (
        replace(READ, cursor=replace(AT, name="id")),
        replace(READ, kind=CursorKind.TIME),
    ):
        with pytest.raises(TableChanged, match="was read by `at`"):
            require_same_columns(other, complete(), "`orders`")


def test_a_page_knows_transactions_that_began_since_the_run_did() -> None:
    now = TransactionClock(200, 120 + 3 * NEWER)
    page = at_page(READ, now)
    assert page.clock == TransactionClock(100, now.end), "the rows of a run are bounded"
    spans = re.findall(r"< (\d+)\)", page_query(page, None, 1).as_string(None))
    assert spans == [str(now.end - 100 + NEWER)]
