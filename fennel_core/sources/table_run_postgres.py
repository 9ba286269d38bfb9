"""The runs of sources on a schedule in Postgres (migrations 0023, 0030); see `table_runs.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from datetime import datetime
from typing import Any, Final, LiteralString

from fennel_core.connections.postgres import Pool, connection_of
from fennel_core.sources.table_runs import TableRun
from fennel_core.vocab.ids import TopicName

READ: Final[LiteralString] = """
    SELECT now(), r.raw_topic, r.run, r.started_at, r.first_at, r.lease_until, r.completed_at,
        r.failures, r.retry_at, r.reason, r.rows_read, r.cursor, r.held_by, r.last_rows_at
    FROM (SELECT 1) one LEFT JOIN source_run r ON true
"""
INSERT: Final[LiteralString] = """
    INSERT INTO source_run (raw_topic, run, started_at, first_at, lease_until, completed_at,
        failures, retry_at, reason, rows_read, cursor, held_by, last_rows_at)
    SELECT a.id, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s FROM asset a WHERE a.id = %s
    ON CONFLICT DO NOTHING RETURNING 1
"""
UPDATE: Final[LiteralString] = """
    UPDATE source_run SET run = %s, started_at = %s, first_at = %s, lease_until = %s,
        completed_at = %s, failures = %s, retry_at = %s, reason = %s, rows_read = %s, cursor = %s,
        held_by = %s, last_rows_at = %s
    WHERE raw_topic = %s AND run = %s AND lease_until IS NOT DISTINCT FROM %s RETURNING 1
"""


class PostgresTableRuns:
    """`TableRuns` in the table `source_run`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def read(self) -> tuple[datetime, Mapping[TopicName, TableRun]]:
        rows = await self._rows(READ, ())
        found = {TopicName(topic): TableRun(*rest) for _, topic, *rest in rows if topic is not None}
        return rows[0][0], found

    async def put(self, topic: TopicName, before: TableRun | None, after: TableRun) -> bool:
        reason = None if after.reason is None else after.reason.replace("\0", "")
        values = [*astuple(after)[:7], reason, *astuple(after)[8:]]
        if before is None:
            return bool(await self._rows(INSERT, (*values, topic)))
        return bool(await self._rows(UPDATE, (*values, topic, before.run, before.lease_until)))

    async def _rows(
        self, statement: LiteralString, values: tuple[object, ...]
    ) -> list[tuple[Any, ...]]:
        async with connection_of(self._pool) as connection:
            cursor = await connection.execute(statement, values)
            return await cursor.fetchall()
