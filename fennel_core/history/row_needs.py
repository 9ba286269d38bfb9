"""Which rows are needed now, and by whom: one cut through the versions and jobs of all workspaces.

Theory. Rows that have left do not come back, so what decides about them must be true when the index
changes. All of it is read in one snapshot, and the transaction that replaces a file compares it
again (`readers_now`), under the lock of the workspace that commits take. So a commit either comes
first, and the file stays until the needs are read again; or it comes later, and its plan counts the
rows that have left.

Versions hold rows while a branch has them or a running commit will give them one, and for the grace
period after that: until then a commit may revive what they had. A workspace with a commit between
T1 and T2, whose jobs are not registered yet, loses none, and neither does one that is older than
retention, until a commit confirms it.

The clock that ages rows must not jump. It is the earliest of four: the database's, this machine's,
the database's when the workspace last accepted rows, and its own: runs move that on by a bounded
step per day, however many they are (`advance_clocks`), so a jump of all the others loses no more
than the steps of the days until it is noticed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, LiteralString, cast

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.row_retention import RowRetention, retention_of
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.connections import postgres
from fennel_core.connections.postgres import AsyncConnection, Pool
from fennel_core.history.store import Readers
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import TopicName, WorkspaceId

log = logger(__name__)
STEP: Final = timedelta(days=7)
"""How far runs move the clock of a workspace in a day: more than that, so that it catches up."""
CHANGING: Final = ("reserved", "created")
"""The states of commits between T1 and T2."""
VERSIONS: LiteralString = """
    FROM commit c WHERE c.catalog IS NOT NULL AND (
        c.finished_at IS NULL OR c.rows_held_until > now()
        OR EXISTS (SELECT FROM branch b WHERE c.id IN (b.target, b.serving))
    )
"""
CATALOGS: Final = f"""
    SELECT c.workspace, c.id, CASE WHEN c.id = ANY(%(known)s) THEN NULL ELSE c.catalog END,
        c.state = ANY(%(changing)s)
    {VERSIONS}
"""
JOBS: Final = """
    SELECT workspace, id, CASE WHEN id = ANY(%(known)s) THEN NULL ELSE spec END, false
    FROM job WHERE desired <> 'remove'
"""
"""Paused jobs, too: a commit may revive them."""
IDS: Final = f"""
    SELECT c.id {VERSIONS} AND c.workspace = %(workspace)s
    UNION ALL SELECT id FROM job WHERE desired <> 'remove' AND workspace = %(workspace)s
"""  # noqa: S608  # a constant
LOCK: Final = "SELECT FROM workspace WHERE name = %(workspace)s FOR SHARE"
"""Commits lock the row FOR NO KEY UPDATE from T1 on."""
MACHINE: Final = "to_timestamp(%(machine_s)s)"
STEP_NOW: Final = f"""
    least(%(step)s, greatest(interval '0', (least(now(), {MACHINE}) - w.aged_at) * %(days)s))
"""
"""A clock that was in the future and was set right gives no step, once."""
CLOCKS: Final = f"""
    SELECT w.name, w.keeps_old_rows OR coalesce(w.old_rows_held_until > now(), false),
        (extract(epoch FROM w.aged_to) * 1000000)::bigint,
        (extract(epoch FROM least(i.rows_at, now())) * 1000000)::bigint,
        (extract(epoch FROM {STEP_NOW}) * 1000000)::bigint
    FROM workspace w JOIN ingest_clock i ON i.workspace = w.name AND i.rows_at IS NOT NULL
"""  # noqa: S608  # a constant
"""Not the stamps of `ingest_clock`, which erasures advance, too."""
ADVANCE: Final = f"""
    UPDATE workspace w
    SET aged_to = least(n.at, w.aged_to + {STEP_NOW}), aged_at = least(now(), {MACHINE})
    FROM (SELECT workspace, least(rows_at, now(), {MACHINE}) AS at
          FROM ingest_clock WHERE rows_at IS NOT NULL) AS n
    WHERE n.workspace = w.name AND n.at > w.aged_to
    RETURNING w.name, n.at > w.aged_to
