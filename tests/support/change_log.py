"""A real Postgres that logs changes, and readers of a table's changes as the platform's are.

A reader has an engine of its own kind in the one JVM of the tests. It is killed by letting it go:
its engine goes on, as one of a frozen process does, until the next reader takes its slot.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from fennel_core.connections.change_engine import ChangeEngine, ChangeTask
from fennel_core.connections.external_changes import PostgresLog
from fennel_core.connections.external_postgres import ExternalPostgres
from fennel_core.settings.model import Settings
from fennel_core.sources.change_cursor import ChangePlace
from fennel_core.sources.change_reader import ChangeRoundEnd, LoggedChangeReader
from fennel_core.sources.changes import TASK, LoggedSource
from fennel_core.sources.positions import SourcePosition
from fennel_core.sources.writer import PartitionWriter
from tests.support.postgres import make_cluster, running
from tests.support.source_world import SourceWorld

Connection = psycopg.Connection[tuple[Any, ...]]
ROOT = Path(__file__).parents[2]
FLAGS = "-c wal_level=logical -c max_replication_slots=50 -c max_wal_senders=50"
DROP_SLOTS = """
    SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
    WHERE database = current_database() AND active_pid IS NOT NULL
"""
LOOKS = 5
"""How often a worker that will be lost asks for changes; each time it waits for a moment."""
_numbers = itertools.count()


@pytest.fixture(scope="session")
def logging_server() -> Iterator[str]:
    """The connection string of a server with `wal_level=logical`."""
    folder = Path(tempfile.mkdtemp(prefix="fennel-pg-"))
    try:
        make_cluster(folder / "data")
        with running(folder / "data", more=FLAGS) as dsn:
            yield dsn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def engine() -> ChangeEngine:
    """The JVM of all tests, which ends with them."""
    return ChangeEngine(Settings(jars_dir=ROOT / ".fennel" / "jars"))


@pytest.fixture
def shop(logging_server: str) -> Iterator[ExternalPostgres]:
    """A database of its own, as a connector reaches it."""
    at, name = conninfo_to_dict(logging_server), f"shop_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(logging_server, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}".encode())
    yield ExternalPostgres("shop", str(at["host"]), int(str(at["port"])), name, "fennel", "", {})
    with psycopg.connect(logging_server, dbname=name, autocommit=True) as connection:
        for _ in range(50):
            connection.execute(DROP_SLOTS)
            try:
                connection.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                    "WHERE database = current_database()"
                )
                break
            except psycopg.errors.ObjectInUse:
                continue
    with psycopg.connect(logging_server, autocommit=True) as server:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def owner(shop: ExternalPostgres) -> Iterator[Connection]:
    """A connection of the owner of the tables."""
    with psycopg.connect(
        host=shop.host, port=shop.port, dbname=shop.database, user=shop.user, autocommit=True
    ) as connection:
        yield connection


@dataclass
class TableReader:
    """A reader of a table's changes, with an engine; `writer`: its rows and positions."""

    source: LoggedSource
    engine: ChangeEngine
    writer: PartitionWriter
    reader: LoggedChangeReader[ChangePlace]
    end: ChangeRoundEnd[ChangePlace]
    task: ChangeTask

    async def lose_worker(self) -> None:
        """Begin a round whose worker is killed behind the first changes that it has taken."""
        await asyncio.to_thread(self.task.enter, self.end.number)
        for _ in range(LOOKS):
            if await asyncio.to_thread(self.task.look):
                break
        await asyncio.to_thread(self.task.take)

    async def round(self, seconds: float, rows: float) -> ChangeRoundEnd[ChangePlace]:
        """Read; behind the last row of the first read, let the changes follow."""
        was_first = self.end.at.cursor.first
        self.writer.close()
        self.end = await self.reader.round(self.end, seconds, rows)
        self.source.log.keep_only(self.end.at.cursor.slot)
        if was_first and not self.end.at.cursor.first:
            self.task.stop()
            self.end = self.source.follow(self.end)
            self.task = started(self.engine, self.source, self.end)
            self.reader.changes = self.task
        return self.end


def started(
    engine: ChangeEngine, source: LoggedSource, end: ChangeRoundEnd[ChangePlace]
) -> ChangeTask:
    name = f"{source.base}-{next(_numbers)}"
    return engine.start(name, TASK, source.properties(end.at.cursor))


@dataclass
class ChangeWorld:
    """Readers of one table over one platform's log."""

    shop: ExternalPostgres
    engine: ChangeEngine
    table: str
    sources: SourceWorld
    base: str = field(default_factory=lambda: f"fennel_{uuid.uuid4().hex}")

    async def reader(self) -> TableReader:
        """Begin to read at the position, as the host does."""
        log = PostgresLog(self.shop, self.table, self.base)
        described = log.describe()
        source = LoggedSource(self.shop, log, described, self.base)
        writer = self.sources.writer(origin=described.table.origin)
        position = await writer.position()
        end = source.begin(position or SourcePosition(0, described.table.origin))
        task = started(self.engine, source, end)
        reader = LoggedChangeReader("changes of `t`", writer, task, source.reading)
        return TableReader(source, self.engine, writer, reader, end, task)
