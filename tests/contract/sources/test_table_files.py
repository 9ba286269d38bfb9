"""A real Postgres table that is written again as a whole: VACUUM FULL, pg_repack, TRUNCATE."""

from __future__ import annotations

import pytest

from fennel_core.connections.external_postgres import ExternalPostgres
from fennel_core.sources.table_reads import TableChanged, TableMoved, taken
from tests.support.table_reader import Connection, Reader, owner, shop

__all__ = ["owner", "shop"]


def test_a_table_whose_file_is_written_again_while_it_is_read(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    owner.execute("INSERT INTO orders SELECT n, n / 4 FROM generate_series(1, 40) n")
    owner.execute("DELETE FROM orders WHERE id % 3 = 0")  # so that places in the file change
    reader = Reader(shop)
    reader.between = lambda: owner.execute("VACUUM FULL orders")
    with pytest.raises(TableMoved, match="while it was read"):
        reader.run(9, 9)
    assert len(reader.rows) == 9
    assert reader.cursor is not None
    assert reader.cursor.partial
    with pytest.raises(TableChanged, match="written again as a whole"):
        reader.run()
    reader.versioned = True
    reader.between = lambda: None
    reader.run()
    assert sorted(set(reader.rows)) == [n for n in range(1, 41) if n % 3]


def test_a_table_that_takes_the_name_while_it_is_read(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint); CREATE TABLE new (LIKE orders)")
    owner.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 20) n")
    owner.execute("INSERT INTO new SELECT 100 + n, n FROM generate_series(1, 20) n")

    def swap() -> None:
        owner.execute("ALTER TABLE orders RENAME TO old; ALTER TABLE new RENAME TO orders")

    reader = Reader(shop)
    reader.between = swap
    with pytest.raises(TableMoved):
        reader.run(10, 10)
    assert max(reader.rows) == 10


def test_an_empty_page_of_another_file_does_not_end_a_read(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    owner.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 20) n")
    reader = Reader(shop)
    reader.between = lambda: owner.execute("TRUNCATE orders")
    with pytest.raises(TableMoved):
        reader.run(10, 10)


PG_REPACK = """
    CREATE TABLE repacked (LIKE orders INCLUDING ALL); INSERT INTO repacked SELECT * FROM orders;
    ALTER TABLE orders RENAME TO old; TRUNCATE old; INSERT INTO old SELECT * FROM repacked;
    DROP TABLE repacked; ALTER TABLE old RENAME TO orders
"""
"""Like pg_repack: the same table, in another file, with rows of another transaction."""


@pytest.mark.parametrize("again", [PG_REPACK, "ALTER TABLE orders SET UNLOGGED"])
def test_rows_that_were_written_again_by_other_transactions_do_not_enter_twice(
    shop: ExternalPostgres, owner: Connection, again: str
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    owner.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 20) n")
    reader = Reader(shop)
    reader.run()
    reader.run()
    owner.execute(again.encode())
    with pytest.raises(TableChanged, match=r"pg_repack.*rewind the source"):
        reader.run()
    assert len(reader.rows) == 20
    reader.versioned = True
    owner.execute("INSERT INTO orders VALUES (21, -5)")
    reader.run()
    assert sorted(set(reader.rows)) == list(range(1, 22)), "versions: all are read again"
    assert set(reader.never_late) == {True}, "none of them is late"


def test_a_table_that_was_repacked_is_read_on_when_a_user_takes_its_rows_for_read(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    owner.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 20) n")
    reader = Reader(shop)
    reader.run()
    owner.execute(PG_REPACK.encode())
    with pytest.raises(TableChanged, match=r"`current`"):
        reader.run()
    assert reader.cursor is not None
    reader.cursor = taken(reader.cursor)
    for id_ in (21, 22):
        reader.run()  # the first one has no rows, and stores what was taken
        owner.execute("INSERT INTO orders VALUES (%s, 3)", (id_,))
    reader.run()
    assert (reader.rows[20:], reader.cursor.taken) == ([21, 22], False)


def test_a_table_that_was_emptied_is_read_on(shop: ExternalPostgres, owner: Connection) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    owner.execute("INSERT INTO orders VALUES (1, 1)")
    reader = Reader(shop)
    reader.run()
    owner.execute("TRUNCATE orders")
    reader.run()
    owner.execute("INSERT INTO orders VALUES (2, 2)")
    reader.run()
    assert reader.rows == [1, 2]


@pytest.mark.parametrize("grows", [False, True])
def test_a_table_that_is_emptied_and_filled_again_between_reads_does_not_enter_twice(
    shop: ExternalPostgres, owner: Connection, grows: bool
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    owner.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 20) n")
    reader = Reader(shop)
    reader.run()
    owner.execute("TRUNCATE orders")
    reader.run()
    if grows:  # rows that are new, in a file that keeps what wrote them
        owner.execute("INSERT INTO orders VALUES (21, 21)")
        reader.run()
        owner.execute("VACUUM FULL orders")
        reader.run()
    owner.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 20) n")
    with pytest.raises(TableChanged, match="TRUNCATE"):
        reader.run()
    assert reader.rows == list(range(1, 22 if grows else 21))
    reader.versioned = True
    reader.run()
    reader.versioned = False
    owner.execute("INSERT INTO orders VALUES (5, 5)")
    reader.run()
    assert reader.rows[-1] == 5, "what is late now is read"
