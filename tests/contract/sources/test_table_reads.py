"""Rows of a real Postgres table are read once, whatever its transactions and its readers do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from fennel_core.connections.external_postgres import (
    ExternalPostgres,
    ExternalPostgresUnusable,
    ExternalTable,
    cursor_kind,
    describe_table,
    served_columns,
    transaction_clock,
)
from fennel_core.sources.table_pages import PageChunk, PageUnordered, chunks
from fennel_core.sources.table_reads import (
    BLOCK,
    OFFSET,
    PLACE,
    VALUE,
    CursorWentBack,
    ReadLevel,
    TableChanged,
    TableCursor,
    TableRead,
    following,
    highest_query,
    page_query,
    require_readable,
    require_same_columns,
    unordered_query,
)

Connection = psycopg.Connection[tuple[Any, ...]]
KINDS = {
    "bigint": "{}",
    "timestamp with time zone": "timestamptz '2024-01-01 00:00:00Z' + {} * interval '1 second'",
    "timestamp without time zone": "timestamp '2024-01-01' + {} * interval '1 second'",
    "date": "date '2024-01-01' + {}",
}


@pytest.fixture
def shop(database: str) -> ExternalPostgres:
    """The database as a connector reaches it."""
    at = conninfo_to_dict(database)
    return ExternalPostgres(
        "shop", str(at["host"]), int(str(at["port"])), str(at["dbname"]), "fennel", "", {}
    )


@pytest.fixture
def owner(database: str) -> Iterator[Connection]:
    """A connection of the owner of the tables."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def described(shop: ExternalPostgres, table: str = "orders") -> ExternalTable:
    with shop.connect() as connection:
        return describe_table(shop, connection, table)


def read_of(shop: ExternalPostgres, connection: Connection, look_back: int = 10**18) -> TableRead:
    table = describe_table(shop, connection, "orders")
    cursor = table.column("at")
    assert cursor is not None
    kind = cursor_kind(cursor)
    assert kind is not None
    clock = transaction_clock(connection)
    return TableRead(table, cursor, kind, served_columns(table), clock, look_back)


class Reader:
    """Reads as the job does, into a list: every chunk with its cursor, or not at all."""

    def __init__(self, shop: ExternalPostgres, look_back: int = 10**18) -> None:
        self.shop, self.look_back = shop, look_back
        self.rows: list[int] = []
        self.cursor: TableCursor | None = None

    def run(self, page: int, chunk: int, kill_after: int | None = None) -> None:
        """Read all that there is, in pages and chunks; end after `kill_after` chunks."""
        written = 0
        with self.shop.connect() as connection:
            read = read_of(self.shop, connection, self.look_back)
            while True:
                done = True
                for each in chunks(self._batches(connection, read, page, chunk), page):
                    if written == kill_after:
                        return
                    written += 1
                    done = each.complete
                    self._write(each, read)
                if done:
                    return

    def _batches(
        self, connection: Connection, read: TableRead, page: int, chunk: int
    ) -> Iterator[pa.RecordBatch]:
        found = connection.execute(page_query(read, self.cursor, page + 1))
        assert found.description is not None
        names = [column.name for column in found.description]
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        for start in range(0, len(rows), chunk):
            part = rows[start : start + chunk]
            yield pa.RecordBatch.from_pylist(
                [{n: row[n] for n in ("id", VALUE, BLOCK, OFFSET, PLACE)} for row in part]
            )

    def _write(self, chunk: PageChunk, read: TableRead) -> None:
        last = chunk.rows.to_pylist()[-1]
        level = ReadLevel(last[VALUE], (last[BLOCK], last[OFFSET]), read.clock.horizon)
        self.cursor = following(self.cursor, read, level, complete=chunk.complete)
        self.rows += chunk.rows.column("id").to_pylist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_each_committed_row_is_read_once(
    shop: ExternalPostgres, owner: Connection, database: str, kind: str, seed: int
) -> None:
    """Transactions overlap, with savepoints; values tie and come late; reads are killed."""
    random_ = random.Random(f"{kind}{seed}")  # noqa: S311  # a test, no secret
    owner.execute(
        sql.SQL("CREATE TABLE orders (id bigint, at {} NOT NULL)").format(sql.SQL(kind))  # type: ignore[arg-type]  # constants of this test
    )
    value = sql.SQL(KINDS[kind].format("%s::int"))  # type: ignore[arg-type]  # constants of this test
    insert = sql.SQL("INSERT INTO orders VALUES (%s, {})").format(value)
    reader, committed, open_rows = Reader(shop), set[int](), dict[int, list[int]]()
    ids = count()
    writers = [psycopg.connect(database) for _ in range(3)]
    try:
        for _ in range(120):
            step, at = random_.random(), random_.randrange(3)
            if step < 0.5:
                if random_.random() < 0.4:
                    writers[at].execute("SAVEPOINT nested")  # its rows have another transaction
                for _ in range(random_.randint(1, 3)):
                    id_ = next(ids)
                    open_rows.setdefault(at, []).append(id_)
                    writers[at].execute(insert, (id_, random_.randrange(8)))
            elif step < 0.75:
                writers[at].commit()
                committed |= set(open_rows.pop(at, []))
            elif step < 0.8:
                writers[at].rollback()
                open_rows.pop(at, None)
            else:
                kill = random_.choice([None, 0, 1, 2, 5])
                reader.run(random_.randint(1, 9), random_.randint(1, 4), kill)
                assert len(reader.rows) == len(set(reader.rows)), "a row was read twice"
        for at, writer in enumerate(writers):
            writer.commit()
            committed |= set(open_rows.pop(at, []))
        reader.run(7, 3)
        assert sorted(reader.rows) == sorted(committed)
        assert reader.cursor is not None
        assert len(reader.cursor.levels) == 1
        assert reader.cursor.full
    finally:
        for writer in writers:
            writer.close()


