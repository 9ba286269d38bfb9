"""Faults that need no support in production code.

Theory. A *gate* is a trigger in Postgres that makes one change of one row wait for an advisory lock
that the test holds. A step is stopped exactly there, in the middle of its transaction. Postgres
reports which connection waits, the connection's port identifies the process, and the test kills
that process or the connection. Services are found by the records that the launcher keeps, and are
frozen or killed as an operator or the kernel would do it.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
from psycopg import sql

from fennel_core.apps.local import processes
from fennel_core.settings.model import Settings
from tests.support.polling import eventually

ARRIVES_SECONDS: Final = 60.0

COMPILE: Final = ("commit", "NEW.state = 'reserved' AND OLD.state = 'received'")
"""Inside T1: everything is reserved, nothing is committed."""
BEFORE_CREATE: Final = ("commit", "NEW.state = 'reserved' AND OLD.state = 'reserved'")
"""The creation ledger is about to be read."""
CREATED: Final = ("ledger_entry", "NEW.ledger = 'creation' AND NEW.state = 'done'")
"""Topics exist and are not recorded yet."""
SWITCH: Final = ("branch", "NEW.target IS DISTINCT FROM OLD.target")
"""Inside T2."""
SERVE: Final = ("branch", "NEW.serving IS DISTINCT FROM OLD.serving")
"""Reads are about to move."""
DESTROYED: Final = (
    "ledger_entry",
    "NEW.ledger = 'destruction' AND NEW.state = 'done' AND split_part(NEW.asset_id, "
    "'.', 2) <> 'job'",
)
"""Old topics are deleted and that is not recorded yet."""


@dataclass
class Gate:
    """`open` it to let the waiting process continue."""

    settings: Settings
    name: str
    key: int
    keeper: psycopg.Connection[Any]

    async def reached(self) -> int:
        """Wait until a connection waits at the gate; return its process id in the server."""
        found = await eventually(
            lambda: self.keeper.execute(WAITING, {"key": self.key}).fetchall(),
            within_s=ARRIVES_SECONDS,
            what="a connection waits at the gate",
        )
        return int(found[0][0])

    def client(self, backend: int) -> int:
        """Return the id of the process whose connection waits."""
        row = self.keeper.execute(
            "SELECT client_port FROM pg_stat_activity WHERE pid = %s", (backend,)
        ).fetchone()
        assert row is not None
        return owner_of_connection(int(row[0]), self.keeper.info.port)

    async def kill_task(self) -> int:
        """Kill the process of the Airflow task that waits here, with -9."""
        pid = self.client(await self.reached())
        assert is_task(pid), "it is a task of Airflow"
        os.kill(pid, signal.SIGKILL)
        return pid

    async def strike(self) -> None:
        """Kill the task that waits here.

        The definition server runs some steps too; if it came first, cut its connection.
        """
        backend = await self.reached()
        pid = self.client(backend)
        if is_task(pid):
            os.kill(pid, signal.SIGKILL)
        else:
            self.keeper.execute("SELECT pg_terminate_backend(%s)", (backend,))

    async def cut(self) -> None:
        """Cut the connection that waits."""
        self.keeper.execute("SELECT pg_terminate_backend(%s)", (await self.reached(),))

    def only_this(self) -> None:
        """Let every later connection pass; the one that waits goes on waiting."""
        self.keeper.execute(
            sql.SQL("CREATE OR REPLACE FUNCTION {}() {}").format(
                sql.Identifier(self.name), _body("RETURN NEW;")
            )
        )

    async def keep_again(self) -> None:
        """Connect again after the server died, and every lock with it, to remove the gate."""
        await eventually(self._connected, within_s=ARRIVES_SECONDS, what="Postgres is back")

    def _connected(self) -> bool:
        if self.keeper.closed:
            with suppress(psycopg.OperationalError):  # it is still starting
                self.keeper = psycopg.connect(
                    self.settings.postgres_dsn.get_secret_value(), autocommit=True
                )
        return not self.keeper.closed

    def open(self) -> None:
        self.keeper.execute("SELECT pg_advisory_unlock_all()")


def owner_of_connection(port: int, server_port: int) -> int:
    """Return the id of the process that has opened the connection from `port` to a server.

    Processes that it has forked share the connection until they close it or exec, and are younger.
    The same port may be in use towards other servers, and it is the remote one in the server.
    """
    inodes = {
        fields[9]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in map(str.split, Path(table).read_text().splitlines()[1:])
        if (_port(fields[1]), _port(fields[2])) == (port, server_port)
    }
    sockets = {f"socket:[{inode}]" for inode in inodes}
    holders = [each for each in psutil.process_iter() if sockets & _descriptors(each.pid)]
    assert holders, f"a process of this machine is connected from port {port}"
    return min(holders, key=lambda process: (process.create_time(), process.pid)).pid


def _port(address: str) -> int:
    """Return the port of an address of `/proc/net/tcp`, which is hexadecimal."""
    return int(address.rpartition(":")[2], 16)


def _descriptors(pid: int) -> set[str]:
    """Return what the descriptors of a process refer to."""
    found = set()
    with suppress(OSError):  # it has just ended, or is none of ours
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed in the meantime
                found.add(str(each.readlink()))
    return found


def is_task(pid: int) -> bool:
    """Return whether a process runs a task of Airflow."""
    parent = psutil.Process(pid).parent()
    return parent is not None and "airflow" in " ".join(parent.cmdline())


WAITING = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid
    FROM pg_database WHERE datname =
current_database()) AND (classid::bigint << 32 | objid::bigint) = %(key)s
"""


