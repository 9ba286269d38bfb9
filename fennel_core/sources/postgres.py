"""Orders about sources and their statuses in Postgres; see `controls.py`.

Migrations 0020, 0028 and 0030 to 0032 and 0035.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, LiteralString

from fennel_core.connections.postgres import Pool, connection_of
from fennel_core.sources.controls import FeedNews, FeedStatus, SourceEnd, SourceLimit, SourcePause
from fennel_core.vocab.ids import Identity, TopicName, WorkspaceId

PAUSES: Final[LiteralString] = "SELECT raw_topic, paused_by, paused_at FROM source_pause"
PAUSE: Final[LiteralString] = """
    INSERT INTO source_pause (raw_topic, paused_by)
    SELECT a.id, %(by)s FROM asset a WHERE a.id = ANY(%(topics)s)
    ON CONFLICT DO NOTHING
"""
CHANNEL: Final = "pause"
"""Notified when a pause or a limit began or ended."""
NOTIFY: Final[LiteralString] = "SELECT pg_notify(%(channel)s, '')"
RESUME: Final[LiteralString] = """
    WITH reopened AS (
        INSERT INTO source_end (raw_topic, reopened_at)
        SELECT a.id, now() FROM asset a WHERE a.id = ANY(%(topics)s)
        ON CONFLICT (raw_topic) DO UPDATE SET ended_at = NULL, reopened_at = excluded.reopened_at
    )
    DELETE FROM source_pause WHERE raw_topic = ANY(%(topics)s)
"""
LIMITS: Final[LiteralString] = (
    "SELECT raw_topic, rows_per_s, limited_by, limited_at FROM source_limit"
)
LIMIT: Final[LiteralString] = """
    INSERT INTO source_limit (raw_topic, rows_per_s, limited_by)
    SELECT a.id, %(rows_per_s)s, %(by)s FROM asset a WHERE a.id = %(topic)s
    ON CONFLICT (raw_topic) DO UPDATE SET rows_per_s = excluded.rows_per_s,
        limited_by = excluded.limited_by, limited_at = excluded.limited_at
"""
NO_LIMIT: Final[LiteralString] = "DELETE FROM source_limit WHERE raw_topic = %(topic)s"
ENDS: Final[LiteralString] = "SELECT raw_topic, ended_at, reopened_at FROM source_end"
END: Final[LiteralString] = """
    INSERT INTO source_end AS e (raw_topic, ended_at)
    SELECT a.id, now() FROM asset a WHERE a.id = %(topic)s
    ON CONFLICT (raw_topic) DO UPDATE SET ended_at = now()
        WHERE e.ended_at IS NULL AND e.reopened_at IS NOT DISTINCT FROM %(reopened_at)s
    RETURNING 1
"""
REOPEN: Final[LiteralString] = """
    UPDATE source_end SET ended_at = NULL, reopened_at = now()
    WHERE raw_topic = ANY(%(topics)s) AND ended_at IS NOT NULL
"""
SILENCES: Final[LiteralString] = """
    SELECT identity, extract(epoch FROM clock_timestamp() - last_rows_at)::float8 FROM source_clock
    WHERE workspace = %(workspace)s AND last_rows_at IS NOT NULL
"""
BEGIN_GENERATION: Final[LiteralString] = """
    WITH reopened AS (
        UPDATE source_end e SET ended_at = NULL, reopened_at = now() FROM source_pause p
        WHERE p.raw_topic = e.raw_topic AND e.raw_topic = %(topic)s AND e.ended_at IS NOT NULL
    )
    INSERT INTO source_rewind AS r (raw_topic, generation)
    SELECT p.raw_topic, 1 FROM source_pause p WHERE p.raw_topic = %(topic)s
    ON CONFLICT (raw_topic) DO UPDATE SET generation = r.generation + 1
    RETURNING r.generation
"""
GENERATIONS: Final[LiteralString] = "SELECT raw_topic, generation FROM source_rewind"
REPORT: Final[LiteralString] = """
    INSERT INTO source_status
        (raw_topic, failures, behind, behind_ms, reason, retry_at, reported_at, fresh_at)
    SELECT a.id, n.failures, n.behind, n.behind_ms, n.reason,
        now() + make_interval(secs => n.retry_s), now(), now() - make_interval(secs => n.unread_s)
    FROM unnest(%(topics)s::text[], %(failures)s::integer[], %(behind)s::bigint[],
        %(behind_ms)s::bigint[], %(reasons)s::text[], %(retry_s)s::float8[], %(unread_s)s::float8[])
        AS n (topic, failures, behind, behind_ms, reason, retry_s, unread_s)
    JOIN asset a ON a.id = n.topic ORDER BY a.id
    ON CONFLICT (raw_topic) DO UPDATE SET failures = excluded.failures, behind = excluded.behind,
        behind_ms = excluded.behind_ms, fresh_at = excluded.fresh_at,
        reason = excluded.reason, retry_at = excluded.retry_at, reported_at = excluded.reported_at