def test_rows_of_an_open_transaction_hold_back_later_ones_and_nothing_is_lost(
    shop: ExternalPostgres, owner: Connection, database: str
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    reader = Reader(shop)
    owner.execute("INSERT INTO orders VALUES (1, 1)")
    with psycopg.connect(database) as late:
        late.execute("INSERT INTO orders VALUES (2, 2)")
        owner.execute("INSERT INTO orders VALUES (3, 3)")
        reader.run(10, 10)
        assert reader.rows == [1]
        late.commit()
    reader.run(10, 10)
    assert reader.rows == [1, 2, 3]


def test_a_row_that_appears_behind_the_cursor_is_read_within_the_look_back(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    reader = Reader(shop, look_back=10)
    owner.execute("INSERT INTO orders VALUES (1, 100)")
    reader.run(10, 10)
    owner.execute("INSERT INTO orders VALUES (2, 90), (3, 89)")
    reader.run(10, 10)
    assert reader.rows == [1, 2]


def test_a_changed_row_is_read_again(shop: ExternalPostgres, owner: Connection) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint, note text)")
    owner.execute("INSERT INTO orders VALUES (1, 1, 'a'), (2, 2, 'a')")
    reader = Reader(shop)
    reader.run(10, 10)
    owner.execute("UPDATE orders SET note = 'b', at = 1 WHERE id = 2")
    reader.run(10, 10)
    assert reader.rows == [1, 2, 2]


def test_what_a_table_became_is_an_error_that_says_what_to_do(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint, note varchar(10))")
    owner.execute("INSERT INTO orders VALUES (1, 5, 'a')")
    reader = Reader(shop)
    reader.run(10, 10)
    cursor = reader.cursor

    def check() -> None:
        with shop.connect() as connection:
            require_same_columns(read_of(shop, connection), cursor, "`orders`")

    check()
    owner.execute("ALTER TABLE orders ADD COLUMN city text")
    check()  # no row was written again
    owner.execute("VACUUM FULL orders")
    with pytest.raises(TableChanged, match="written again"):
        check()
    assert cursor is not None
    cursor = replace_columns(cursor, described(shop))
    owner.execute("VACUUM FULL orders")
    check()  # its rows have their transactions, and no value was half read
    owner.execute("ALTER TABLE orders ALTER COLUMN note TYPE varchar(20)")
    with pytest.raises(TableChanged, match=r"`note` is character varying\(20\) now"):
        check()
    owner.execute("ALTER TABLE orders DROP COLUMN note")
    with pytest.raises(TableChanged, match="no column `note`"):
        check()


def replace_columns(cursor: TableCursor, table: ExternalTable) -> TableCursor:
    columns = {each.name: each.declared for each in table.columns}
    return TableCursor(cursor.levels, columns, table.file, cursor.full, cursor.column, cursor.kind)


def test_a_cursor_that_went_back_is_an_error(shop: ExternalPostgres, owner: Connection) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    owner.execute("INSERT INTO orders VALUES (1, 1000)")
    reader = Reader(shop, look_back=10)
    reader.run(10, 10)
    owner.execute("DELETE FROM orders")

    def check() -> None:
        with shop.connect() as connection:
            read = read_of(shop, connection, look_back=10)
            found = connection.execute(highest_query(read)).fetchone()
            require_readable(read, reader.cursor, None if found is None else found[0], "`orders`")

    check()  # an empty table
    owner.execute("INSERT INTO orders VALUES (2, 990)")
    check()
    owner.execute("UPDATE orders SET at = 989")
    with pytest.raises(CursorWentBack, match="is 989 now, and was 1000"):
        check()


def test_rows_without_a_place_in_the_order_are_counted(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at timestamptz)")
    owner.execute("INSERT INTO orders VALUES (1, now()), (2, NULL), (3, 'infinity')")
    reader = Reader(shop)
    reader.run(10, 10)
    assert reader.rows == [1]
    with shop.connect() as connection:
        read = read_of(shop, connection)
        assert connection.execute(unordered_query(read, 100)).fetchone() == (2,)
        assert connection.execute(unordered_query(read, 1)).fetchone() == (1,)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ("CREATE VIEW orders AS SELECT 1 AS at", "is a view"),
        ("CREATE TABLE orders (at int) PARTITION BY RANGE (at)", "is a partitioned table"),
        ("CREATE TABLE orders (at int); CREATE TABLE o2 () INHERITS (orders)", "inherit"),
        ("SELECT 1", "has no table `orders`"),
        ('CREATE TABLE "Orders" (at int)', "has no table `orders`"),
    ],
)
def test_what_is_no_plain_table_is_refused(
    shop: ExternalPostgres, owner: Connection, made: str, text: str
) -> None:
    owner.execute(made.encode())
    with pytest.raises(ExternalPostgresUnusable, match=text):
        described(shop)