"""  # noqa: S608  # a constant


@dataclass(frozen=True, slots=True)
class RowClock:
    """By what time the rows of a workspace age, µs.

    `aged_us`: how far runs have moved it. `accepted_us`: when rows were last accepted, but not
    later than now. `keeps_old_rows`: none leaves, because the workspace is older than retention.
    `step_us`: how far a run would move it at most.
    """

    aged_us: int
    accepted_us: int
    keeps_old_rows: bool = False
    step_us: int = 0


@dataclass(frozen=True, slots=True)
class RowNeeds:
    """How long rows are needed, by topic; who needs them, and their clocks, by workspace.

    `changing`: the workspaces with a commit between T1 and T2.
    """

    kept: Mapping[TopicName, RowRetention]
    readers: Mapping[WorkspaceId, Readers]
    clocks: Mapping[WorkspaceId, RowClock]
    changing: frozenset[WorkspaceId] = frozenset()


class RowNeedsReader:
    """Reads what is needed. Raises SystemUnavailable. Catalogs and specifications never change
    after they are written, so each is decoded once.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._catalogs: dict[str, Catalog] = {}
        self._jobs: dict[str, Job] = {}

    async def read(self) -> RowNeeds:
        """Return what is needed now."""
        async with postgres.connection_of(self._pool) as connection, connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            known = {"known": list(self._catalogs), "changing": list(CHANGING)}
            catalogs = await _rows(connection, CATALOGS, known)
            jobs = await _rows(connection, JOBS, {"known": list(self._jobs)})
            clocks = await _rows(connection, CLOCKS, _clock_values())
        self._catalogs = {
            id_: self._catalogs[id_] if data is None else stored_names.loads(data, Catalog)
            for _, id_, data, _ in catalogs
        }
        self._jobs = {
            id_: self._jobs[id_] if data is None else stored_names.loads(data, Job)
            for _, id_, data, _ in jobs
        }
        ids: dict[WorkspaceId, set[str]] = {}
        for workspace, id_, *_ in (*catalogs, *jobs):
            ids.setdefault(WorkspaceId(workspace), set()).add(id_)
        return RowNeeds(
            retention_of(self._catalogs.values(), self._jobs.values()),
            {name: Readers(name, frozenset(found)) for name, found in ids.items()},
            {
                WorkspaceId(name): RowClock(aged, accepted, keeps, step)
                for name, keeps, aged, accepted, step in clocks
            },
            frozenset(WorkspaceId(name) for name, _, _, changing in catalogs if changing),
        )

    async def advance_clocks(self) -> None:
        """Move the clocks of all workspaces on to now, but not by more than STEP per day."""
        async with postgres.connection_of(self._pool) as connection:
            moved = await _rows(connection, ADVANCE, _clock_values())
        if behind := sorted(name for name, is_behind in moved if is_behind):
            log.warning(
                "the clock that ages rows is behind: a clock has jumped, or for days no run was "
                "made or no row accepted",
                workspaces=behind,
            )


def _clock_values() -> dict[str, object]:
    return {"step": STEP, "days": STEP.days, "machine_s": time.time()}


async def readers_now(connection: AsyncConnection, workspace: WorkspaceId) -> Readers:
    """Return what reads rows of a workspace; until the transaction ends no commit changes it."""
    at = {"workspace": workspace}
    await connection.execute(LOCK, at)
    rows = await (await connection.execute(IDS, at)).fetchall()
    return Readers(workspace, frozenset(str(id_) for (id_,) in rows))


async def _rows(
    connection: AsyncConnection, statement: LiteralString, values: Mapping[str, object]
) -> list[tuple[Any, ...]]:
    rows = await (await connection.execute(statement, values)).fetchall()
    return cast(list[tuple[Any, ...]], rows)
