"""A real Postgres that logs changes, and readers of a table's changes."""

from __future__ import annotations

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

from fennel_core.connections.change_engine import ChangeEngine
from fennel_core.connections.external_changes import PostgresLog
from fennel_core.connections.external_postgres import ExternalPostgres
from fennel_core.settings.model import Settings
from fennel_core.sources.change_cursor import ChangePlace
from fennel_core.sources.changes import LoggedSource
from tests.support.change_readers import ChangeWorld
from tests.support.postgres import make_cluster, running
from tests.support.source_world import SourceWorld

Connection = psycopg.Connection[tuple[Any, ...]]
ROOT = Path(__file__).parents[2]
FLAGS = "-c wal_level=logical -c max_replication_slots=50 -c max_wal_senders=50"
DROP_SLOTS = """
    SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
    WHERE database = current_database() AND active_pid IS NOT NULL
"""


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
class PostgresWorld(ChangeWorld[LoggedSource, ChangePlace]):
    shop: ExternalPostgres
    engine: ChangeEngine
    table: str
    sources: SourceWorld
    base: str = field(default_factory=lambda: f"fennel_{uuid.uuid4().hex}")

    def source(self) -> tuple[LoggedSource, str]:
        log = PostgresLog(self.shop, self.table, self.base)
        described = log.describe()
        return LoggedSource(self.shop, log, described, self.base), described.table.origin
