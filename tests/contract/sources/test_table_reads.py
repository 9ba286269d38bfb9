"""Rows of a real Postgres table are read once, whatever its transactions and its readers do."""

from __future__ import annotations

import random
import re
from contextlib import suppress
from dataclasses import replace
from itertools import count

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from fennel_core.connections.external_postgres import (
    ExternalPostgres,
    ExternalPostgresUnusable,
    ExternalTable,
    TransactionClock,
    describe_table,
)
from fennel_core.sources.table_inspection import complaint
from fennel_core.sources.table_pages import PageUnordered, chunks
from fennel_core.sources.table_queries import page_query, waiting_query
from fennel_core.sources.table_reads import (
    FILE,
    NEAR_ROWS,
    PLACE,
    VALUE,
    CursorWentBack,
    TableChanged,
    TableMoved,
)
from tests.support.table_reader import Connection, Reader, owner, shop

__all__ = ["owner", "shop"]

KINDS = {
    "bigint": "{}",
    "timestamp with time zone": "timestamptz '2024-01-01 00:00:00Z' + {} * interval '1 second'",
    "timestamp without time zone": "timestamp '2024-01-01' + {} * interval '1 second'",
    "date": "date '2024-01-01' + {}",
}


def described(shop: ExternalPostgres, table: str = "orders") -> ExternalTable:
    with shop.connect() as connection:
        return describe_table(shop, connection, table)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_each_committed_row_is_read_once(
    shop: ExternalPostgres, owner: Connection, database: str, kind: str, seed: int
) -> None:
    """Transactions overlap, with savepoints; values tie and come late; reads are killed.

    The file of the table is written again, between two reads and within one.
    """
    random_ = random.Random(f"{kind}{seed}")  # noqa: S311  # a test, no secret
    owner.execute(
        sql.SQL("CREATE TABLE orders (id bigint, at {} NOT NULL)").format(sql.SQL(kind))  # type: ignore[arg-type]  # constants of this test
    )
    value = sql.SQL(KINDS[kind].format("%s::int"))  # type: ignore[arg-type]  # constants of this test
    insert = sql.SQL("INSERT INTO orders VALUES (%s, {})").format(value)
    near = random_.choice([1, 5, NEAR_ROWS])
    look_back = 10 if kind in ("bigint", "date") else 10_000_000
    reader, committed = Reader(shop, look_back, near), set[int]()
    open_rows = dict[int, list[int]]()
    ids = count()

    def rewrite() -> None:
        """Write the file again, where no open transaction and no half read value forbids it."""
        partial = reader.cursor is not None and reader.cursor.partial
        if random_.random() < 0.5 and not open_rows and not partial:
            owner.execute(random_.choice([b"VACUUM FULL orders", b"VACUUM FREEZE orders"]))

    reader.between = rewrite
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
                rewrite()
                kill = random_.choice([None, 0, 1, 2, 5])
                with suppress(TableMoved):
                    reader.run(random_.randint(1, 9), random_.randint(1, 4), kill)
                assert len(reader.rows) == len(set(reader.rows)), "a row was read twice"
        for at, writer in enumerate(writers):
            writer.commit()
            committed |= set(open_rows.pop(at, []))
        reader.between = lambda: None
        reader.run(7, 3)
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
    reader = Reader(shop, look_back=10, near=1)
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


def test_an_old_row_that_changes_during_the_first_read_is_not_lost(
    shop: ExternalPostgres, owner: Connection, database: str
) -> None:
    """Its new version is too new for the first read, and far behind what the next one reads."""
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    owner.execute("INSERT INTO orders VALUES (1, 1), (2, 500), (3, 1000), (4, 2000)")
    reader = Reader(shop, look_back=10, near=1)

    def change() -> None:
        owner.execute("UPDATE orders SET id = id WHERE id = 2")

    with psycopg.connect(database) as running:
        running.execute("UPDATE orders SET id = id WHERE id = 1")  # a transaction that is open
        change()
        reader.between = change
        reader.run(1, 1)
        running.commit()
    assert reader.rows == [1, 3, 4], "the version of 1 that is visible was there before"
    assert reader.cursor is not None
    assert reader.cursor.floor == 500
    for _ in range(3):  # it changes in each read, and is left to the next one each time
        owner.execute("INSERT INTO orders SELECT 10, 3000 WHERE false")
        with psycopg.connect(database) as running:
            running.execute("SELECT pg_current_xact_id()")
            change()
            reader.run()
    assert 2 not in reader.rows
    reader.between = lambda: None
    reader.run()
    assert sorted(set(reader.rows)) == [1, 2, 3, 4]
    assert reader.cursor.floor == 1990, "nothing is left, so only the look-back is looked at"


