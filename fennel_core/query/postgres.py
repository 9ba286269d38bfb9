"""Read from Postgres: serving versions, owners, jobs, and the rows of `/status`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString, TypeVar

import psycopg
from psycopg_pool import PoolTimeout

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.connections.api_errors import DatabaseUnavailable
from fennel_core.connections.postgres import Pool
from fennel_core.query.errors import ReleaseMismatch, UnknownBranch
from fennel_core.query.owners import Ownership, Parked
from fennel_core.query.view import BranchKey, ServingVersion
from fennel_core.vocab.errors import VocabError
from fennel_core.vocab.ids import (
    CommitId,
    JobId,
    JobPartition,
    PartitionIndex,
    TopicName,
    WorkspaceId,
)
from fennel_core.wire.decode import decode_sync_request

SERVING = "SELECT serving FROM branch WHERE workspace = %s AND name = %s"
VERSION = "SELECT coalesce(merged, request), catalog FROM commit WHERE id = %s"
OWNERS: Final[LiteralString] = """
    SELECT p.job_id, p.part, s.address, p.status, p.error
    FROM job_partition p LEFT JOIN slot s ON s.id = p.slot_id
"""
OWNERS_OF: Final[LiteralString] = OWNERS + " WHERE p.job_id = ANY(%s)"
JOBS = "SELECT spec FROM job WHERE id = ANY(%s)"
PARTITIONS = """
    SELECT p.job_id, p.part, p.epoch, p.slot_id,
        CASE WHEN j.desired = 'pause' THEN 'paused' ELSE p.status END, p.lag, p.error,
        extract(epoch FROM now() - p.updated_at)::float8
    FROM job_partition p JOIN job j ON j.id = p.job_id WHERE j.workspace = coalesce(%s,
        j.workspace) ORDER BY p.job_id, p.part
"""
TITLES = "SELECT id, title FROM asset WHERE kind = 'job' AND workspace = coalesce(%s, workspace)"
WARMING = """
    SELECT workspace, name, serving, target FROM branch
    WHERE target IS DISTINCT FROM serving AND workspace = coalesce(%s, workspace)
    ORDER BY workspace, name
"""
SLOTS = """
    SELECT id, engine, address, (extract(epoch FROM lease_until - now()) * 1000)::bigint FROM slot
    WHERE lease_until > now() - interval '1 minute' ORDER BY id
"""


QUERY_LOG_TOPIC = (
    "SELECT id FROM asset WHERE workspace = %s AND kind = 'querylog' AND state = 'live'"
)
WANT_QUERY_LOG = """
    INSERT INTO query_log (workspace) SELECT name FROM workspace WHERE name = %s AND state = 'open'
    ON CONFLICT DO NOTHING RETURNING workspace
"""


@dataclass(frozen=True, slots=True)
class WarmingBranch:
    """A branch whose reads stay on `serving` until the jobs of `target` have caught up."""

    workspace: str
    branch: str
    serving: str | None
    target: str


@dataclass(frozen=True, slots=True)
class SlotState:
    id: str
    engine: str
    address: str
    lease_ms: int
    """The rest of its lease; negative when it has expired."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    job: str
    title: str
    """For people: `Dataset.pipeline: aggregate`."""
    part: int
    epoch: int
    slot: str | None
    status: str
    lag: int | None
    error: str | None
    reported_s: float
    """Seconds since the report of the runner last changed: it grows while a job is idle."""