"""
COUNT: Final[LiteralString] = """
    WITH changed AS (
        SELECT s.raw_topic, n.rows
        FROM unnest(%(topics)s::text[], %(rows)s::bigint[]) AS n (topic, rows)
        JOIN source_status s ON s.raw_topic = n.topic AND s.row_count IS DISTINCT FROM n.rows
        ORDER BY s.raw_topic FOR UPDATE OF s
    )
    UPDATE source_status s SET row_count = c.rows FROM changed c WHERE s.raw_topic = c.raw_topic
"""
"""In the order of reports, so that two processes wait for each other in turn."""
STATUSES: Final[LiteralString] = """
    SELECT raw_topic, failures, behind, reason, retry_at,
        extract(epoch FROM now() - reported_at)::float8, behind_ms,
        extract(epoch FROM now() - fresh_at)::float8, row_count
    FROM source_status
"""


class PostgresSourceControls:
    """`SourceControls` in the tables `source_pause`, `_limit`, `_rewind`, `_end` and `_status`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def pauses(self) -> Mapping[TopicName, SourcePause]:
        return {TopicName(topic): SourcePause(by, at) for topic, by, at in await self._rows(PAUSES)}

    async def pause(self, topics: Collection[TopicName], by: str) -> None:
        await self._rows(PAUSE, {"topics": list(topics), "by": by})
        await self._rows(NOTIFY, {"channel": CHANNEL})

    async def resume(self, topics: Collection[TopicName]) -> None:
        await self._rows(RESUME, {"topics": list(topics)})
        await self._rows(NOTIFY, {"channel": CHANNEL})

    async def limits(self) -> Mapping[TopicName, SourceLimit]:
        return {TopicName(topic): SourceLimit(*rest) for topic, *rest in await self._rows(LIMITS)}

    async def limit(self, topic: TopicName, rows_per_s: float | None, by: str) -> None:
        if rows_per_s is None:
            await self._rows(NO_LIMIT, {"topic": topic})
        else:
            await self._rows(LIMIT, {"topic": topic, "rows_per_s": rows_per_s, "by": by})
        await self._rows(NOTIFY, {"channel": CHANNEL})

    async def ends(self) -> Mapping[TopicName, SourceEnd]:
        return {TopicName(topic): SourceEnd(*rest) for topic, *rest in await self._rows(ENDS)}

    async def end(self, topic: TopicName, reopened_at: datetime | None = None) -> bool:
        return bool(await self._rows(END, {"topic": topic, "reopened_at": reopened_at}))

    async def reopen(self, topics: Collection[TopicName]) -> None:
        await self._rows(REOPEN, {"topics": list(topics)})

    async def silences(self, workspace: WorkspaceId) -> Mapping[Identity, float]:
        rows = await self._rows(SILENCES, {"workspace": workspace})
        return {Identity(identity): seconds for identity, seconds in rows}

    async def begin_generation(self, topic: TopicName) -> bool:
        return bool(await self._rows(BEGIN_GENERATION, {"topic": topic}))

    async def generations(self) -> Mapping[TopicName, int]:
        return {TopicName(topic): number for topic, number in await self._rows(GENERATIONS)}

    async def report(self, news: Sequence[FeedNews]) -> None:
        values = {
            "topics": [each.raw_topic for each in news],
            "failures": [each.failures for each in news],
            "behind": [each.behind for each in news],
            "behind_ms": [each.behind_ms for each in news],
            "reasons": [None if e.reason is None else e.reason.replace("\0", "") for e in news],
            "retry_s": [each.retry_s for each in news],
            "unread_s": [each.unread_s for each in news],
        }
        await self._rows(REPORT, values)

    async def count(self, rows: Mapping[TopicName, int]) -> None:
        if rows:
            await self._rows(COUNT, {"topics": list(rows), "rows": list(rows.values())})

    async def statuses(self) -> Mapping[TopicName, FeedStatus]:
        return {TopicName(topic): FeedStatus(*rest) for topic, *rest in await self._rows(STATUSES)}

    async def _rows(
        self, statement: LiteralString, values: Mapping[str, object] | None = None
    ) -> list[tuple[Any, ...]]:
        async with connection_of(self._pool) as connection:
            cursor = await connection.execute(statement, values)
            return [] if cursor.description is None else await cursor.fetchall()
