"""The audit log: who did what, when, with which outcome.

A call that is audited writes one row before it does anything (`started`) and a second one with its
outcome: `done`, or the code of the error. If the first row cannot be written, the call is refused,
so nothing audited happens without a row. A row `started` without a second one belongs to a process
that stopped: its outcome is to be looked up. The table is append-only, which a trigger enforces.

Rows are inserted under a lock, one transaction after the other, so their ids are in the order of
their commits and a reader that continues after the last id it saw misses none
(`definition/audit_export.py`). These calls are rare; requests that read or log rows, and the use of
secrets by connectors, are not audited; of user code, the first use by each version (`secret_uses`).

    async with audited(pool, access.actor, Action.ERASE, "dataset Orders", workspace):
        ...
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, cast

import psycopg
from psycopg_pool import PoolTimeout

from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.connections.errors import ConnectionsError, SystemUnavailable
from fennel_core.connections.postgres import (
    AsyncConnection,
    Pool,
    connect,
    connection_of,
    in_transaction,
)
from fennel_core.vocab.ids import WorkspaceId

STARTED: Final = "started"
DONE: Final = "done"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"
"""Outcome of a call that ended with an exception without a code."""
LOCK_KEY: Final = 0x61756469
"""`audi` in ASCII: the number of the advisory lock of insertions."""
LONGEST_SUBJECT: Final = 300
PAGE_ROWS: Final = 1000
_LOCK: Final = "SELECT pg_advisory_xact_lock(%s)"
_INSERT: Final = (
    "INSERT INTO audit_event (call, workspace, actor, action, subject, outcome)"
    " VALUES (%s, %s, %s, %s, %s, %s)"
)
_SAME_USE: Final = (
    # The action is a constant, because its index has only rows of this action.
    "SELECT FROM audit_event WHERE workspace = %s AND actor = %s AND subject = %s"
    " AND action = 'use-secret' LIMIT 1"
)

log = logging.getLogger(__name__)


class Action(StrEnum):
    """What is audited. Stored: never rename one."""

    COMMIT = "commit"
    CREATE_BRANCH = "create-branch"
    DELETE_BRANCH = "delete-branch"
    ERASE = "erase"
    READ_SECRET = "read-secret"  # noqa: S105  # an action
    USE_SECRET = "use-secret"  # noqa: S105  # an action
    SET_SECRET = "set-secret"  # noqa: S105  # an action
    DELETE_SECRET = "delete-secret"  # noqa: S105  # an action
    ISSUE_TOKEN = "issue-token"  # noqa: S105  # an action
    ROTATE_TOKEN = "rotate-token"  # noqa: S105  # an action
    REVOKE_TOKEN = "revoke-token"  # noqa: S105  # an action
    CREATE_WORKSPACE = "create-workspace"
    DELETE_WORKSPACE = "delete-workspace"
    PURGE = "purge"
    REBUILD = "rebuild"
    RESEAL = "reseal"
    BACKUP = "backup"
    RESTORE = "restore"
    QUERY_OFFLINE = "query-offline"
    CANCEL_OFFLINE = "cancel-offline"
    PAUSE_SOURCE = "pause-source"
    LIMIT_SOURCE = "limit-source"
    RESUME_SOURCE = "resume-source"
    TEST_SOURCE = "test-source"
    REWIND_SOURCE = "rewind-source"
    PAUSE_SINK = "pause-sink"
    RESUME_SINK = "resume-sink"
    REWIND_SINK = "rewind-sink"
    SET_CONNECTOR = "set-connector"
    ROTATE_CONNECTOR = "rotate-connector"
    TEST_CONNECTOR = "test-connector"
    DELETE_CONNECTOR = "delete-connector"
    SHOW_DEAD_LETTERS = "show-dead-letters"
    REPLAY_DEAD_LETTERS = "replay-dead-letters"
    DROP_DEAD_LETTERS = "drop-dead-letters"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One row of the audit log."""

    id: int
    call: str
    at: datetime
    workspace: WorkspaceId | None
    actor: str
    action: str
    subject: str
    outcome: str

    def as_json(self) -> dict[str, object]:
        """Return the event as the API and the export show it."""
        return {
            "id": self.id,
            "call": self.call,
            "at": self.at.isoformat(),
            "workspace": self.workspace,
            "actor": self.actor,
            "action": self.action,
            "subject": self.subject,
            "outcome": self.outcome,
        }


@asynccontextmanager
async def audited(
    pool: Pool, actor: str, action: Action, subject: str, workspace: WorkspaceId | None
) -> AsyncIterator[None]:
    """Write the two rows of a call around the block; raises DatabaseUnavailable before it."""
    values = _Call(uuid.uuid4().hex, workspace, actor, action, subject)
    try:
        await _write(pool, values.row(STARTED))
    # Also of a COMMIT whose outcome is not known: the row may be there, and nothing follows it.
    except (psycopg.OperationalError, PoolTimeout, ConnectionsError) as lost:
        raise DatabaseUnavailable(
            "the platform's database cannot be reached, so the call cannot be audited and nothing "
            "was done; try again"
        ) from lost
    outcome = DONE
    try:
        yield
    except asyncio.CancelledError:
        outcome = CANCELLED
        raise
    except Exception as failed:
        outcome = outcome_of(failed)
        raise
    finally:
        # In a task of its own: a cancelled request writes its outcome, too.
        await asyncio.shield(asyncio.ensure_future(_write_outcome(pool, values, outcome)))


