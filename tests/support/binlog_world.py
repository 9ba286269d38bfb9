"""A real server with a binary log, and readers of a table's changes.

The server is Debian's MariaDB. Another one, as MySQL, is named by `BINLOG_PORT`; it has the user
`owner` of `support/mariadb.py`, and the flags of a server whose changes can be read.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pymysql.connections import Connection

from fennel_core.connections.change_engine import BINLOG_JARS, ChangeEngine
from fennel_core.connections.external_binlog import MARIADB, Binlog, connector_of, holds
from fennel_core.connections.external_mysql import ExternalMySQL
from fennel_core.settings.model import Settings
from fennel_core.sources.binlog_changes import BinlogSource
from fennel_core.sources.binlog_cursor import BinlogPlace
from fennel_core.wire.connectors import Cdc, Login, MySQL, MySQLChanges
from tests.support.change_readers import ChangeWorld, TableReader
from tests.support.mariadb import OWNER, WORDS, connected, running_mariadb
from tests.support.source_world import SourceWorld, stream_source

ROOT = Path(__file__).parents[2]
FLAGS = ("--log-bin=bin", "--binlog-format=ROW", "--server-id=1")
READER = "reader"
RIGHTS = "SELECT, REPLICATION SLAVE, REPLICATION CLIENT"
USERS = MySQLChanges(MySQL("shop", "db", 3306, "shop", None, Login(None, None)), "users")
BINDING = stream_source(cdc=Cdc.DEBEZIUM, disorder_us=0, table=USERS)


@pytest.fixture(scope="session")
def binlog_server() -> Iterator[int]:
    """The port of a server that logs rows."""
    given = os.environ.get("BINLOG_PORT")
    if given is not None:
        yield int(given)
        return
    with running_mariadb(*FLAGS) as port:
        yield port


@pytest.fixture(scope="session")
def engine() -> ChangeEngine:
    """The JVM of all tests, which ends with them."""
    return ChangeEngine(Settings(jars_dir=ROOT / ".fennel" / "jars"), BINLOG_JARS)


@pytest.fixture
def shop(binlog_server: int) -> Iterator[ExternalMySQL]:
    """A new database as a connector reaches it, with no more rights than are needed.

    Another one has the same name and `_other`.
    """
    name = f"shop_{uuid.uuid4().hex[:12]}"
    with connected(binlog_server) as owner, owner.cursor() as cursor:
        for each in (name, f"{name}_other"):
            cursor.execute(f"CREATE DATABASE {each}")
        cursor.execute(f"CREATE USER IF NOT EXISTS {READER}@'%' IDENTIFIED BY '{WORDS}'")
        cursor.execute(f"GRANT {RIGHTS} ON *.* TO {READER}@'%'")
    yield ExternalMySQL("shop", "127.0.0.1", binlog_server, name, READER, WORDS)
    with connected(binlog_server) as owner, owner.cursor() as cursor:
        for each in (name, f"{name}_other"):
            cursor.execute(f"DROP DATABASE IF EXISTS {each}")


@pytest.fixture
def owner(shop: ExternalMySQL) -> Iterator[Connection]:
    """A connection of the owner of the tables."""
    with connected(shop.port, OWNER, shop.database) as connection:
        yield connection


@dataclass
class BinlogWorld(ChangeWorld[BinlogSource, BinlogPlace]):
    """`heartbeat_ms`: how often one moves a place."""

    shop: ExternalMySQL
    engine: ChangeEngine
    table: str
    sources: SourceWorld
    heartbeat_ms: int = 300
    base: str = field(default_factory=lambda: f"fennel-{uuid.uuid4().hex}")

    def source(self) -> tuple[BinlogSource, str]:
        log = Binlog(self.shop, self.table)
        described = log.describe()
        source = BinlogSource(self.shop, log, described, self.base, self.heartbeat_ms, 0)
        return source, described.table.origin


async def read_to_end(
    world: BinlogWorld, owner: Connection, within_s: float = 120
) -> TableReader[BinlogSource, BinlogPlace]:
    """Read on with a new reader until it has passed the end of the log.

    A statement at the end is not known to be read before a transaction follows.
    """
    reader = await world.reader()
    run(owner, "CREATE TABLE IF NOT EXISTS ends (n INT)", "INSERT INTO ends VALUES (1)")
    end = reader.source.log.end()
    async with asyncio.timeout(within_s):
        while reader.end.at.is_first or not holds(reader.end.token or "", end):
            await reader.round(0.3, 1e9, wait_s=1.0)
            run(owner, "INSERT INTO ends VALUES (1)")
    reader.stop()
    return reader


def run(owner: Connection, *statements: str) -> None:
    with owner.cursor() as cursor:
        for each in statements:
            cursor.execute(each)


def is_maria(owner: Connection) -> bool:
    return connector_of(owner) == MARIADB
