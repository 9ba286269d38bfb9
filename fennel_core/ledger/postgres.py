"""The ledgers in Postgres.

`connections.postgres.in_transaction` determines the outcome of every COMMIT before `run` returns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec
import psycopg
from psycopg.types.json import Jsonb
from psycopg_pool import PoolTimeout

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.asset_names import incarnation_of
from fennel_core.blueprints.plan_entries import PlanRecord, decode_record, encode_record
from fennel_core.blueprints.spec import Job
from fennel_core.connections import workspaces
from fennel_core.connections.api_errors import WorkspaceNotFound
from fennel_core.connections.errors import (
    SystemUnavailable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from fennel_core.connections.postgres import (
    AsyncConnection,
    Pool,
    in_transaction,
)
from fennel_core.ledger.lifecycle import OPEN_ENTRIES, SETTLED, UNDONE, CommitState, EntryState
from fennel_core.ledger.postgres_history import HistoryOfTopics
from fennel_core.ledger.store import (
    NO_GRACE,
    Branch,
    CatchUp,
    Commit,
    CommitError,
    CommitOptions,
    LedgerEntry,
    LedgerKind,
    LedgerTransaction,
    PartitionProgress,
    StuckJob,
)
from fennel_core.vocab.ids import (
    AssetId,
    BranchName,
    CommitId,
    JobId,
    Millis,
    Offset,
    PartitionIndex,
    TopicName,
    WorkspaceId,
)
from fennel_core.vocab.problems import Problem

T = TypeVar("T")
ABORTED_ATTEMPTS: Final = 3
"""Attempts of a transaction whose COMMIT was lost and turned out to be rolled back."""

COMMIT_COLUMNS = """
    id, workspace, branch, state, digest, options->>'incremental' = 'true', options->>'backfill' =
        'true', coalesce(options->>'allow_data_loss' = 'true', false),
    base, stuck, error_status, error_code, error, problems, attempt
"""
ADD_COMMIT = """
    INSERT INTO commit (id, workspace, branch, state, digest, request, options, base)
    VALUES (%s, %s, %s, %s, %s, %s, jsonb_build_object('incremental', %s::boolean, 'backfill',
        %s::boolean, 'allow_data_loss', %s::boolean), %s)
"""
COMMIT = f"SELECT {COMMIT_COLUMNS} FROM commit WHERE id = %s"  # noqa: S608  # built from constants
SAME = f"""
    SELECT {COMMIT_COLUMNS} FROM commit WHERE workspace = %s AND branch = %s AND digest = %s AND
        state <> ALL(%s)
    ORDER BY created_at DESC LIMIT 1
"""  # noqa: S608  # built from constants
OPEN = (
    "SELECT id FROM commit WHERE finished_at IS NULL AND (%(workspace)s::text IS NULL OR "
    "workspace = %(workspace)s) ORDER BY created_at, id"
)
OPEN_ROWS = f"""
    SELECT {COMMIT_COLUMNS} FROM commit WHERE finished_at IS NULL AND workspace = %s
    ORDER BY created_at, id
"""  # noqa: S608  # built from constants
EXPIRED = f"""
    SELECT {COMMIT_COLUMNS} FROM commit WHERE finished_at IS NULL
        AND (lease_until IS NULL OR lease_until <= now())
    ORDER BY created_at, id
"""  # noqa: S608  # built from constants
LEASE = "UPDATE commit SET lease_until = now() + %s * interval '1 ms' WHERE id = %s"
SET_STATE = """
    UPDATE commit SET state = %(state)s,
        error = coalesce(error, %(error)s),
        error_code = CASE WHEN error IS NULL THEN %(code)s ELSE error_code END,
        error_status = CASE WHEN error IS NULL THEN %(status)s ELSE error_status END,
        problems = CASE WHEN error IS NULL THEN %(problems)s::jsonb ELSE problems END,
        finished_at = CASE WHEN %(state)s = ANY(%(settled)s) THEN coalesce(finished_at, now()) END
    WHERE id = %(id)s