@contextmanager
def audited_command(
    dsn: str, actor: str, action: Action, subject: str, workspace: WorkspaceId | None = None
) -> Iterator[None]:
    """Do as `audited` for a program without an event loop, over a connection of its own.

    Raises SystemUnavailable before the block.
    """
    values = _Call(uuid.uuid4().hex, workspace, actor, action, subject)
    try:
        _write_row(dsn, values.row(STARTED))
    except psycopg.OperationalError as lost:
        raise SystemUnavailable(f"Postgres: {lost}") from lost
    outcome = FAILED
    try:
        yield
        outcome = DONE
    except Exception as failed:
        outcome = outcome_of(failed)
        raise
    finally:
        try:
            _write_row(dsn, values.row(outcome))
        except psycopg.OperationalError as lost:
            log.error("the outcome of %s was not audited: %s", action, lost)


async def record_use(pool: Pool, actor: str, subject: str, workspace: WorkspaceId) -> None:
    """Write one event of the use of a secret, unless there is one of the same values.

    Only an insertion takes the lock, so uses that are known do not wait.
    """
    row = _Call(uuid.uuid4().hex, workspace, actor, Action.USE_SECRET, subject).row(DONE)
    same = (workspace, actor, row[4])  # the subject as it is stored

    async def is_written(connection: AsyncConnection) -> bool:
        found = await connection.execute(_SAME_USE, same)
        return await found.fetchone() is not None

    async def work(connection: AsyncConnection) -> None:
        await connection.execute(_LOCK, (LOCK_KEY,))
        if not await is_written(connection):
            await connection.execute(_INSERT, row)

    async with connection_of(pool) as connection:
        if await is_written(connection):
            return
    await in_transaction(pool, work)


def outcome_of(failed: BaseException) -> str:
    """Return the outcome of a call that ended with an exception: its code if it has one."""
    code = getattr(failed, "code", None)
    return code if isinstance(code, str) else FAILED


def user_of_this_machine() -> str:
    """Return the actor of a command on this machine."""
    return f"user {getpass.getuser()} of this machine"


async def read(
    pool: Pool,
    workspace: WorkspaceId | None,
    *,
    before: int | None = None,
    rows: int = PAGE_ROWS,
) -> list[AuditEvent]:
    """Return the newest events, newest first; `workspace` None: of all.

    `before`: only events with smaller ids.
    """
    async with connection_of(pool) as connection:
        cursor = await connection.execute(
            _SELECT + " WHERE (%(workspace)s::text IS NULL OR workspace = %(workspace)s)"
            " AND (%(before)s::bigint IS NULL OR id < %(before)s) ORDER BY id DESC LIMIT %(rows)s",
            {"workspace": workspace, "before": before, "rows": rows},
        )
        return [event_of(row) for row in await cursor.fetchall()]


_SELECT: Final = "SELECT id, call, at, workspace, actor, action, subject, outcome FROM audit_event"


async def read_after(connection: AsyncConnection, id_: int, rows: int) -> list[AuditEvent]:
    """Return the oldest events after `id_`, oldest first."""
    cursor = await connection.execute(_SELECT + " WHERE id > %s ORDER BY id LIMIT %s", (id_, rows))
    return [event_of(row) for row in await cursor.fetchall()]


def event_of(row: tuple[object, ...]) -> AuditEvent:
    """Return the event of a row."""
    return AuditEvent(
        cast(int, row[0]),
        str(row[1]),
        cast(datetime, row[2]),
        None if row[3] is None else WorkspaceId(str(row[3])),
        *(str(each) for each in row[4:]),
    )


@dataclass(frozen=True, slots=True)
class _Call:
    id: str
    workspace: WorkspaceId | None
    actor: str
    action: Action
    subject: str

    def row(self, outcome: str) -> tuple[str | None, ...]:
        # Postgres stores no zero byte, and names in a path may have any.
        subject = self.subject[:LONGEST_SUBJECT].replace("\0", "?")
        return (self.id, self.workspace, self.actor, self.action, subject, outcome)


async def _write(pool: Pool, row: tuple[str | None, ...]) -> None:
    async def work(connection: AsyncConnection) -> None:
        await connection.execute(_LOCK, (LOCK_KEY,))
        await connection.execute(_INSERT, row)

    await in_transaction(pool, work)


async def _write_outcome(pool: Pool, values: _Call, outcome: str) -> None:
    try:
        await _write(pool, values.row(outcome))
    # The call itself has ended: its response must not depend on this row.
    except (psycopg.Error, PoolTimeout, ConnectionsError) as lost:
        log.error("the outcome of %s was not audited: %s", values.action, lost)


def _write_row(dsn: str, row: tuple[str | None, ...]) -> None:
    with connect(dsn, name="fennel-audit") as connection, connection.transaction():
        connection.execute(_LOCK, (LOCK_KEY,))
        connection.execute(_INSERT, row)
