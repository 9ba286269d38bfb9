"""Which stored things may be deleted because the database does not know them.

Theory. "Not known to me" is not "garbage": the database may be a fresh one, or restored from an old
backup. So deletion has two phases and a limit. An item that is absent from the database is marked
with the time; it may be deleted when it has been absent without interruption for a grace period,
and an item that returns loses its mark. And if a run would delete more than a limit, it deletes
nothing and reports how to allow it.

Example: of 40 jobs with snapshots, 30 are unknown after a restore from an old backup. The run
raises DeletionRefused, because 30 are more than 20 items and more than 20 % of all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, cast

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


class GarbageMarks(Protocol):
    """Since when items have been absent. Raises SystemUnavailable."""

    async def mark(self, kind: str, absent: Collection[str]) -> Mapping[str, timedelta]:
        """Record which items of a kind are absent now, and forget the marks of all others.

        Returns for how long each of `absent` has been absent without interruption.
        """
        ...


def due_for_deletion(
    kind: str,
    absent_for: Mapping[str, timedelta],
    total: int,
    grace: timedelta,
    limit: DeletionLimit,
) -> list[str]:
    """Return the items to delete: those that have been absent for longer than `grace`.

    `total`: the number of all stored items of this kind, absent or not. Raises DeletionRefused.
    """
    due = sorted(name for name, absent in absent_for.items() if absent > grace)
    if len(due) > limit.items and len(due) * 100 > limit.percent * total:
        raise DeletionRefused(
            f"{len(due)} of {total} items of kind `{kind}` are not known to the database (the "
            f"first is {due[0]}), which is more than {limit.items} and more than {limit.percent} "
            "%: none was deleted. If they are garbage, set FENNEL_GARBAGE_PERCENT=100 until they "
            "are gone; otherwise check that the database is the right one and complete"
        )
    return due


class MemoryGarbageMarks:
    """`GarbageMarks` in memory, with a clock that tests control."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._since: dict[str, dict[str, datetime]] = {}

    async def mark(self, kind: str, absent: Collection[str]) -> Mapping[str, timedelta]:
        before, now = self._since.get(kind, {}), self._now()
        self._since[kind] = {name: before.get(name, now) for name in absent}
        return {name: now - since for name, since in self._since[kind].items()}


class PostgresGarbageMarks:
    """`GarbageMarks` in the table `garbage`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def mark(self, kind: str, absent: Collection[str]) -> Mapping[str, timedelta]:
        names = sorted(absent)
        async with postgres.connection_of(self._pool) as connection, connection.transaction():
            await connection.execute(
                "DELETE FROM garbage WHERE kind = %s AND name <> ALL(%s)", (kind, names)
            )
            await connection.execute(
                "INSERT INTO garbage (kind, name) SELECT %s, unnest(%s::text[]) "
                "ON CONFLICT DO NOTHING",
                (kind, names),
            )
            cursor = await connection.execute(
                "SELECT name, now() - seen_at FROM garbage WHERE kind = %s", (kind,)
            )
            rows = await cursor.fetchall()
        return {str(name): cast(timedelta, age) for name, age in rows}