def test_rows_that_the_first_read_has_left_to_the_second_are_not_late(
    shop: ExternalPostgres, owner: Connection, database: str
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    reader = Reader(shop)
    owner.execute("INSERT INTO orders VALUES (1, 1), (2, 2)")
    with psycopg.connect(database) as running:
        running.execute("SELECT pg_current_xact_id()")
        owner.execute("UPDATE orders SET id = id WHERE id = 2")
        reader.run()
    reader.run()
    owner.execute("INSERT INTO orders VALUES (3, 3)")
    reader.run()
    assert (reader.rows, reader.never_late) == ([1, 2, 3], [True, True, False])


def test_a_read_that_was_killed_before_it_was_settled_loses_nothing(
    shop: ExternalPostgres, owner: Connection, database: str
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    reader = Reader(shop, look_back=10, near=1)
    owner.execute("INSERT INTO orders VALUES (1, 1), (2, 100)")
    reader.run()
    reader.run()
    assert reader.cursor is not None
    assert reader.cursor.floor == 90
    with psycopg.connect(database) as late:
        late.execute("INSERT INTO orders VALUES (3, 95)")
        owner.execute("INSERT INTO orders SELECT n, n FROM generate_series(200, 220) n")
        owner.execute("UPDATE orders SET at = at")
        late.commit()
    with psycopg.connect(database) as running:
        running.execute("SELECT pg_current_xact_id()")
        owner.execute("UPDATE orders SET id = id WHERE id = 3")
        reader.run(5, 5, kill_after=2)
    reader.run()
    assert {3, 200, 220} <= set(reader.rows)


def test_a_row_far_ahead_of_all_others_hides_none(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    reader = Reader(shop, look_back=10, near=3)
    owner.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 5) n")
    owner.execute("INSERT INTO orders VALUES (6, 9000000000000000000)")
    reader.run()
    for id_ in (7, 8, 9):
        owner.execute("INSERT INTO orders VALUES (%s, %s)", (id_, id_))
        reader.run()
    assert reader.rows == [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("kind", list(KINDS)[1:])
def test_rows_of_the_future_wait_and_are_counted(
    shop: ExternalPostgres, owner: Connection, kind: str
) -> None:
    owner.execute(f"CREATE TABLE orders (id bigint, at {kind})".encode())
    reader = Reader(shop, near=1)
    insert = f"INSERT INTO orders SELECT %s, (now() + %s::interval)::{kind}".encode()
    for id_, ahead in ((1, "0 s"), (2, "20 hours"), (3, "49 hours"), (4, "900 years")):
        owner.execute(insert, (id_, ahead))
    reader.run()
    owner.execute(insert, (5, "1 s"))
    reader.look_back = 86_400_000_000 if kind != "date" else 1
    reader.run()
    assert reader.rows == [1, 2, 5]
    with shop.connect() as connection:
        said = complaint(connection, reader.begin(connection), "`orders`")
    assert said is not None
    assert "2 rows have a `at` more than a day in the future" in said


def test_a_clock_that_goes_back_hides_no_row(shop: ExternalPostgres, owner: Connection) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at date)")
    owner.execute("INSERT INTO orders VALUES (1, current_date + 2)")
    reader = Reader(shop)
    reader.clock_ahead_us = 2 * 86_400_000_000
    reader.run()
    owner.execute("INSERT INTO orders VALUES (2, current_date + 2), (3, current_date)")
    reader.clock_ahead_us = 0
    reader.run()
    assert sorted(reader.rows) == [1, 2, 3]


def test_a_row_far_ahead_and_an_open_transaction_hide_none(
    shop: ExternalPostgres, owner: Connection, database: str
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    owner.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 5) n")
    owner.execute("INSERT INTO orders VALUES (6, 9000000000000000000)")
    reader = Reader(shop, look_back=10, near=3)
    reader.run()
    with psycopg.connect(database) as late:
        late.execute("INSERT INTO orders VALUES (7, 7)")
        owner.execute("INSERT INTO orders SELECT n, n FROM generate_series(8, 100) n")
        reader.run()
        late.commit()
    reader.run()
    assert sorted(reader.rows) == list(range(1, 101))


def test_a_page_of_a_server_that_is_behind_is_refused(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    owner.execute("INSERT INTO orders VALUES (1, 1)")
    reader = Reader(shop)
    reader.run()
    assert reader.cursor is not None
    with psycopg.connect(owner.info.dsn, autocommit=True) as connection:
        read = reader.begin(connection)
        ahead = TransactionClock(read.clock.horizon + 1, read.clock.end + 1, read.clock.now_us)
        later = replace(read, clock=ahead)
        for before in (None, reader.cursor):  # with a row, and without
            connection.execute(page_query(read, before, 10))
            with pytest.raises(psycopg.DataError, match="the server is behind"):
                connection.execute(page_query(later, before, 10))
        with pytest.raises(psycopg.DataError, match="the server is behind"):
            connection.execute(waiting_query(later, reader.cursor))


def test_the_next_page_begins_in_the_index_where_the_last_one_ended(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint); CREATE INDEX ON orders (at)")
    owner.execute("INSERT INTO orders SELECT n, n / 3 FROM generate_series(1, 60000) n")
    owner.execute("ANALYZE orders")
    reader = Reader(shop)
    for killed in (1, 2):  # between values, and within one
        reader.run(50_000, 50_000 - 1 * killed, kill_after=1)
        assert reader.cursor is not None
        with psycopg.connect(owner.info.dsn, autocommit=True) as connection:
            read = reader.begin(connection)
            [level] = reader.cursor.levels
            same = replace(read, clock=replace(read.clock, horizon=level.horizon))
            query = page_query(same, reader.cursor, 1000)
            plan = "\n".join(
                row[0] for row in connection.execute(sql.SQL("EXPLAIN ") + query).fetchall()
            )
        assert re.search(r"Index Cond: .*at >=? '?\d+", plan), plan
        reader.cursor, reader.rows = None, []


def test_what_a_table_became_is_an_error_that_says_what_to_do(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint, note varchar(10))")
    owner.execute("INSERT INTO orders VALUES (1, 5, 'a')")
    reader = Reader(shop)
    reader.run()
    owner.execute(["ALTER TABLE orders ADD COLUMN city text", " VACUUM FULL orders"][0])
    owner.execute("VACUUM FULL orders")
    reader.run()  # rows keep their transactions
    owner.execute("INSERT INTO orders VALUES (2, 6, 'a')")
    reader.run()
    assert reader.rows == [1, 2]
    owner.execute("ALTER TABLE orders ALTER COLUMN note TYPE varchar(20)")
    with pytest.raises(TableChanged, match=r"`note` is character varying\(20\) now"):
        reader.run()
    owner.execute("ALTER TABLE orders DROP COLUMN note")
    with pytest.raises(TableChanged, match="no column `note`"):
        reader.run()


def test_a_cursor_that_went_back_is_an_error(shop: ExternalPostgres, owner: Connection) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    owner.execute("INSERT INTO orders VALUES (1, 1000)")
    reader = Reader(shop, look_back=10, near=1)
    reader.run()
    owner.execute("UPDATE orders SET at = 990")
    reader.run()
    assert reader.rows == [1, 1]
    owner.execute("UPDATE orders SET at = 979")
    with pytest.raises(CursorWentBack, match="is 979 now, and was 1000"):
        reader.run()
    owner.execute("DELETE FROM orders")
    reader.run()


def test_rows_without_a_place_in_the_order_are_counted(
    shop: ExternalPostgres, owner: Connection
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at timestamptz)")
    owner.execute("INSERT INTO orders VALUES (1, now()), (2, NULL), (3, 'infinity')")
    reader = Reader(shop)
    reader.run(10, 10)
    assert reader.rows == [1]
    with shop.connect() as connection:
        said = complaint(connection, reader.begin(connection), "`orders`")
        assert said is not None
        assert said.startswith("`orders`: 2 rows have no `at` (null or infinite)")
        owner.execute("DELETE FROM orders")
        assert complaint(connection, reader.begin(connection), "`orders`") is None


@pytest.mark.parametrize(
    ("index", "good"),
    [
        ("SELECT 1", False),
        ("CREATE INDEX ON orders (at)", True),
        ("CREATE INDEX ON orders (at, id)", True),
        ("CREATE INDEX ON orders (id, at)", False),
        ("CREATE INDEX ON orders (at) WHERE id > 5", False),
        ("CREATE INDEX ON orders USING hash (at)", False),
    ],
)
def test_a_large_table_whose_cursor_has_no_index_says_so(
    shop: ExternalPostgres, owner: Connection, index: str, good: bool
) -> None:
    owner.execute("CREATE TABLE orders (id bigint, at bigint)")
    owner.execute(index.encode())
    with shop.connect() as connection:
        read = Reader(shop).begin(connection)
        assert complaint(connection, read, "`orders`") is None, "it is small"
        large = replace(read, table=replace(read.table, rows=100_001))
        said = complaint(connection, large, "`orders`")
    assert (said is None) is good
    assert good or 'CREATE INDEX CONCURRENTLY ON "public"."orders" ("at")' in str(said)


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
    def rows(*places: int, file: int | None = 7) -> pa.RecordBatch:
        values = [place // 2 for place in places]
        columns = {PLACE: list(places), VALUE: values, FILE: [file] * len(places)}
        return pa.RecordBatch.from_pydict(columns)

    def cut(most: int, *batches: pa.RecordBatch) -> list[tuple[int, bool, bool]]:
        found = chunks(iter(batches), most, 7, "t")
        return [(each.rows.num_rows, each.complete, each.parted) for each in found]

    assert cut(3, rows(1, 2), rows(3)) == [(2, False, True), (1, True, False)]
    assert cut(2, rows(1, 2), rows(3)) == [(2, False, True)]
    assert cut(2, rows(1, 2, 3)) == [(2, False, True)]
    assert cut(3, rows(1, 2, 3), rows(4)) == [(3, False, False)]
    assert cut(2) == []
    with pytest.raises(PageUnordered):
        cut(3, rows(1, 3))
    for file in (8, None):
        with pytest.raises(TableMoved):
            cut(3, rows(1, 2, file=file))
