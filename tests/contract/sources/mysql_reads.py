"""Rows of a real MariaDB table are read once, below the times of what runs.

`make connectors` runs this, as it needs Debian's package `mariadb-server-core`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from pymysql.connections import Connection

from fennel_core.connections import external_mysql
from fennel_core.connections.external_mysql import (
    ExternalMySQL,
    ExternalMySQLUnusable,
    rows_of,
)
from fennel_core.sources.errors import SourceError
from fennel_core.sources.table_databases import MySQLDatabase
from fennel_core.sources.table_pages import short_floats
from fennel_core.sources.table_reads import HorizonWentBack, TableRead
from tests.support.mariadb import WORDS, connected, maria, mariadb_server, running_mariadb
from tests.support.table_reader import Reader

__all__ = ["maria", "mariadb_server"]
ORDERS = (
    "CREATE TABLE orders (id bigint AUTO_INCREMENT PRIMARY KEY, n int, "
    "at timestamp(3) NOT NULL DEFAULT current_timestamp(3) ON UPDATE current_timestamp(3))"
)


@pytest.fixture(autouse=True)
def _short_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server shows transactions as they were 100 ms ago."""
    monkeypatch.setattr(external_mysql, "DELAY_US", 300_000)


@pytest.fixture
def owner(maria: ExternalMySQL) -> Iterator[Connection]:
    with connected(maria.port, database=maria.database) as connection:
        yield connection


