"""What is known of a table between two reads, without a database."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from fennel_core.connections.external_postgres import (
    CursorKind,
    ExternalColumn,
    ExternalTable,
    TransactionClock,
)
from fennel_core.sources.read_rows import StreamPlace
from fennel_core.sources.table_pages import cursor_batch
from fennel_core.sources.table_queries import page_query
from fennel_core.sources.table_reads import (
    DAY_US,
    NEWER,
    FoundRows,
    HorizonWentBack,
    ReadLevel,
    TableChanged,
    TableCursor,
    TableRead,
    Witness,
    at_page,
    begins_again,
    cursor_of,
    encode,
    following,
    look_back_of,
    require_readable,
    require_same_columns,
    settled,
)

AT = ExternalColumn("at", "bigint", "bigint", "N", True)
TABLE = ExternalTable("public", "orders", "1/2/3", 3, 4, (AT,), -1, frozenset({"at"}))
READ = TableRead(TABLE, AT, CursorKind.INTEGER, (AT,), TransactionClock(100, 120, 0), 10)
WITNESS = Witness(7, 99)


def later(horizon: int) -> TableRead:
    return replace(READ, clock=TransactionClock(horizon, horizon + 20, 0))


def complete() -> TableCursor:
    return following(None, READ, ReadLevel(7, None, 100), WITNESS, complete=True)


def test_a_cursor_is_stored_with_its_column() -> None:
    assert cursor_of(encode(complete()).decode()) == complete()
    assert (complete().column, complete().kind) == ("at", CursorKind.INTEGER)


def test_a_cursor_of_before_reads_were_settled_looks_at_all_rows() -> None:
    stored = cursor_of(
        '{"column":"at","columns":{"at":"bigint"},"file":4,"full":true,"kind":"integer",'
        '"levels":[[7,null,100]]}'
    )
    assert stored is not None
    assert (READ.floor(stored), stored.full, stored.witness) == (None, False, None)


def test_a_settled_read_looks_back_from_its_near_rows_or_to_what_waits() -> None:
    first = settled(complete(), READ, 7, None)
    assert first is not None
    assert (first.floor, first.reads, first.full) == (-3, 1, False)
    second = settled(first, later(101), 7, -50)
    assert second is not None
    assert (second.floor, second.full, second.levels) == (-50, True, (ReadLevel(7, None, 101),))
    third = settled(second, later(102), None, None)
    assert third is not None
    assert third.floor is None, "it has few rows"
    assert settled(second, later(103), 7, -50) is None, "nothing is new"
    assert settled(second, later(103), 7, -49) is not None


def test_the_floor_of_a_read_stays_until_it_is_settled() -> None:
    read = settled(complete(), READ, 7, None)
    assert read is not None
    on = following(read, later(110), ReadLevel(90, None, 110), WITNESS, complete=False)
    assert (on.floor, later(120).floor(on)) == (-3, -3)
    assert replace(later(120), look_back=200).floor(on) == -110, "a longer disorder counts at once"


def test_a_read_without_rows_stores_its_horizon_before_it_is_too_old() -> None:
    before = msgspec.structs.replace(complete(), floor=-3, reads=2)
    assert settled(before, later(100 + NEWER - 1), 7, None) is None
    stored = settled(before, later(100 + NEWER), 7, None)
    assert stored is not None
    assert stored.levels == (ReadLevel(7, None, 100 + NEWER),)
    batch = cursor_batch(StreamPlace(5, "x"), stored)
    assert (batch.end.next, batch.parts) == (5, ())
    assert cursor_of(batch.end.cursor) == stored


def test_a_read_without_rows_ends_a_chain_of_levels() -> None:
    levels = (ReadLevel(5, (0, 1), 90 + NEWER), ReadLevel(7, None, 90 + NEWER))
    chain = TableCursor(levels, READ.types, 4, "at", CursorKind.INTEGER, -3, 2)
    stored = settled(chain, later(90 + NEWER), 7, None)
    assert stored is not None
    assert stored.levels == (ReadLevel(7, None, 90 + NEWER),)
    assert not stored.partial


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("witness", [False, True])
@pytest.mark.parametrize("older", [False, True])
def test_a_file_that_is_another_is_read_on_only_if_read_rows_are_known(
    partial: bool, witness: bool, older: bool
) -> None:
    row = (0, 1) if partial else None
    before = msgspec.structs.replace(complete(), levels=(ReadLevel(7, row, 100),))
    other = replace(READ, table=replace(TABLE, file=5))
    found = FoundRows(witness, older)
    assert not begins_again(READ, before, found, "t", versioned=False)
    known = not older or (witness and not partial)
    assert begins_again(other, before, found, "t", versioned=True) is not known
    if known:
        assert not begins_again(other, before, found, "t", versioned=False)
    else:
        with pytest.raises(TableChanged, match="written again"):
            begins_again(other, before, found, "t", versioned=False)


def test_times_may_be_a_day_ahead_of_the_clock_and_are_looked_for_as_far_back() -> None:
    clock = TransactionClock(1, 2, 5 * DAY_US + 3)
    at = {kind: replace(READ, kind=kind, clock=clock).latest for kind in CursorKind}
    assert at == {
        CursorKind.INTEGER: None,
        CursorKind.DATE: 6,
        CursorKind.TIME: 6 * DAY_US + 3,
        CursorKind.LOCAL_TIME: 6 * DAY_US + 3,
    }
    assert look_back_of(CursorKind.TIME, 7) == DAY_US + 7
    assert look_back_of(CursorKind.DATE, 1) == 2


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
    now = TransactionClock(200, 120 + 3 * NEWER, 9)
    page = at_page(READ, now)
    assert page.clock == TransactionClock(100, now.end, 0), "the rows of a run are bounded"
    spans = re.findall(r"< (\d+)\)", page_query(page, None, 1).as_string(None))
    assert spans == [str(now.end - 100 + NEWER)]
