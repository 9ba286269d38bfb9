"""Changes of a real MariaDB (or MySQL) table enter once and in order, wherever readers are cut.

Debezium's engine is real, too. Transactions write several rows, change keys, touch other tables and
databases and are rolled back; columns are added and swap their names, tables are swapped, logs are
rotated; readers are killed after any row, of the first read as well, run at once, and lose
responses. The oracle are the statements that were committed, in the order of their commits.

`make connectors` runs it. `BINLOG_PORT=13307` names another server, `CHANGE_SEEDS` the histories.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from contextlib import suppress
from dataclasses import dataclass, field

import pymysql
import pytest
from pymysql.connections import Connection

from fennel_core.connections.change_engine import ChangeEngine, ChangeEngineFailed
from fennel_core.connections.external_binlog import Binlog, holds, rows_of
from fennel_core.connections.external_changes import ChangesLost
from fennel_core.connections.external_mysql import ExternalMySQL
from fennel_core.sources import change_reader
from fennel_core.sources.binlog_changes import LOOK_S
from fennel_core.sources.binlog_cursor import decode_cursor
from fennel_core.sources.positions import decode as decode_position
from tests.support.binlog_world import (
    BINDING,
    READER,
    BinlogWorld,
    binlog_server,
    engine,
    is_maria,
    owner,
    read_to_end,
    run,
    shop,
)
from tests.support.change_history import Change, History, Row, faulty_sources
from tests.support.change_readers import read_rows, started
from tests.support.ingest_world import catalog
from tests.support.source_world import (
    POSITIONS,
    SourceWorld,
)

__all__ = ["binlog_server", "engine", "owner", "shop"]

pytestmark = pytest.mark.timeout(600)
SEEDS = int(os.environ.get("CHANGE_SEEDS", "12"))
TABLES = (
    "CREATE TABLE users (user VARCHAR(200) PRIMARY KEY, age INT, at DATETIME(6) NOT NULL, "
    "a VARCHAR(20), b VARCHAR(20), note VARCHAR(9) DEFAULT 'none')",
    "CREATE TABLE others (id INT AUTO_INCREMENT PRIMARY KEY, age INT)",
    "CREATE TABLE {other}.users (id INT AUTO_INCREMENT PRIMARY KEY, age INT)",
)


@dataclass
class Users:
    """The table, and what was committed: each change with its key and row, in order.

    Times of rows are later than commits, so that a row may come back after a delete.
    """

    owner: Connection
    other: str
    random: random.Random
    content: dict[str, Row] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    n: int = 0

    def __post_init__(self) -> None:
        self.run(*(each.format(other=self.other) for each in TABLES))

    def run(self, *statements: str) -> None:
        with self.owner.cursor() as cursor:
            for each in statements:
                cursor.execute(each)

    def commit(self, statements: int, *, roll_back: bool = False) -> None:
        """Commit a transaction of statements."""
        before, done = {user: dict(row) for user, row in self.content.items()}, list[Change]()
        self.run("BEGIN")
        for _ in range(statements):
            done += self._statement()
        self.run("ROLLBACK" if roll_back else "COMMIT")
        if roll_back:
            self.content = before
        else:
            self.changes += done

    def define(self) -> None:
        """Change a table."""
        self.n += 1
        match self.random.choice(["add", "swap names", "index", "others", "swap", "rotate"]):
            case "add":
                where = self.random.choice(["FIRST", "AFTER user", ""])
                self.run(f"ALTER TABLE users ADD COLUMN c{self.n} INT DEFAULT 7 {where}")
            case "swap names":
                for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
                    self.run(f"ALTER TABLE users CHANGE {old} {new} VARCHAR(20)")
                for row in self.content.values():
                    row["a"], row["b"] = row["b"], row["a"]
            case "index":
                self.run(f"CREATE INDEX i{self.n} ON users (age)")
            case "others":
                self.run(f"CREATE TABLE z{self.n} (i INT)", f"DROP TABLE z{self.n}")
            case "swap":
                # As tools do that change large tables.
                self.run(
                    "CREATE TABLE _users_new LIKE users",
                    f"ALTER TABLE _users_new ADD COLUMN q{self.n} INT AFTER user",
                )
                self.commit(2)
                columns = "user, age, at, a, b, note"
                self.run(
                    f"INSERT INTO _users_new ({columns}) SELECT {columns} FROM users",  # noqa: S608  # statements of a test
                    "RENAME TABLE users TO _users_old, _users_new TO users",
                    "DROP TABLE _users_old",
                )
            case _:
                self.run("FLUSH BINARY LOGS")

    def _statement(self) -> list[Change]:
        self.n += 1
        user = self.random.choice("abcdefgh") + self.random.choice(["", "é'"])
        kinds = ["put"] * 4 + ["delete", "several", "key", "keys", "update", "other", "undone"]
        match self.random.choice(kinds):
            case "put" if user in self.content:
                return self._updated([user])
            case "put":
                return self._inserted([user])
            case "several":
                return self._inserted([f"s{self.n}-{each}" for each in range(12)][: self.n])
            case "delete" if user in self.content:
                self._do("DELETE FROM users WHERE user = %s", user)
                del self.content[user]
                return [("d", user, None)]
            case "key" if user in self.content:
                return self._moved([user])
            case "keys":
                return self._moved(sorted(self.content)[:3])
            case "update":
                return self._updated(sorted(self.content)[:3])
            case "undone":
                self.run("SAVEPOINT s", "INSERT INTO users (user, at) VALUES ('x', NOW())")
                self.run("ROLLBACK TO SAVEPOINT s")
            case _:
                self.run("INSERT INTO others (age) VALUES (1), (2)")
                self.run(f"INSERT INTO {self.other}.users (age) VALUES (1)")  # noqa: S608  # statements of a test
        return []

    def _row(self) -> Row:
        return {"age": self.n, "a": f"a{self.n}", "b": f"b{self.n}"}

    def _inserted(self, users: list[str]) -> list[Change]:
        users = [each for each in users if each not in self.content]
        row = self._row()
        if users:
            one = "(%s, %s, NOW() + INTERVAL 10 YEAR + INTERVAL %s SECOND, %s, %s, NULL)"
            values = [x for each in users for x in (each, row["age"], self.n, row["a"], row["b"])]
            many = ", ".join([one] * len(users))
            self._do(f"INSERT INTO users (user, age, at, a, b, note) VALUES {many}", *values)  # noqa: S608  # statements of a test
        return [self._now("c", each, dict(row)) for each in users]

    def _updated(self, users: list[str]) -> list[Change]:
        row, found = self._row(), list[Change]()
        if users:
            marks = ", ".join(["%s"] * len(users))
            query = (
                "UPDATE users SET age = %s, a = %s, b = %s, "  # noqa: S608  # statements of a test
                "at = NOW() + INTERVAL 10 YEAR + INTERVAL %s SECOND "
                f"WHERE user IN ({marks}) ORDER BY CONVERT(user USING binary)"
            )
            self._do(query, row["age"], row["a"], row["b"], self.n, *users)
        for each in sorted(users):
            found.append(self._now("u", each, dict(row)))
        return found

    def _moved(self, users: list[str]) -> list[Change]:
        """Change keys: a delete and an insert of each row, which have one place in the log."""
        found = list[Change]()
        if users:
            marks = ", ".join(["%s"] * len(users))
            query = (
                "UPDATE users SET user = CONCAT(user, %s), "  # noqa: S608  # statements of a test
                "at = NOW() + INTERVAL 10 YEAR + INTERVAL %s SECOND "
                f"WHERE user IN ({marks}) ORDER BY CONVERT(user USING binary)"
            )
            self._do(query, str(self.n), self.n, *users)
        for each in sorted(users):
            row = self.content.pop(each)
            found += [("d", each, None), self._now("c", f"{each}{self.n}", row)]
        return found

    def _now(self, op: str, user: str, row: Row) -> Change:
        self.content[user] = row
        return (op, user, dict(row))

    def _do(self, query: str, *values: object) -> None:
        with self.owner.cursor() as cursor:
            cursor.execute(query, values)


def first_position(sources: SourceWorld) -> str:
    """Return where the source began, by the first position that was written."""
    records = [r for (topic, _), rs in sources.world.log.items() if topic == POSITIONS for r in rs]
    assert records[0].value is not None
    cursor = decode_cursor(decode_position(records[0].value).cursor)
    assert cursor is not None
    return str(cursor.at)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_each_change_enters_once_and_in_order(
    shop: ExternalMySQL,
    owner: Connection,
    engine: ChangeEngine,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await check_history(shop, owner, engine, random.Random(seed), monkeypatch)  # noqa: S311  # a test


async def check_history(
    shop: ExternalMySQL,
    owner: Connection,
    engine: ChangeEngine,
    random_: random.Random,
    patch: pytest.MonkeyPatch,
    steps: int = 40,
) -> None:
    patch.setattr(change_reader, "TRANSACTION_ROWS", random_.choice([1, 1, 3, 10_000]))
    users = Users(owner, f"{shop.database}_other", random_)
    for _ in range(random_.randrange(4)):
        users.commit(3)
    sources = faulty_sources(random_, BINDING)
    world = BinlogWorld(shop, engine, "users", sources)
    history = History(
        users,
        world,
        random_,
        lambda reader: str(reader.end.at.cursor.at),
        {"define": users.define},
        wait_s=2.0,
    )
    await history.run(steps)
    await read_to_end(world, owner)
    for each in history.readers:
        each.stop()
    await sources.world.close()
    history.check(first_position(sources), ("age", "a", "b"), is_final=True)


# --- what ends the reading ------------------------------------------------------------------------


async def changed_by(
    shop: ExternalMySQL,
    owner: Connection,
    engine: ChangeEngine,
    *statements: str,
    purge: bool = False,
    columns: str = "id INT PRIMARY KEY, a INT, b INT",
) -> list[str]:
    """Return the rows and changes of a table `users` behind statements."""
    sources = SourceWorld()
    sources.world.commit(main=catalog(BINDING))
    world = BinlogWorld(shop, engine, "users", sources)
    run(
        owner,
        f"CREATE TABLE users ({columns})",
        "INSERT INTO users VALUES (1, 2, 3)",
    )
    reader = await world.reader()
    async with asyncio.timeout(60):
        while reader.end.at.is_first:
            await reader.round(0.3, 1e9, wait_s=1.0)
    reader.stop()
    for row in rows_of(owner, "SHOW PROCESSLIST"):  # a log that is sent is not purged
        if "Binlog Dump" in row[4]:
            with suppress(pymysql.Error):
                run(owner, f"KILL {row[0]}")
    run(owner, *statements)
    if purge:
        async with asyncio.timeout(30):
            while len(logs := rows_of(owner, "SHOW BINARY LOGS")) > 1:
                run(owner, f"PURGE BINARY LOGS TO '{logs[-1][0]}'")
                await asyncio.sleep(0.1)  # the end of the reader's thread is not said
    await read_to_end(world, owner, 60)
    await sources.world.close()
    return [json.dumps([row["op"], row["after"]]) for row in read_rows(sources)]


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (
            ["ALTER TABLE users CHANGE a b INT, CHANGE b a INT"],
            "lost a column|internal schema size",
        ),
        (["DROP TABLE users", "CREATE TABLE users (id INT PRIMARY KEY, x INT)"], "was dropped"),
        (["CREATE OR REPLACE TABLE users (id INT PRIMARY KEY, x INT, y INT)"], "may have changed"),
        (
            ["RENAME TABLE users TO old", "CREATE TABLE users (id INT PRIMARY KEY, x INT, y INT)"],
            "was dropped or replaced",
        ),
        (
            ["RENAME TABLE before_ TO oo", "RENAME TABLE users TO u, oo TO users"],
            "may have changed",
        ),
        (
            [
                "ALTER TABLE users CONVERT TO CHARACTER SET utf8mb4",
                "ALTER TABLE users CHARACTER SET latin1, ADD c VARCHAR(9) DEFAULT 'é'",
            ],
            "does not follow a character set",
        ),
        (["ALTER TABLE users ADD COLUMN IF NOT EXISTS a TEXT FIRST"], "may have been there"),
        (["ALTER TABLE users ADD c VARCHAR(9) ASCII"], "may have changed|internal schema size"),
    ],
)
async def test_a_table_that_is_another_one_ends_the_reading(
    shop: ExternalMySQL,
    owner: Connection,
    engine: ChangeEngine,
    statements: list[str],
    words: str,
) -> None:
    if ("OR REPLACE" in statements[0] or "IF NOT" in statements[0]) and not is_maria(owner):
        pytest.skip("a statement of MariaDB")
    run(owner, "CREATE TABLE before_ (id INT PRIMARY KEY, x INT, y INT)")
    # A row that does not fit may end the engine first.
    with pytest.raises((ChangesLost, ChangeEngineFailed), match=words):
        await changed_by(shop, owner, engine, *statements, "INSERT INTO users (id) VALUES (9)")


async def test_statements_that_the_engine_cannot_read_are_passed_over_if_of_other_tables(
    shop: ExternalMySQL, owner: Connection, engine: ChangeEngine
) -> None:
    odd = "v INET6" if is_maria(owner) else "v POINT NOT NULL SRID 4326"
    rows = await changed_by(
        shop,
        owner,
        engine,
        f"CREATE TABLE odd (id INT, {odd})",
        f"USE {shop.database}_other",
        f"CREATE TABLE users (id INT, {odd})",
        f"USE {shop.database}",
        "INSERT INTO users VALUES (2, 0, 0)",
    )
    assert [json.loads(each)[0] for each in rows] == ["r", "c"]


async def test_a_new_table_has_the_character_set_of_its_database(
    shop: ExternalMySQL, owner: Connection, engine: ChangeEngine
) -> None:
    """Also where it is another one than when the source began."""
    sources = SourceWorld()
    sources.world.commit(main=catalog(BINDING))
    run(owner, f"ALTER DATABASE {shop.database} CHARACTER SET utf8mb4")
    run(owner, "CREATE TABLE users (id INT PRIMARY KEY)")
    world = BinlogWorld(shop, engine, "users", sources)
    await read_to_end(world, owner)
    run(owner, f"ALTER DATABASE {shop.database} CHARACTER SET latin1")
    await read_to_end(world, owner)
    run(
        owner,
        "CREATE TABLE n (id INT PRIMARY KEY, t VARCHAR(9))",
        "RENAME TABLE users TO o, n TO users",
        "INSERT INTO users VALUES (1, 'é')",
    )
    await read_to_end(world, owner)
    await sources.world.close()
    assert [row["after"]["t"] for row in read_rows(sources)] == ["é"]


async def test_values_of_the_first_read_are_those_of_changes(
    shop: ExternalMySQL, owner: Connection, engine: ChangeEngine
) -> None:
    sources = SourceWorld()
    sources.world.commit(main=catalog(BINDING))
    run(
        owner,
        "SET SESSION sql_mode = '', time_zone = '+05:30'",
        "CREATE TABLE users (id INT PRIMARY KEY, y YEAR, z YEAR, n YEAR, u BIGINT UNSIGNED, "
        "d DECIMAL(20, 4), t TIMESTAMP(3) NULL, w DATETIME(6), b TINYINT(1), MiXed DATE, "
        "e ENUM('c''d', 'é'), s VARCHAR(9) CHARACTER SET latin1, i INT DEFAULT 5 INVISIBLE, "
        "g INT AS (b * 2))",
    )
    columns = "id, y, z, n, u, d, t, w, b, MiXed, e, s"
    values = (
        "0, 2024, NULL, 18446744073709551615, 1.5, '2024-03-31 02:30:00.123', "
        "'1000-01-01 00:00:00.000001', 7, '2024-02-29', 'é', 'é€'"
    )
    insert = f"INSERT INTO users ({columns}) VALUES"
    run(owner, f"{insert} (1, {values})")
    world = BinlogWorld(shop, engine, "users", sources)
    await read_to_end(world, owner)
    run(owner, f"{insert} (2, {values})")
    await read_to_end(world, owner)
    await sources.world.close()
    first, changed = (row["after"] for row in read_rows(sources))
    assert first == {**changed, "id": 1}
    assert (first["y"], first["t"], first["i"], first["MiXed"]) == (
        1900,
        "2024-03-30T21:00:00.123Z",
        5,
        "2024-02-29Z",
    )


async def test_a_truncated_table_says_so(
    shop: ExternalMySQL, owner: Connection, engine: ChangeEngine
) -> None:
    rows = await changed_by(
        shop, owner, engine, "TRUNCATE TABLE users", "INSERT INTO users VALUES (2, 0, 0)"
    )
    assert [json.loads(each)[0] for each in rows] == ["r", "t", "c"]


async def test_a_log_that_was_purged_is_a_loss(
    shop: ExternalMySQL, owner: Connection, engine: ChangeEngine
) -> None:
    statements = []
    for _ in range(2):
        statements += ["INSERT INTO users VALUES (2, 0, 0)", "DELETE FROM users WHERE id = 2"]
        statements += ["FLUSH BINARY LOGS"]
    with pytest.raises(ChangesLost, match="has not kept its log"):
        await changed_by(shop, owner, engine, *statements, purge=True)


async def test_a_connection_that_was_cut_is_noticed(
    shop: ExternalMySQL, owner: Connection, engine: ChangeEngine
) -> None:
    sources = SourceWorld()
    sources.world.commit(main=catalog(BINDING))
    run(owner, "CREATE TABLE users (id INT PRIMARY KEY)")
    world = BinlogWorld(shop, engine, "users", sources)
    first = await read_to_end(world, owner)
    first.task = started(engine, first.source, first.end)
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(first.task.look):
            continue
    first.source.watch(first.task, LOOK_S + 1)
    [cut] = [row[0] for row in rows_of(owner, "SHOW PROCESSLIST") if "Binlog Dump" in row[4]][-1:]
    run(owner, f"KILL {cut}")

    async def noticed() -> None:
        while True:
            first.source.watch(first.task, LOOK_S + 1)
            await asyncio.sleep(0.1)  # it is asked again and again

    with pytest.raises(ChangeEngineFailed, match="the connection is made again"):
        await asyncio.wait_for(noticed(), 60)
    with pytest.raises(ChangeEngineFailed, match="nothing came from the binary log"):
        first.source.watch(first.task, 61)
    first.stop()


async def test_statements_about_users_count_as_read(
    shop: ExternalMySQL, owner: Connection, engine: ChangeEngine
) -> None:
    """Nothing follows them, and no record has their GTIDs."""
    sources = SourceWorld()
    sources.world.commit(main=catalog(BINDING))
    run(owner, "CREATE TABLE users (id INT PRIMARY KEY)")
    reader = await read_to_end(BinlogWorld(shop, engine, "users", sources), owner)
    reader.task = started(engine, reader.source, reader.end)
    run(owner, f"GRANT SELECT ON {shop.database}.* TO {READER}@'%'")
    mark = reader.source.mark(reader.end.at).token
    async with asyncio.timeout(60):
        while not holds(reader.source.watch(reader.task, 0.0) or "", mark):
            await asyncio.to_thread(reader.task.take)
    reader.stop()


async def test_tinyint_1_is_boolean_in_rows_and_changes(
    shop: ExternalMySQL, owner: Connection, engine: ChangeEngine
) -> None:
    rows = await changed_by(
        shop,
        owner,
        engine,
        "ALTER TABLE users ADD c BOOLEAN DEFAULT true, ADD w TINYINT",
        "UPDATE users SET w = 2",
        "INSERT INTO users VALUES (2, 2, NULL, false, NULL)",
        columns="id INT PRIMARY KEY, a TINYINT(1), b BOOL",
    )
    first, second, third = (json.loads(each)[1] for each in rows)
    assert first == {"id": 1, "a": True, "b": True}
    assert second == {"id": 1, "a": True, "b": True, "c": True, "w": 2}
    assert third == {"id": 2, "a": True, "b": None, "c": False, "w": None}
    table = Binlog(shop, "users").describe().table
    columns = {each.name: each.category for each in table.columns}
    assert columns == {"id": "N", "a": "B", "b": "B", "c": "B", "w": "N"}