"""
WITHOUT_TARGET = """
    SELECT w.id FROM unnest(%s::text[]) AS w (id)
    WHERE NOT (%s AND EXISTS (SELECT 1 FROM reservation r WHERE r.asset_id = w.id))
      AND NOT EXISTS (
          SELECT 1 FROM asset_ref r
          JOIN branch b
            ON b.workspace = r.workspace AND b.name = r.branch AND b.target = r.commit_id
          WHERE r.asset_id = w.id)
"""
ADD_ENTRIES = """
    INSERT INTO ledger_entry (ledger, workspace, commit_id, asset_id, state) SELECT %s, %s, %s,
        unnest(%s::text[]), 'pending'
"""
ENTRIES = """
    SELECT id, ledger, workspace, commit_id, asset_id, state, attempts, error FROM ledger_entry
    WHERE ledger = %(ledger)s AND (%(commit)s::text IS NULL OR commit_id = %(commit)s)
      AND (%(workspace)s::text IS NULL OR workspace = %(workspace)s) AND (NOT %(open)s OR state =
          ANY(%(states)s))
    ORDER BY id
"""
MARK = (
    "UPDATE ledger_entry SET state = %s, error = %s, attempts = attempts + 1, updated_at "
    "= now() WHERE id = ANY(%s::bigint[])"
)
ADD_JOBS = (
    "INSERT INTO job (id, workspace, spec) SELECT * FROM unnest(%s::text[], %s::text[], "
    "%s::bytea[]) ON CONFLICT DO NOTHING"
)
ADD_PARTS = """
    INSERT INTO job_partition (job_id, part) SELECT j.id, p FROM unnest(%s::text[], %s::int[]) AS j
        (id, partitions),
        generate_series(0, j.partitions - 1) AS p ON CONFLICT DO NOTHING
"""
PROGRESS = """
    SELECT p.job_id, p.part, CASE WHEN o.live THEN p.status ELSE 'idle' END,
        CASE WHEN o.live THEN p.error END, CASE WHEN o.live THEN p.applied ELSE '{}' END
    FROM job_partition p, LATERAL (
        SELECT coalesce(p.slot_id IS NOT NULL AND p.lease_until > now(), false)
    ) AS o (live)
    WHERE p.job_id = ANY(%s::text[]) ORDER BY p.job_id, p.part
"""
REMOVE_STOPPED = """
    DELETE FROM job WHERE id = ANY(%(ids)s::text[]) AND desired = 'remove'
        AND NOT EXISTS (SELECT 1 FROM job_partition p WHERE p.job_id = job.id AND p.slot_id IS NOT
            NULL AND p.lease_until > now())
"""
STILL_THERE = (
    "SELECT w.id FROM unnest(%(ids)s::text[]) AS w (id) WHERE NOT EXISTS (SELECT 1 FROM "
    "job j WHERE j.id = w.id)"
)
UNACCOUNTED = """
    SELECT w.id FROM unnest(%s::text[], %s::bigint[]) AS w (id, incarnation), pg_sequences s
    WHERE s.schemaname = current_schema() AND s.sequencename = 'asset_incarnation'
      AND w.incarnation BETWEEN s.min_value AND coalesce(s.last_value, s.min_value - 1)
      AND NOT EXISTS (SELECT 1 FROM asset a WHERE a.id = w.id AND a.state <> 'deleted')