@asynccontextmanager
async def gate(settings: Settings, workspace: str, where: tuple[str, str]) -> AsyncIterator[Gate]:
    """Make the change `where` (table, condition on OLD and NEW) of the workspace wait at a gate."""
    table, condition = where
    key, name = uuid.uuid4().int % 2**31, f"gate_{uuid.uuid4().hex}"
    keeper = psycopg.connect(settings.postgres_dsn.get_secret_value(), autocommit=True)
    made = Gate(settings, name, key, keeper)
    keeper.execute("SELECT pg_advisory_lock(%s)", (key,))
    waits = _body(f"PERFORM pg_advisory_xact_lock({key}); RETURN NEW;")
    keeper.execute(sql.SQL("CREATE FUNCTION {}() {}").format(sql.Identifier(name), waits))
    try:
        keeper.execute(
            sql.SQL(
                "CREATE TRIGGER {n} BEFORE UPDATE ON {t} FOR EACH ROW WHEN "
                "(NEW.workspace = {w} AND {c}) EXECUTE FUNCTION {n}()"
            ).format(
                n=sql.Identifier(name),
                t=sql.Identifier(table),
                w=sql.Literal(workspace),
                c=sql.SQL(condition),  # type: ignore[arg-type]  # a constant of this file
            )
        )
        yield made
    finally:
        made.open()
        made.keeper.execute(sql.SQL("DROP FUNCTION {} CASCADE").format(sql.Identifier(name)))
        made.keeper.close()


def _body(statements: str) -> sql.Composed:
    return sql.SQL("RETURNS trigger LANGUAGE plpgsql AS {}").format(
        sql.Literal(f"BEGIN {statements} END")
    )


def leader(settings: Settings, part: str) -> processes.ProcessRecord:
    record = processes.read_record(settings.data_dir / "pids" / part)
    assert record is not None, f"{part} runs"
    return record


def kill_part(settings: Settings, part: str) -> None:
    """Kill every process of a service with -9."""
    for pid in processes.session_members(leader(settings, part)):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def frozen(settings: Settings, part: str) -> Iterator[None]:
    """Freeze a service for the time of the block."""
    pids = processes.session_members(leader(settings, part))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGCONT)
