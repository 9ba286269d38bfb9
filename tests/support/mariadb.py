"""A real MariaDB for tests: Debian's server, on a port of its own, with files of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql
import pytest
from pymysql.connections import Connection

from fennel_core.connections.external_mysql import ExternalMySQL
from tests.support.ports import free_port

SERVER, INSTALL = Path("/usr/sbin/mariadbd"), Path("/usr/bin/mariadb-install-db")
DEFAULTS = Path("/usr/bin/my_print_defaults")
"""Of the client's package; the installation calls it."""
START_S = 30
OWNER, READER = "owner", "fennel"
WORDS = "not-a-real-one"


def connected(port: int, user: str = OWNER, database: str | None = None) -> Connection:
    """Return a connection that commits each statement."""
    return pymysql.connect(
        host="127.0.0.1", port=port, user=user, password=WORDS, database=database, autocommit=True
    )


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[int]:
    """The port of a server with a user who owns all, and one who may read."""
    with running_mariadb() as port:
        yield port


@contextmanager
def running_mariadb(*more: str) -> Iterator[int]:
    """Yield the port of a server with more flags, and end it."""
    assert SERVER.exists(), (
        "MariaDB is missing: run `apt-get install mariadb-server-core mariadb-client-core`"
    )
    folder = Path(tempfile.mkdtemp(prefix="fennel-maria-"))
    port = free_port()
    setup = folder / "init.sql"
    setup.write_text(
        f"CREATE USER {OWNER}@'%' IDENTIFIED BY '{WORDS}';\n"
        f"GRANT ALL ON *.* TO {OWNER}@'%' WITH GRANT OPTION;\n"
        f"CREATE USER {READER}@'%' IDENTIFIED BY '{WORDS}';\n"
        f"GRANT SELECT, PROCESS ON *.* TO {READER}@'%';\n"
    )
    data = ["--no-defaults", f"--datadir={folder / 'data'}", "--user=root"]
    try:
        subprocess.run(  # noqa: S603  # a program of this test, and no shell
            [str(INSTALL), *data, "--skip-test-db"], check=True, stdout=subprocess.DEVNULL
        )
        flags = [
            f"--port={port}",
            "--bind-address=127.0.0.1",
            f"--socket={folder / 'socket'}",
            f"--init-file={setup}",
            "--innodb-flush-log-at-trx-commit=0",
            f"--log-error={folder / 'log'}",
            *more,
        ]
        server = subprocess.Popen([str(SERVER), *data, *flags])  # noqa: S603  # as above
        try:
            _wait(port, server, folder / "log")
            yield port
        finally:
            server.terminate()
            server.wait(timeout=START_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + START_S
    while True:
        try:
            connected(port).close()
        except pymysql.Error:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < until_s, log.read_text()
            time.sleep(0.1)  # the server says nothing when it is ready
        else:
            return


@pytest.fixture
def maria(mariadb_server: int) -> ExternalMySQL:
    """A new database as a connector reaches it."""
    with connected(mariadb_server) as owner, owner.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS shop")
        cursor.execute("CREATE DATABASE shop")
    return ExternalMySQL("shop", "127.0.0.1", mariadb_server, "shop", READER, WORDS)