def do(connection: Connection, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def reader(maria: ExternalMySQL) -> Reader:
    return Reader(MySQLDatabase(maria))


@pytest.mark.parametrize("seed", range(8))
def test_each_committed_row_is_read_once(
    maria: ExternalMySQL, owner: Connection, seed: int
) -> None:
    """Transactions overlap; many rows have one time; reads are killed."""
    random_ = random.Random(seed)  # noqa: S311  # a test, no secret
    do(owner, ORDERS)
    found, committed, ids = reader(maria), set[int](), count(1)
    open_rows = dict[int, list[int]]()
    writers = [connected(maria.port, database="shop") for _ in range(3)]
    for writer in writers:
        writer.autocommit(False)
    try:
        for _ in range(80):
            step, at = random_.random(), random_.randrange(3)
            if step < 0.5:
                rows = [next(ids) for _ in range(random_.randint(1, 4))]
                open_rows.setdefault(at, []).extend(rows)
                values = ", ".join(f"({n}, {n})" for n in rows)
                do(writers[at], f"INSERT INTO orders (id, n) VALUES {values}")  # noqa: S608  # numbers
            elif step < 0.75:
                writers[at].commit()
                committed |= set(open_rows.pop(at, []))
            elif step < 0.8:
                writers[at].rollback()
                open_rows.pop(at, None)
            else:
                kill = random_.choice([None, 0, 1, 2, 5])
                if random_.random() < 0.5:
                    do(owner, "DO SLEEP(0.4)")
                found.run(random_.randint(1, 9), random_.randint(1, 4), kill)
                assert len(found.rows) == len(set(found.rows)), "a row was read twice"
        for at, writer in enumerate(writers):
            writer.commit()
            committed |= set(open_rows.pop(at, []))
        do(owner, "DO SLEEP(0.4)")
        found.run(7, 3)
        found.run(7, 3)
        assert sorted(found.rows) == sorted(committed)
    finally:
        for writer in writers:
            writer.close()


def test_rows_of_an_open_transaction_hold_back_later_ones(
    maria: ExternalMySQL, owner: Connection
) -> None:
    do(owner, ORDERS)
    found = reader(maria)
    do(owner, "INSERT INTO orders (n) VALUES (1)")
    do(owner, "DO SLEEP(1.4)")
    with connected(maria.port, database="shop") as late:
        late.autocommit(False)
        do(late, "INSERT INTO orders (n) VALUES (2)")
        do(owner, "DO SLEEP(1.4)")
        do(owner, "INSERT INTO orders (n) VALUES (3)")
        do(owner, "DO SLEEP(1.4)")
        found.run()
        assert found.rows == [1]
        late.commit()
    do(owner, "DO SLEEP(0.2)")  # the server still shows the transaction
    found.run()
    assert found.rows == [1, 2, 3]
    do(owner, "UPDATE orders SET n = 7 WHERE id = 1")
    do(owner, "DO SLEEP(1.4)")
    found.run()
    assert found.rows[3:] == [1], "a changed row has a new time"


def clocks_just_put_back() -> str:
    """Return a zone whose clocks were put back by an hour ten minutes ago."""
    summer = datetime.now(UTC) + timedelta(hours=3, minutes=-10)
    day = summer.timetuple().tm_yday
    begin = (day + 180) % 365 + 1
    return f"AAA-2BBB-3,J{begin},J{day}/{summer:%H:%M:%S}"


@pytest.mark.parametrize("zone", ["JST-9", "EST5", clocks_just_put_back()])
def test_the_zone_of_the_server_does_not_hide_an_open_transaction(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server shows begins of transactions in the zone of its machine."""
    monkeypatch.setenv("TZ", zone)
    with running_mariadb() as port, connected(port) as owner:
        do(owner, "CREATE DATABASE shop")
        owner.select_db("shop")
        do(owner, ORDERS)
        maria = ExternalMySQL("shop", "127.0.0.1", port, "shop", "fennel", WORDS)
        found = reader(maria)
        with connected(port, database="shop") as late:
            late.autocommit(False)
            do(late, "INSERT INTO orders (n) VALUES (1)")
            do(owner, "DO SLEEP(1.4)")
            do(owner, "INSERT INTO orders (n) VALUES (2)")
            do(owner, "DO SLEEP(1.4)")
            found.run()
            assert found.rows == []
            late.commit()
        do(owner, "DO SLEEP(0.2)")
        found.run()
        assert found.rows == [1, 2]


def test_a_page_reads_no_rows_that_it_does_not_have(
    maria: ExternalMySQL, owner: Connection
) -> None:
    do(owner, ORDERS)
    do(owner, "ALTER TABLE orders ADD INDEX (at)")
    do(
        owner,
        "INSERT INTO orders (n, at) SELECT seq, from_unixtime(1700000000 + seq) "
        "FROM seq_1_to_20000",
    )
    found, database = reader(maria), MySQLDatabase(maria)
    with database.connect() as connection:
        query = database.page_query(found.begin(connection), None, 11)
        before = read_rows(connection)
        assert len(rows_of(connection, query)) == 11
        assert read_rows(connection) - before < 100


def read_rows(connection: Connection) -> int:
    """Return how many rows the statements of a connection have read."""
    found = rows_of(connection, "SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(number) for _, number in found)


def test_settings_of_a_server_cut_no_page_and_change_no_values(
    maria: ExternalMySQL, owner: Connection
) -> None:
    """Spark reads a page as the table of an outer query, which has no limit of its own."""
    do(owner, "CREATE TABLE orders (id int PRIMARY KEY, at timestamp NOT NULL, city char(4))")
    do(owner, "INSERT INTO orders SELECT seq, from_unixtime(seq), 'Ulm' FROM seq_1_to_5")
    settings = {"sql_select_limit": "2", "sql_mode": "'PAD_CHAR_TO_FULL_LENGTH'"}
    for name, value in settings.items():
        do(owner, f"SET GLOBAL {name} = {value}")
    try:
        database = MySQLDatabase(maria)
        with database.connect() as connection:
            query = database.page_query(reader(maria).begin(connection), None, 10)
            rows = rows_of(connection, f"SELECT id, city FROM ({query}) AS page")  # noqa: S608  # as Spark does
        assert rows == [(n, "Ulm") for n in range(1, 6)]
    finally:
        for name in settings:
            do(owner, f"SET GLOBAL {name} = DEFAULT")


def test_a_change_that_is_rolled_back_hides_no_row(maria: ExternalMySQL, owner: Connection) -> None:
    """A reader of uncommitted rows would see the new time, and never the old one."""
    do(owner, ORDERS)
    do(owner, "INSERT INTO orders (n, at) VALUES (1, '2024-01-01'), (2, '2024-01-02')")
    do(owner, "SET GLOBAL TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    try:
        found = reader(maria)
        with connected(maria.port, database="shop") as late:
            late.autocommit(False)
            do(late, "UPDATE orders SET n = 3 WHERE id = 1")
            found.run()
            late.rollback()
        assert found.rows == [1, 2]
    finally:
        do(owner, "SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def test_a_statement_that_waits_holds_back_later_rows(
    maria: ExternalMySQL, owner: Connection
) -> None:
    """Its time is of its begin, and its transaction may not have begun."""
    do(owner, ORDERS)
    with connected(maria.port, database="shop") as slow:
        slow.query_begun = slow._execute_command(3, "DO SLEEP(5)")  # a query without its result
        do(owner, "DO SLEEP(2)")
        do(owner, "INSERT INTO orders (n) VALUES (1)")
        do(owner, "DO SLEEP(1.4)")
        found = reader(maria)
        found.run()
        assert found.rows == []
        slow._read_query_result()
    found.run()
    assert found.rows == [1]


def test_a_row_is_not_read_before_its_delay(
    maria: ExternalMySQL, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_mysql, "DELAY_US", 2_500_000)
    do(owner, ORDERS)
    do(owner, "INSERT INTO orders (n) VALUES (1)")
    found = reader(maria)
    found.run()
    assert found.rows == []
    do(owner, "DO SLEEP(3)")
    found.run()
    assert found.rows == [1]


def test_rows_of_the_zero_time_are_read_across_pages(
    maria: ExternalMySQL, owner: Connection
) -> None:
    do(owner, "SET sql_mode = ''")
    do(owner, "CREATE TABLE orders (id int PRIMARY KEY, at timestamp NOT NULL DEFAULT 0)")
    do(owner, "INSERT INTO orders (id) SELECT seq FROM seq_1_to_5")
    do(owner, "INSERT INTO orders VALUES (6, '1970-01-01 00:00:01')")
    found = reader(maria)
    found.run(2, 2)
    found.run(2, 2)
    assert found.rows == [1, 2, 3, 4, 5, 6]


def test_a_clock_shows_that_something_holds_rows_back(
    maria: ExternalMySQL, owner: Connection
) -> None:
    """A bounded source does not end meanwhile."""
    do(owner, ORDERS)
    do(owner, "DO SLEEP(0.2)")
    clock = begin(MySQLDatabase(maria)).clock
    assert clock.horizon == clock.end
    with connected(maria.port, database="shop") as late:
        late.autocommit(False)
        do(late, "INSERT INTO orders (n) VALUES (1)")
        do(owner, "DO SLEEP(1.2)")
        clock = begin(MySQLDatabase(maria)).clock
    assert clock.end - clock.horizon > 1_000_000


def test_a_clock_that_went_back_is_an_error(maria: ExternalMySQL, owner: Connection) -> None:
    do(owner, ORDERS)
    do(owner, "INSERT INTO orders (n) VALUES (1)")
    do(owner, "DO SLEEP(1.4)")
    found = reader(maria)
    found.run()
    found.clock_ahead_us = -3_600_000_000
    with pytest.raises(HorizonWentBack, match="it went back"):
        found.run()


TYPES = """
    CREATE TABLE orders (id int unsigned AUTO_INCREMENT PRIMARY KEY,
        at timestamp(6) NOT NULL DEFAULT current_timestamp(6), big bigint unsigned, vip tinyint(1),
        weight float, ratio double, price decimal(10, 2), made datetime(6), day date,
        city varchar(20) CHARACTER SET latin1, note json, kind enum('a', 'b'), raw blob, y year)
"""


def test_values_are_carried_as_they_are(maria: ExternalMySQL, owner: Connection) -> None:
    do(owner, TYPES)
    do(
        owner,
        "INSERT INTO orders SET at = from_unixtime(1700000000.123456), big = 18446744073709551615, "
        "vip = 1, weight = 123456.79, ratio = 0.25, price = 12.5, made = '2024-02-29 23:59:59.5', "
        "day = '2024-02-29', city = 'Zürich', note = '{\"n\": 1}', kind = 'b', raw = 'x', y = 2024",
    )
    database = MySQLDatabase(maria)
    with database.connect() as connection:
        read = database.begun(connection, "orders", "at", 0)
        [row] = database.newest(connection, read, 5)
        values = dict(zip((each.name for each in read.columns), row, strict=True))
    page = pa.RecordBatch.from_pylist([values])
    assert short_floats(page, read.columns).to_pylist() == [values | {"weight": 123456.79}]
    assert values | {"weight": 123456.79} == {
        "id": 1,
        "at": "2023-11-14T22:13:20.123456Z",
        "big": "18446744073709551615",
        "vip": 1,
        "weight": 123456.79,
        "ratio": 0.25,
        "price": "12.50",
        "made": "2024-02-29T23:59:59.500000Z",
        "day": "2024-02-29",
        "city": "Zürich",
        "note": '{"n": 1}',
        "kind": "b",
        "y": 2024,
    }


def begin(database: MySQLDatabase, cursor: str = "at") -> TableRead:
    with database.connect() as connection:
        return database.begun(connection, "orders", cursor, 0)


@pytest.mark.parametrize(
    ("made", "error", "text"),
    [
        ("CREATE VIEW orders AS SELECT 1 AS at", ExternalMySQLUnusable, "is a view"),
        ("CREATE TABLE orders (at timestamp) ENGINE=Aria", ExternalMySQLUnusable, "engine Aria"),
        ("CREATE TABLE orders (at timestamp)", ExternalMySQLUnusable, "no primary key"),
        (
            "CREATE TABLE orders (id char(36) PRIMARY KEY, at timestamp)",
            ExternalMySQLUnusable,
            "no primary key of one integer",
        ),
        ("CREATE TABLE orders (id int PRIMARY KEY, at datetime)", SourceError, "type TIMESTAMP"),
        ("CREATE TABLE orders (id int PRIMARY KEY, at int)", SourceError, "type TIMESTAMP"),
        ("DO 1", ExternalMySQLUnusable, "has no table `orders`"),
    ],
)
def test_what_cannot_be_read_in_order_is_refused(
    maria: ExternalMySQL, owner: Connection, made: str, error: type[Exception], text: str
) -> None:
    do(owner, made)
    with pytest.raises(error, match=text):
        begin(MySQLDatabase(maria))


def test_a_replica_and_a_user_who_does_not_see_what_runs_are_refused(
    maria: ExternalMySQL, owner: Connection
) -> None:
    do(owner, ORDERS)
    do(owner, "SET GLOBAL read_only = 1")
    try:
        with pytest.raises(ExternalMySQLUnusable, match="is read only, as a replica is"):
            begin(MySQLDatabase(maria))
    finally:
        do(owner, "SET GLOBAL read_only = 0")
    do(owner, f"CREATE OR REPLACE USER blind@'%' IDENTIFIED BY '{WORDS}'")
    do(owner, "GRANT SELECT ON shop.* TO blind@'%'")
    at: dict[str, Any] = {"name": "shop", "host": "127.0.0.1", "port": maria.port}
    blind = ExternalMySQL(**at, database="shop", user="blind", password=WORDS)
    with pytest.raises(ExternalMySQLUnusable, match="PROCESS") as refused:
        begin(MySQLDatabase(blind))
    assert WORDS not in f"{refused.value}"


def test_rows_without_a_time_are_counted(maria: ExternalMySQL, owner: Connection) -> None:
    do(owner, "CREATE TABLE orders (id int PRIMARY KEY, at timestamp NULL)")
    do(owner, "INSERT INTO orders VALUES (1, NULL), (2, '2024-01-01')")
    found, database = reader(maria), MySQLDatabase(maria)
    found.run()
    assert found.rows == [2]
    with database.connect() as connection:
        said = database.complaint(connection, found.begin(connection), "`orders`")
        assert rows_of(connection, "SELECT @@session.time_zone") == [("+00:00",)]
    assert said is not None
    assert said.startswith("`orders`: 1 rows have no `at` (null)")