def test_a_table_has_its_schema_columns_and_an_origin_of_its_own(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute('CREATE SCHEMA "My" CREATE TABLE "Or""ders" (at int NOT NULL)')
    owner.execute("CREATE DOMAIN price AS numeric(10, 2); CREATE DOMAIN paid AS price")
    owner.execute('ALTER TABLE "My"."Or""ders" ADD COLUMN p paid, ADD COLUMN tags text[]')
    table = described(shop, 'My.Or"ders')
    found = [(each.name, each.declared, each.type, each.not_null) for each in table.columns]
    assert found == [
        ("at", "integer", "integer", True),
        ("p", "paid", "numeric", False),
        ("tags", "text[]", "text[]", False),
    ]
    owner.execute(
        'ALTER TABLE "My"."Or""ders" RENAME TO o; ALTER TABLE "My".o RENAME TO "Or""ders"'
    )
    assert described(shop, 'My.Or"ders') == table
    owner.execute('CREATE TABLE "My".o (LIKE "My"."Or""ders"); DROP TABLE "My"."Or""ders"')
    owner.execute('ALTER TABLE "My".o RENAME TO "Or""ders"')
    assert described(shop, 'My.Or"ders').origin != table.origin


def test_a_database_that_cannot_be_reached_is_an_error_without_the_password(
    shop: ExternalPostgres,
) -> None:
    with (
        pytest.raises(ExternalPostgresUnusable, match="connector `shop`") as refused,
        replace(shop, port=1, password="not-a-real-one").connect(),  # noqa: S106  # not a password
    ):
        pass
    assert "not-a-real-one" not in f"{refused.value} {refused.value.__cause__}"


def test_a_page_that_arrives_out_of_order_is_refused() -> None:
    def rows(*places: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({PLACE: list(places)})

    found = list(chunks(iter([rows(1, 2), rows(3)]), 3))
    assert [(each.rows.num_rows, each.complete) for each in found] == [(2, False), (1, True)]
    found = list(chunks(iter([rows(1, 2), rows(3)]), 2))
    assert [(each.rows.num_rows, each.complete) for each in found] == [(2, False)]
    assert list(chunks(iter([]), 2)) == []
    with pytest.raises(PageUnordered):
        list(chunks(iter([rows(1, 3)]), 3))