class PostgresReader:
    """Implements `view.ServingSource` and `owners.OwnershipSource`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def read_serving(
        self, key: BranchKey, known: CommitId | None
    ) -> ServingVersion | CommitId | None:
        """See `view.ServingSource.read`."""
        rows = await self._rows(SERVING, key)
        if not rows:
            raise UnknownBranch(key[1])
        serving = rows[0][0]
        if serving is None:
            return None
        commit = CommitId(str(serving))
        if commit == known:
            return commit
        [(request, catalog)] = await self._rows(VERSION, (commit,))
        assert isinstance(request, bytes), "a commit keeps the request as received"
        assert isinstance(catalog, bytes), "a commit that serves has a catalog"
        return ServingVersion(
            commit,
            decode_sync_request(request),
            _loaded(catalog, Catalog, f"the catalog of commit `{commit}`"),
        )

    async def query_log_topic(self, workspace: WorkspaceId) -> TopicName | None:
        """See `query_log.LogTopics`.

        It writes, so it fails where reads succeed (a standby, a lost privilege, a missing table);
        to the log these are the same, and none may end the server.
        """
        try:
            rows = await self._rows(QUERY_LOG_TOPIC, (workspace,))
            if rows:
                return TopicName(str(rows[0][0]))
            await self._rows(WANT_QUERY_LOG, (workspace,))
        except psycopg.Error as refused:
            raise DatabaseUnavailable(
                f"the topic of a query log cannot be requested: {refused}"
            ) from refused
        return None

    async def read_owners(self, jobs: Collection[JobId] | None = None) -> Ownership:
        """Read the owners of `jobs`, or all, in one statement, also those whose lease has ended.

        Until another slot claims a partition, its last owner has the newest state of it.
        """
        addresses: dict[JobPartition, str] = {}
        parked: dict[JobPartition, Parked] = {}
        found: set[JobId] = set()
        if jobs is None:
            rows = await self._rows(OWNERS, ())
        else:
            rows = await self._rows(OWNERS_OF, (list(jobs),))
        for job, part, address, status, error in rows:
            partition = (JobId(str(job)), PartitionIndex(int(str(part))))
            found.add(partition[0])
            if address is not None:
                addresses[partition] = str(address)
            if status == "parked":
                parked[partition] = Parked("its code failed" if error is None else str(error))
        return Ownership(addresses, parked, found)

    async def read_jobs(self, jobs: Sequence[JobId]) -> dict[JobId, Job]:
        """Return the specifications of `jobs`; deleted jobs are absent."""
        found: dict[JobId, Job] = {}
        for (spec,) in await self._rows(JOBS, (list(jobs),)):
            assert isinstance(spec, bytes), "the registry keeps canonical bytes"
            job = _loaded(spec, Job, "the spec of a job of this branch")
            found[job.id] = job
        return found

    async def read_partitions(self, workspace: WorkspaceId | None) -> list[PartitionStatus]:
        """Return the job partitions of one workspace, or of all."""
        titles = {str(job): str(title) for job, title in await self._rows(TITLES, (workspace,))}
        rows = await self._rows(PARTITIONS, (workspace,))
        return [
            PartitionStatus(str(job), titles.get(str(job), str(job)), *rest)  # type: ignore[arg-type]  # as selected
            for job, *rest in rows
        ]

    async def read_warming(self, workspace: WorkspaceId | None) -> list[WarmingBranch]:
        """Return the branches of one workspace, or of all, whose reads have not moved yet."""
        rows = await self._rows(WARMING, (workspace,))
        return [WarmingBranch(*row) for row in rows]  # type: ignore[arg-type]  # as selected

    async def read_slots(self) -> list[SlotState]:
        return [SlotState(*row) for row in await self._rows(SLOTS, ())]  # type: ignore[arg-type]  # as selected

    async def _rows(self, statement: str, values: Sequence[object]) -> list[tuple[object, ...]]:
        try:
            async with self._pool.connection() as connection:
                return await (await connection.execute(statement, values)).fetchall()
        except (psycopg.OperationalError, PoolTimeout) as lost:
            raise DatabaseUnavailable(
                "the platform's database cannot be reached; try again"
            ) from lost


T = TypeVar("T")


def _loaded(data: bytes, expected: type[T], what: str) -> T:
    try:
        return stored_names.loads(data, expected)
    except VocabError as unknown:
        raise ReleaseMismatch(
            f"{what} was written by another release ({unknown}); run servers of one "
            "release, or commit again"
        ) from unknown