"""
# Locked first, as by every change of a partition's files (`history.postgres`). The rows of history
# are the proof that its objects may be deleted; without them they would be unknown data.
REMOVE_WORKSPACE = (
    "SELECT FROM history_partition WHERE split_part(topic, '.', 1) = %(w)s FOR UPDATE",
    """
    WITH removed AS (
        DELETE FROM history_file WHERE topic IN (
            SELECT topic FROM history_partition WHERE split_part(topic, '.', 1) = %(w)s
        ) RETURNING object_key, topic
    )
    INSERT INTO history_retired (object_key, topic, deletable_after)
    SELECT object_key, topic, now() FROM removed
    """,
    "UPDATE history_retired SET deletable_after = now() WHERE split_part(topic, '.', 1) = %(w)s",
    "DELETE FROM history_partition WHERE split_part(topic, '.', 1) = %(w)s",
    "DELETE FROM job WHERE workspace = %(w)s",
    "DELETE FROM branch WHERE workspace = %(w)s",
    "DELETE FROM commit WHERE workspace = %(w)s",
    "DELETE FROM ledger_entry WHERE workspace = %(w)s",
    "DELETE FROM workspace WHERE name = %(w)s",
)


class PostgresLedgerTransaction(HistoryOfTopics):
    """Implement `ledger.store.LedgerTransaction`."""

    # --- workspaces

    async def add_workspace(self, workspace: WorkspaceId) -> bool:
        return await workspaces.ensure(self._connection, workspace)

    async def close_workspace(self, workspace: WorkspaceId) -> bool:
        return (
            await self._execute(
                "UPDATE workspace SET state = 'deleting' WHERE name = %s", (workspace,)
            )
            == 1
        )

    async def remove_workspace(self, workspace: WorkspaceId) -> None:
        for statement in REMOVE_WORKSPACE:
            await self._execute(statement, {"w": workspace})

    async def workspaces(self, *, closing: bool) -> list[WorkspaceId]:
        rows = await self._rows(
            "SELECT name FROM workspace WHERE state = %s ORDER BY name",
            ("deleting" if closing else "open",),
        )
        return [WorkspaceId(name) for (name,) in rows]

    async def partition_count(self, workspace: WorkspaceId) -> int | None:
        rows = await self._rows("SELECT partitions FROM workspace WHERE name = %s", (workspace,))
        return rows[0][0] if rows else None

    async def fix_partition_count(self, workspace: WorkspaceId, if_new: int) -> int:
        await self._execute(
            "UPDATE workspace SET partitions = %s WHERE name = %s AND partitions IS NULL",
            (if_new, workspace),
        )
        count = await self.partition_count(workspace)
        if count is None:
            raise WorkspaceNotFound(workspace)
        return count

    # --- commits

    async def add_commit(self, commit: Commit, request: bytes) -> None:
        options = commit.options
        values = (
            commit.id,
            commit.workspace,
            commit.branch,
            str(commit.state),
            commit.digest,
            request,
        )
        await self._execute(
            ADD_COMMIT,
            (
                *values,
                options.incremental,
                options.backfill,
                options.allow_data_loss,
                commit.base,
            ),
        )

    async def commit(self, id_: CommitId) -> Commit | None:
        rows = await self._rows(COMMIT, (id_,))
        return _commit(rows[0]) if rows else None

    async def same_commit(
        self, workspace: WorkspaceId, branch: BranchName, digest: str
    ) -> Commit | None:
        dead = [str(s) for s in UNDONE | {CommitState.SUPERSEDED}]
        rows = await self._rows(SAME, (workspace, branch, digest, dead))
        return _commit(rows[0]) if rows else None

    async def open_commits(self, workspace: WorkspaceId | None = None) -> list[CommitId]:
        return [CommitId(id_) for (id_,) in await self._rows(OPEN, {"workspace": workspace})]

    async def open_commit_rows(self, workspace: WorkspaceId) -> list[Commit]:
        return [_commit(row) for row in await self._rows(OPEN_ROWS, (workspace,))]

    async def expired_commits(self) -> list[Commit]:
        return [_commit(row) for row in await self._rows(EXPIRED)]

    async def extend_lease(self, id_: CommitId, ms: Millis) -> bool:
        return await self._execute(LEASE, (ms, id_)) == 1

    async def take_expired_lease(self, id_: CommitId, ms: Millis) -> bool:
        return (
            await self._execute(
                LEASE + " AND (lease_until IS NULL OR lease_until <= now())", (ms, id_)
            )
            == 1
        )

    async def _blob(self, column: str, id_: CommitId) -> bytes | None:
        rows = await self._rows(f"SELECT {column} FROM commit WHERE id = %s", (id_,))  # noqa: S608  # the column name is a constant of this class
        return bytes(rows[0][0]) if rows and rows[0][0] is not None else None

    async def request(self, id_: CommitId) -> bytes:
        request = await self._blob("request", id_)
        assert request is not None, "only settled commits are pruned"
        return request

    async def merged(self, id_: CommitId) -> bytes | None:
        return await self._blob("merged", id_)

    async def catalog(self, id_: CommitId) -> bytes | None:
        return await self._blob("catalog", id_)

    async def set_compiled(
        self,
        id_: CommitId,
        base: CommitId | None,
        merged: bytes,
        catalog: bytes,
        plan: PlanRecord,
    ) -> None:
        query = (
            "UPDATE commit SET base = %s, merged = %s, catalog = %s, plan = %s::jsonb WHERE id = %s"
        )
        await self._execute(query, (base, merged, catalog, encode_record(plan).decode(), id_))

    async def set_state(
        self, id_: CommitId, state: CommitState, error: CommitError | None = None
    ) -> None:
        settled = [str(s) for s in SETTLED]
        await self._execute(
            SET_STATE,
            {
                "id": id_,
                "state": str(state),
                "error": None if error is None else error.text,
                "code": None if error is None else error.code,
                "status": None if error is None else error.status,
                "problems": msgspec.json.encode(() if error is None else error.problems).decode(),
                "settled": settled,
            },
        )

    async def plan(self, id_: CommitId) -> PlanRecord | None:
        rows = await self._rows("SELECT plan::text FROM commit WHERE id = %s", (id_,))
        stored = rows[0][0] if rows else None
        return None if stored is None else decode_record(stored.encode())

    async def set_stuck(self, id_: CommitId, jobs: Sequence[StuckJob]) -> None:
        rows = [{"job": j.job, "title": j.title, "error": j.error} for j in jobs]
        await self._execute("UPDATE commit SET stuck = %s WHERE id = %s", (Jsonb(rows), id_))

    async def catch_up(self, id_: CommitId) -> CatchUp:
        rows = await self._rows("SELECT catch_up FROM commit WHERE id = %s", (id_,))
        return _catch_up(rows[0][0]) if rows and rows[0][0] is not None else CatchUp()

    async def set_catch_up(self, id_: CommitId, catch_up: CatchUp) -> None:
        await self._execute(
            "UPDATE commit SET catch_up = %s WHERE id = %s", (Jsonb(_stored(catch_up)), id_)
        )

    async def next_attempt(self, id_: CommitId, seen: int) -> int | None:
        query = (
            "UPDATE commit SET attempt = attempt + 1 WHERE id = %s AND attempt = %s "
            "RETURNING attempt"
        )
        rows = await self._rows(query, (id_, seen))
        return int(rows[0][0]) if rows else None

    # --- branches

    async def add_branch(self, branch: Branch) -> bool:
        query = (
            "INSERT INTO branch (workspace, name, target, serving) VALUES (%s, %s, %s, "
            "%s) ON CONFLICT DO NOTHING"
        )
        return (
            await self._execute(
                query, (branch.workspace, branch.name, branch.target, branch.serving)
            )
            == 1
        )

    async def branch(self, workspace: WorkspaceId, name: BranchName) -> Branch | None:
        query = (
            "SELECT workspace, name, target, serving FROM branch WHERE workspace = %s AND name = %s"
        )
        rows = await self._rows(query, (workspace, name))
        return Branch(*rows[0]) if rows else None

    async def branches(self, workspace: WorkspaceId) -> list[Branch]:
        query = (
            "SELECT workspace, name, target, serving FROM branch WHERE workspace = %s "
            "ORDER BY number"
        )
        return [Branch(*row) for row in await self._rows(query, (workspace,))]

    async def update_branch(self, branch: Branch) -> None:
        values = branch.workspace, branch.name, [branch.target, branch.serving]
        await self._hold_rows(*values)
        query = "UPDATE branch SET target = %s, serving = %s WHERE workspace = %s AND name = %s"
        changed = await self._execute(
            query, (branch.target, branch.serving, branch.workspace, branch.name)
        )
        assert changed == 1, "an updated branch exists"

    async def without_target(
        self, ids: Iterable[AssetId], *, or_reservation: bool = True
    ) -> frozenset[AssetId]:
        rows = await self._rows(WITHOUT_TARGET, (list(ids), or_reservation))
        return frozenset(AssetId(str(id_)) for (id_,) in rows)

    async def remove_branch(self, workspace: WorkspaceId, name: BranchName) -> None:
        await self._hold_rows(workspace, name, [])
        await self._execute(
            "DELETE FROM branch WHERE workspace = %s AND name = %s", (workspace, name)
        )

    # --- ledgers

    async def add_entries(
        self,
        ledger: LedgerKind,
        workspace: WorkspaceId,
        commit: CommitId | None,
        assets: Iterable[AssetId],
    ) -> None:
        await self._execute(ADD_ENTRIES, (str(ledger), workspace, commit, list(assets)))

    async def entries(
        self,
        ledger: LedgerKind,
        *,
        commit: CommitId | None = None,
        workspace: WorkspaceId | None = None,
        only_open: bool = True,
    ) -> list[LedgerEntry]:
        values = {
            "ledger": str(ledger),
            "commit": commit,
            "workspace": workspace,
            "open": only_open,
        }
        rows = await self._rows(ENTRIES, {**values, "states": [str(s) for s in OPEN_ENTRIES]})
        return [
            LedgerEntry(id_, LedgerKind(led), ws, c, a, EntryState(state), n, error)
            for id_, led, ws, c, a, state, n, error in rows
        ]

    async def workspaces_with_condemned(self) -> list[WorkspaceId]:
        query = (
            "SELECT DISTINCT workspace FROM ledger_entry WHERE ledger = %s AND state = ANY(%s) "
            "ORDER BY workspace"
        )
        values = (str(LedgerKind.DESTRUCTION), [str(s) for s in OPEN_ENTRIES])
        return [WorkspaceId(name) for (name,) in await self._rows(query, values)]

    async def mark_entries(
        self, ids: Iterable[int], state: EntryState, error: str | None = None
    ) -> None:
        await self._execute(MARK, (str(state), error, list(ids)))

    # --- the job registry

    async def add_jobs(self, jobs: Sequence[Job]) -> None:
        if jobs:
            await self._execute(
                ADD_JOBS,
                (
                    [j.id for j in jobs],
                    [j.workspace for j in jobs],
                    [stored_names.dumps(j) for j in jobs],
                ),
            )
            await self._execute(ADD_PARTS, ([j.id for j in jobs], [j.partitions for j in jobs]))

    async def partition_progress(self, jobs: Iterable[JobId]) -> list[PartitionProgress]:
        return [PartitionProgress(*row) for row in await self._rows(PROGRESS, (list(jobs),))]

    async def registered_jobs(self, workspace: WorkspaceId) -> list[JobId]:
        return [
            JobId(id_)
            for (id_,) in await self._rows(
                "SELECT id FROM job WHERE workspace = %s ORDER BY id", (workspace,)
            )
        ]

    async def topics_of_jobs(self, jobs: Iterable[JobId]) -> frozenset[AssetId]:
        rows = await self._rows("SELECT spec FROM job WHERE id = ANY(%s::text[])", (list(jobs),))
        specs = [stored_names.loads(bytes(spec), Job) for (spec,) in rows]
        return frozenset(AssetId(topic) for spec in specs for topic in spec.topics)

    async def retire_jobs(self, jobs: Iterable[JobId]) -> None:
        await self._execute(
            "UPDATE job SET desired = 'remove' WHERE id = ANY(%s::text[]) AND desired <> 'remove'",
            (list(jobs),),
        )

    async def remove_stopped_jobs(self, jobs: Iterable[JobId]) -> list[JobId]:
        values = {"ids": list(jobs)}
        await self._execute(REMOVE_STOPPED, values)
        return sorted(JobId(id_) for (id_,) in await self._rows(STILL_THERE, values))

    # --- orphaned topics

    async def unaccounted(self, ids: Iterable[AssetId]) -> list[AssetId]:
        candidates = list(ids)
        rows = await self._rows(
            UNACCOUNTED, (candidates, [incarnation_of(id_) for id_ in candidates])
        )
        return sorted(AssetId(id_) for (id_,) in rows)

    async def record_orphans(self, seen: Iterable[str], grace_ms: Millis) -> list[str]:
        topics = list(seen)
        await self._execute("DELETE FROM orphan_topic WHERE topic <> ALL(%s::text[])", (topics,))
        await self._execute(
            "INSERT INTO orphan_topic (topic) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING",
            (topics,),
        )
        query = "SELECT topic FROM orphan_topic WHERE seen_at <= now() - %s * interval '1 ms'"
        return sorted(topic for (topic,) in await self._rows(query, (grace_ms,)))


class PostgresLedger:
    """Implement `ledger.store.Ledger`."""

    def __init__(self, pool: Pool, destroy_grace_ms: Millis = NO_GRACE) -> None:
        self._pool, self._destroy_grace_ms = pool, destroy_grace_ms

    async def run(self, work: Callable[[LedgerTransaction], Awaitable[T]]) -> T:
        async def inside(connection: AsyncConnection) -> T:
            return await work(PostgresLedgerTransaction(connection, self._destroy_grace_ms))

        aborted: Exception | None = None
        for _ in range(ABORTED_ATTEMPTS):
            try:
                return await in_transaction(self._pool, inside)
            # Safe to run again: nothing was written, and `work` reads before it writes.
            except TransactionAborted as error:
                aborted = error
            except TransactionOutcomeUnknown as error:
                raise TransactionOutcomeUnknown(f"the platform's database: {error}") from error
            except (psycopg.OperationalError, PoolTimeout) as error:
                raise SystemUnavailable(f"the platform's database: {error}") from error
        raise SystemUnavailable(
            f"the platform's database rolled back the same transaction {ABORTED_ATTEMPTS} times"
        ) from aborted


def _stored(catch_up: CatchUp) -> dict[str, Any]:
    ends: dict[str, dict[str, int]] = {}
    for (topic, part), offset in catch_up.ends.items():
        ends.setdefault(topic, {})[str(part)] = offset
    return {
        "ends": ends,
        "backlog": catch_up.backlog,
        "previous_backlog": catch_up.previous_backlog,
    }


def _catch_up(stored: dict[str, Any]) -> CatchUp:
    ends = {
        (TopicName(topic), PartitionIndex(int(part))): Offset(offset)
        for topic, offsets in stored["ends"].items()
        for part, offset in offsets.items()
    }
    return CatchUp(ends, stored["backlog"], stored["previous_backlog"])


def _commit(row: tuple[Any, ...]) -> Commit:
    (
        id_,
        workspace,
        branch,
        state,
        digest,
        incremental,
        backfill,
        allow_data_loss,
        base,
        stuck,
        status,
        code,
        text,
        problems,
        attempt,
    ) = row
    found = msgspec.convert(problems, tuple[Problem, ...])
    error = None if text is None else CommitError(status, code, text, found)
    options = CommitOptions(incremental, backfill, allow_data_loss)
    return Commit(
        id_,
        workspace,
        branch,
        CommitState(state),
        digest,
        options,
        base,
        tuple(StuckJob(JobId(j["job"]), j["title"], j["error"]) for j in stuck),
        error,
        attempt,
    )
