"""What a server must have whose changes of tables are read, and what becomes of its failover.

The servers are real, as in `mysql_changes.py`, and so is Debezium's engine.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pymysql.connections import Connection

from fennel_core.connections import external_binlog
from fennel_core.connections.change_engine import ChangeEngine, ChangeTask
from fennel_core.connections.external_binlog import Binlog, rows_of
from fennel_core.connections.external_mysql import ExternalMySQL, ExternalMySQLUnusable
from fennel_core.settings.model import Settings
from fennel_core.sources.change_trial import newest_changes
from fennel_core.wire.connectors import Login, MySQL, MySQLChanges, PlainSecret
from tests.support.binlog_world import (
    BINDING,
    FLAGS,
    READER,
    RIGHTS,
    ROOT,
    BinlogWorld,
    binlog_server,
    engine,
    is_maria,
    owner,
    read_to_end,
    run,
    shop,
)
from tests.support.change_readers import read_rows
from tests.support.ingest_world import catalog
from tests.support.mariadb import WORDS, connected, running_mariadb
from tests.support.polling import eventually_sync
from tests.support.source_world import SourceWorld

__all__ = ["binlog_server", "engine", "owner", "shop"]

pytestmark = pytest.mark.timeout(600)


async def test_a_failover_within_a_transaction_repeats_nothing(engine: ChangeEngine) -> None:
    """The other server writes the rows of a transaction into more events."""
    with (
        running_mariadb(*FLAGS) as port,
        running_mariadb(
            *FLAGS[:-1],
            "--server-id=2",
            "--log-slave-updates",
            "--binlog-row-event-max-size=256",
        ) as replica,
        connected(port) as own,
        connected(replica) as other,
    ):
        run(other, "RESET MASTER")
        [(gtids,)] = rows_of(own, "SELECT @@gtid_current_pos")
        run(
            other,
            f"SET GLOBAL gtid_slave_pos = '{gtids}'",
            f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='owner', "
            f"MASTER_PASSWORD='{WORDS}', MASTER_USE_GTID=slave_pos",
            "START SLAVE",
        )
        run(own, "CREATE DATABASE shop", "CREATE TABLE shop.users (id INT PRIMARY KEY)")
        run(own, f"CREATE USER {READER}@'%' IDENTIFIED BY '{WORDS}'")
        run(own, f"GRANT {RIGHTS} ON *.* TO {READER}@'%'")
        sources = SourceWorld()
        sources.world.commit(main=catalog(BINDING))
        shop = ExternalMySQL("shop", "127.0.0.1", port, "shop", READER, WORDS)
        world = BinlogWorld(shop, engine, "users", sources)
        run(own, "USE shop")
        await read_to_end(world, own)
        run(own, "INSERT INTO users SELECT seq FROM seq_1_to_200")
        reader = await world.reader()
        reader.reader.changes = Half(reader.task)
        async with asyncio.timeout(60):
            while not reader.end.rows:
                await reader.round(0.0, 1, wait_s=1.0)
        assert 0 < reader.end.rows < 200
        reader.stop()
        world.shop = replace(shop, port=replica)
        await read_to_end(world, own)
        await sources.world.close()
        ids = [row["after"]["id"] for row in read_rows(sources)]
        assert ids == list(range(1, 201))


@dataclass
class Half:
    """A task of which half is taken."""

    task: ChangeTask

    def enter(self, number: int) -> None:
        self.task.enter(number)

    def take(self) -> list[str]:
        lines = self.task.take()
        return lines[: len(lines) // 2]

    def confirm(self) -> None:
        self.task.confirm()


KILLED = f"""
import time
from pathlib import Path
from fennel_core.connections.change_engine import BINLOG_JARS, ChangeEngine
from fennel_core.settings.model import Settings
engine = ChangeEngine(Settings(jars_dir=Path({str(ROOT / ".fennel" / "jars")!r})), BINLOG_JARS)
print(engine.keep("t.history", "a history"), flush=True)
time.sleep(600)
"""


def test_histories_are_deleted_when_their_process_is_killed() -> None:
    with subprocess.Popen(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as process:
        assert process.stdout is not None
        file = Path(process.stdout.readline().strip())
        assert file.read_text() == "a history"
        process.kill()
    eventually_sync(lambda: not file.parent.exists())


# --- what a server must have ----------------------------------------------------------------------


def described(shop: ExternalMySQL) -> external_binlog.BinlogTable:
    with shop.connect() as connection:
        found = external_binlog.logged_table(shop, connection, "users")
        external_binlog.require_log(shop, connection, found)
        return found


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("CREATE TABLE users (id INT)", "has no primary key"),
        ("CREATE TABLE users (id DATETIME PRIMARY KEY)", "of type datetime in its primary key"),
        (
            "CREATE TABLE users (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",
            "has partitions",
        ),
        ("CREATE VIEW users AS SELECT 1", "is a view"),
        (
            "CREATE TABLE users (id INT PRIMARY KEY, n INT, FOREIGN KEY (n) REFERENCES other (id) "
            "ON DELETE CASCADE)",
            "has a foreign key",
        ),
        ("CREATE TABLE nothing (id INT)", "has no table `users`"),
    ],
)
def test_a_table_without_usable_changes_is_refused(
    shop: ExternalMySQL, owner: Connection, statement: str, words: str
) -> None:
    run(owner, "CREATE TABLE other (id INT PRIMARY KEY)", statement)
    with pytest.raises(ExternalMySQLUnusable, match=words):
        described(shop)


def test_a_type_that_is_read_wrongly_is_refused(shop: ExternalMySQL, owner: Connection) -> None:
    if not is_maria(owner):
        pytest.skip("types of MariaDB")
    for type_ in ("UUID", "INET6", "VARCHAR(9) COMPRESSED"):
        run(owner, f"CREATE OR REPLACE TABLE users (id INT PRIMARY KEY, u {type_})")
        with pytest.raises(ExternalMySQLUnusable, match="column `u` of type"):
            described(shop)


def test_options_that_changes_have_otherwise_are_not_served(
    shop: ExternalMySQL, owner: Connection
) -> None:
    options = "ENUM('a,b'), f ENUM('c\\\\d'), g SET('a', 'e\\nf'), h ENUM('a', 'b''c', 'é')"
    run(owner, f"CREATE TABLE users (id INT PRIMARY KEY, e {options})")
    assert [each.category for each in described(shop).table.columns] == ["N", *"UUUS"]


def test_a_server_without_a_log_is_refused() -> None:
    with running_mariadb() as port:
        with connected(port) as own:
            run(own, "CREATE DATABASE shop", "CREATE TABLE shop.users (id INT PRIMARY KEY)")
        with pytest.raises(ExternalMySQLUnusable, match="binlog_format=ROW, log_bin=ON"):
            described(ExternalMySQL("shop", "127.0.0.1", port, "shop", "fennel", WORDS))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("binlog_format", "STATEMENT"),
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_value_options", "PARTIAL_JSON"),
        ("binlog_alter_two_phase", "ON"),
    ],
)
def test_a_server_that_does_not_log_rows_any_more_is_noticed(
    shop: ExternalMySQL, owner: Connection, setting: str, value: str
) -> None:
    run(owner, "CREATE TABLE users (id INT PRIMARY KEY)")
    log = Binlog(shop, "users")
    log.end()
    found = rows_of(owner, "SHOW GLOBAL VARIABLES LIKE %s", (setting,))
    if not found:
        pytest.skip("a setting of other servers")
    run(owner, f"SET GLOBAL {setting} = '{value}'")
    try:
        for ask in (log.end, log.describe):
            with pytest.raises(ExternalMySQLUnusable, match=f"{setting}="):
                ask()
    finally:
        run(owner, f"SET GLOBAL {setting} = '{found[0][1]}'")


@pytest.mark.parametrize("right", ["REPLICATION SLAVE", "REPLICATION CLIENT"])
def test_a_missing_right_is_named(shop: ExternalMySQL, owner: Connection, right: str) -> None:
    run(owner, "CREATE TABLE users (id INT PRIMARY KEY)")
    described(shop)
    run(owner, f"CREATE USER IF NOT EXISTS less@'%' IDENTIFIED BY '{WORDS}'")
    given = ", ".join(each for each in RIGHTS.split(", ") if each != right)
    run(
        owner,
        "REVOKE ALL PRIVILEGES, GRANT OPTION FROM less@'%'",
        f"GRANT {given} ON *.* TO less@'%'",
    )
    with pytest.raises(ExternalMySQLUnusable, match=right):
        described(replace(shop, user="less"))


def test_the_rows_with_the_highest_keys_are_shown(shop: ExternalMySQL, owner: Connection) -> None:
    run(owner, "CREATE TABLE users (id BIGINT UNSIGNED PRIMARY KEY, n INT)")
    run(owner, *(f"INSERT INTO users VALUES ({n}, NULL)" for n in range(8)))  # noqa: S608  # statements of a test
    run(owner, f"INSERT INTO users VALUES ({2**64 - 1}, 1)")  # noqa: S608  # statements of a test
    login = Login(PlainSecret(READER), PlainSecret(WORDS))
    own = MySQL("shop", shop.host, shop.port, shop.database, None, login)
    settings = Settings(jars_dir=ROOT / ".fennel" / "jars")
    rows = newest_changes(settings, MySQLChanges(own, "users"), lambda _: "", 3)
    assert [json.loads(row)["after"]["id"] for row in rows] == [2**64 - 1, 7, 6]
