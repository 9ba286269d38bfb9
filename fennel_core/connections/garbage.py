"""Which stored things may be deleted because the database does not know them.

Theory. "Not known to me" is not "garbage": the database may be a fresh one, or restored from an old
backup. So deletion has two phases and a limit. An item that is absent from the database is marked
with the time; it may be deleted when it has been absent without interruption for a grace period,
and an item that returns loses its mark. And if a run would delete more than a limit, it deletes
nothing and reports how to allow it. The limit does not concern what this database itself has
deleted, e.g. with a workspace: that much is known, and waits for the grace period only.

Example: of 40 jobs with snapshots, 30 are unknown after a restore from an old backup. The run
raises DeletionRefused, because 30 are more than 20 items and more than 20 % of all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol, cast

from fennel_core.connections import postgres
from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.postgres import Pool


class DeletionRefused(ConnectionsError):
    """A run would delete more than the limit, and deleted nothing.

    If the items are garbage, raise the limit for one run; if not, check that the database is the
    right one and complete.
    """

    code = "deletion-refused"


@dataclass(frozen=True, slots=True)
class DeletionLimit:
    """A run may delete up to `items` items, or more if they are at most `percent` of all."""

    items: int
    percent: int


DELETED_LISTED: Final = timedelta(days=1)
"""How long an item that the database has deleted is remembered if nothing of it is stored: what is
stored may be listed only after that.
"""


class GarbageMarks(Protocol):
    """Since when items have been absent. Raises SystemUnavailable."""

    async def mark(self, kind: str, absent: Collection[str]) -> Mapping[str, timedelta]:
        """Record which items of a kind are absent now, and forget the marks of all others.

        Returns for how long each of `absent` has been absent without interruption.
        """
        ...

    async def deleted(self, kind: str) -> Collection[str]:
        """Return the items of a kind that the database has deleted, not long ago or still there."""
        ...


def due_for_deletion(
    kind: str,
    absent_for: Mapping[str, timedelta],
    total: int,
    grace: timedelta,
    limit: DeletionLimit,
    deleted: Collection[str] = (),
) -> list[str]:
    """Return the items to delete: those that have been absent for longer than `grace`.

    `total`: the number of all stored items of this kind, absent or not. `deleted`: those that the
    database has deleted, which do not count towards the limit. Raises DeletionRefused.
    """
    absent = sorted(name for name, since in absent_for.items() if since > grace)
    known = set(deleted)
    due = [name for name in absent if name not in known]
    if len(due) > limit.items and len(due) * 100 > limit.percent * total:
        raise DeletionRefused(
            f"{len(due)} of {total} items of kind `{kind}` are not known to the database (the "
            f"first is {due[0]}), which is more than {limit.items} and more than {limit.percent} "
            "%: none was deleted. If they are garbage, set FENNEL_GARBAGE_PERCENT=100 until they "
            "are gone; otherwise check that the database is the right one and complete"
        )
    return absent


class MemoryGarbageMarks:
    """`GarbageMarks` in memory, with a clock that tests control."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._since: dict[str, dict[str, datetime]] = {}
        self._deleted: set[tuple[str, str]] = set()

    def delete(self, kind: str, name: str) -> None:
        """Do what a deletion in the database does."""
        self._deleted.add((kind, name))

    async def mark(self, kind: str, absent: Collection[str]) -> Mapping[str, timedelta]:
        before, now = self._since.get(kind, {}), self._now()
        self._since[kind] = {name: before.get(name, now) for name in absent}
        return {name: now - since for name, since in self._since[kind].items()}

    async def deleted(self, kind: str) -> Collection[str]:
        return {name for each, name in self._deleted if each == kind}


class PostgresGarbageMarks:
    """`GarbageMarks` in the table `garbage`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def mark(self, kind: str, absent: Collection[str]) -> Mapping[str, timedelta]:
        names = sorted(absent)
        async with postgres.connection_of(self._pool) as connection, connection.transaction():
            await connection.execute(
                "DELETE FROM garbage WHERE kind = %s AND name <> ALL(%s) "
                "AND (NOT deleted OR seen_at < now() - %s)",
                (kind, names, DELETED_LISTED),
            )
            await connection.execute(
                "INSERT INTO garbage (kind, name) SELECT %s, unnest(%s::text[]) "
                "ON CONFLICT DO NOTHING",
                (kind, names),
            )
            cursor = await connection.execute(
                "SELECT name, now() - seen_at FROM garbage WHERE kind = %s AND name = ANY(%s)",
                (kind, names),
            )
            rows = await cursor.fetchall()
        return {str(name): cast(timedelta, age) for name, age in rows}

    async def deleted(self, kind: str) -> Collection[str]:
        async with postgres.connection_of(self._pool) as connection:
            cursor = await connection.execute(
                "SELECT name FROM garbage WHERE kind = %s AND deleted", (kind,)
            )
            return {str(name) for (name,) in await cursor.fetchall()}
