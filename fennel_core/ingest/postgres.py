"""The ingest clock and the catalog directory in Postgres.

`begin` is one statement with one row lock, which is held for the length of the statement. Its
commit does not wait for the disk (`synchronous_commit` off for that transaction): after a crash of
Postgres the lost stamps lie within its last half second, and the wall clock has passed them before
Postgres is up again. The same holds for progress, where a lost write only makes the next request
more lenient.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import LiteralString, TypeVar, cast

import psycopg
from psycopg_pool import PoolTimeout

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog
from fennel_core.connections import erasures
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.postgres import Pool
from fennel_core.ingest.acceptance import SourceAdvance, SourceProgress
from fennel_core.ingest.store import BranchCatalog, Branches, TransactionStart
from fennel_core.vocab.ids import BranchName, CommitId, DatasetName, Identity, Micros, WorkspaceId
from fennel_core.vocab.position import Hlc

T = TypeVar("T")

_BEGIN: LiteralString = """
    WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)),
    stamp AS (
        INSERT INTO ingest_clock AS c (workspace, hlc, rows_at)
        SELECT %(workspace)s, (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 16,
            clock_timestamp() FROM quick
        ON CONFLICT (workspace) DO UPDATE SET hlc = greatest(c.hlc + 1, excluded.hlc),
            rows_at = excluded.rows_at
        RETURNING hlc
    )
    SELECT (SELECT hlc FROM stamp),
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        (SELECT coalesce(string_agg(b.number || ':' || coalesce(b.target, ''), ',' ORDER BY
            b.number), '')
         FROM branch b WHERE b.workspace = %(workspace)s)
        || '#' || (SELECT coalesce(max(e.id), 0) FROM erasure e WHERE e.workspace = %(workspace)s),
        (SELECT coalesce(jsonb_agg(jsonb_build_array(s.identity, s.watermark_us, s.latest_us,
                                                     (extract(epoch FROM s.last_rows_at) *
                                                         1000000)::bigint)), '[]')
         FROM source_clock s WHERE s.workspace = %(workspace)s AND s.identity = ANY(%(sources)s))"""

_ACCEPTED: LiteralString = """
    WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
    INSERT INTO source_clock AS s (workspace, identity, latest_us, last_rows_at, discarded)
    SELECT %(workspace)s, a.identity, a.latest_us, CASE WHEN a.latest_us IS NULL THEN NULL ELSE
        clock_timestamp() END, a.discarded
    FROM quick, unnest(%(identities)s::text[], %(latest)s::bigint[], %(discarded)s::bigint[]) AS a
        (identity, latest_us, discarded)
    ON CONFLICT (workspace, identity) DO UPDATE SET
        watermark_us = CASE WHEN excluded.latest_us IS NULL THEN s.watermark_us ELSE s.latest_us
            END,
        latest_us = greatest(s.latest_us, excluded.latest_us),
        last_rows_at = coalesce(excluded.last_rows_at, s.last_rows_at),
        discarded = s.discarded + excluded.discarded"""

_BRANCHES: LiteralString = """
    SELECT b.name, c.id, CASE WHEN c.id = ANY(%(known)s) THEN NULL ELSE c.catalog END,
        (SELECT coalesce(string_agg(v.number || ':' || coalesce(v.target, ''), ',' ORDER BY
            v.number), '')
         FROM branch v WHERE v.workspace = %(workspace)s)
        || '#' || (SELECT coalesce(max(e.id), 0) FROM erasure e WHERE e.workspace = %(workspace)s),
        (extract(epoch FROM c.created_at) * 1000000)::bigint
    FROM (SELECT 1) one LEFT JOIN branch b ON b.workspace = %(workspace)s LEFT JOIN commit c ON
        c.id = b.target
    ORDER BY b.number"""
"""The version has the same form as in `_BEGIN`: the two are compared."""


class PostgresIngestClock:
    """See `store.IngestClock`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def begin(
        self, workspace: WorkspaceId, sources: Collection[Identity]
    ) -> TransactionStart:
        rows = await _rows(self._pool, _BEGIN, {"workspace": workspace, "sources": list(sources)})
        hlc, now_us, version, progress = rows[0]
        known = {
            Identity(str(identity)): SourceProgress(watermark, latest, last)
            for identity, watermark, latest, last in cast(
                list[tuple[str, Micros | None, Micros | None, Micros | None]], progress
            )
        }
        return TransactionStart(Hlc(cast(int, hlc)), Micros(cast(int, now_us)), str(version), known)

    async def record_accepted(
        self, workspace: WorkspaceId, advances: Sequence[SourceAdvance]
    ) -> None:
        arguments = {
            "workspace": workspace,
            "identities": [a.identity for a in advances],
            "latest": [a.latest_us for a in advances],
            "discarded": [a.discarded for a in advances],
        }
        await _rows(self._pool, _ACCEPTED, arguments)

    async def server_number(self) -> int:
        """Return a number for this process in positions, unique among the last 65,535 processes."""
        return cast(
            int, (await _rows(self._pool, "SELECT nextval('ingest_server_number')", {}))[0][0]
        )


class PostgresDirectory:
    """See `store.CatalogDirectory`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def read(self, workspace: WorkspaceId, known: Mapping[CommitId, Catalog]) -> Branches:
        rows = await _rows(self._pool, _BRANCHES, {"workspace": workspace, "known": list(known)})
        found = []
        for name, commit, encoded, _, created in rows:
            if name is None or commit is None:
                continue  # The workspace has no branch, or the branch has no commit.
            number = CommitId(str(commit))
            catalog = (
                known[number]
                if encoded is None
                else stored_names.loads(bytes(cast(bytes, encoded)), Catalog)
            )
            made = Micros(cast(int, created))
            found.append(BranchCatalog(BranchName(str(name)), number, catalog, made))
        # Read erasures after the version: an erasure between the two reads causes one more
        # preparation. In the other order it would be missed.
        erased = (await _translated(erasures.read(self._pool, workspace))).get(workspace, {})
        return Branches(str(rows[0][3]), tuple(found), erased)

    async def erase(
        self,
        workspace: WorkspaceId,
        dataset: DatasetName,
        columns: Sequence[str],
        keys: Sequence[bytes],
    ) -> None:
        await _translated(erasures.add(self._pool, workspace, dataset, columns, keys))


async def _translated(work: Awaitable[T]) -> T:
    try:
        return await work
    except (psycopg.OperationalError, PoolTimeout) as lost:
        raise SystemUnavailable(f"the platform's database cannot be reached: {lost}") from lost


async def _rows(
    pool: Pool, statement: LiteralString, values: Mapping[str, object]
) -> list[tuple[object, ...]]:
    async def query() -> list[tuple[object, ...]]:
        async with pool.connection() as connection:
            cursor = await connection.execute(statement, values)
            return await cursor.fetchall() if cursor.description is not None else []

    return await _translated(query())
