"""History's rows in Postgres (migration 0006).

Theory. Adding is one statement: the row goes in if its first offset is the largest next offset so
far. Two writers that race for the same place meet in the primary key, and one of them adds nothing;
a writer that is behind finds another end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import datetime

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from fennel_core.history.store import HistoryFile, HistoryTotals, StoreError
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName, TopicPartition

COLUMNS = (
    "topic, part, first_offset, next_offset, object_key, row_count, size_bytes, min_ts, max_ts"
)
ADD = f"""
    INSERT INTO history_file ({COLUMNS})
    SELECT %(topic)s, %(part)s, %(first_offset)s, %(next_offset)s, %(object_key)s, %(row_count)s,
        %(size_bytes)s, %(min_ts)s, %(max_ts)s
    WHERE %(first_offset)s = (SELECT coalesce(max(next_offset), 0) FROM history_file WHERE topic =
        %(topic)s AND part = %(part)s)
    ON CONFLICT DO NOTHING RETURNING true
"""  # noqa: S608  # a constant
COUNTED = """
    SELECT true FROM history_file
    WHERE topic = %(topic)s AND part = %(part)s AND first_offset = %(first_offset)s AND next_offset
        = %(next_offset)s
      AND object_key = %(object_key)s
"""
FILES = f"""
    SELECT {COLUMNS} FROM history_file
    WHERE topic = %(topic)s AND part = %(part)s AND first_offset < coalesce(%(upto)s::bigint,
        next_offset) ORDER BY first_offset
"""  # noqa: S608  # a constant
ENDS = (
    "SELECT topic, part, max(next_offset) FROM history_file WHERE topic = ANY(%s) GROUP "
    "BY topic, part"
)
TOTALS = "SELECT topic, count(*), sum(row_count), sum(size_bytes) FROM history_file GROUP BY topic"
BACK = "DELETE FROM history_orphan WHERE topic = ANY(%s)"
NEW_ORPHANS = """
    INSERT INTO history_orphan (topic) SELECT DISTINCT topic FROM history_file WHERE topic <>
        ALL(%s) ON CONFLICT DO NOTHING
"""


class PostgresHistoryFiles:
    """See `history.store.HistoryFiles`."""

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[TupleRow]]) -> None:
        self._pool = pool

    async def ends(self, topics: Collection[TopicName]) -> Mapping[TopicPartition, Offset]:
        async with self._connection() as connection:
            rows = await (await connection.execute(ENDS, (list(topics),))).fetchall()
        return {(TopicName(topic), PartitionIndex(part)): Offset(end) for topic, part, end in rows}

    async def files(
        self, topic: TopicName, part: PartitionIndex, upto: Offset | None = None
    ) -> tuple[HistoryFile, ...]:
        async with self._connection() as connection:
            rows = await (
                await connection.execute(FILES, {"topic": topic, "part": part, "upto": upto})
            ).fetchall()
        return tuple(_file(row) for row in rows)

    async def add(self, file: HistoryFile) -> bool:
        async with self._connection() as connection:
            added = await (await connection.execute(ADD, asdict(file))).fetchone()
            counted = added or await (await connection.execute(COUNTED, asdict(file))).fetchone()
        return counted is not None

    async def keys(self, topic: TopicName) -> frozenset[str]:
        async with self._connection() as connection:
            rows = await (
                await connection.execute(
                    "SELECT object_key FROM history_file WHERE topic = %s", (topic,)
                )
            ).fetchall()
        return frozenset(key for (key,) in rows)

    async def totals(self) -> Mapping[TopicName, HistoryTotals]:
        async with self._connection() as connection:
            rows = await (await connection.execute(TOTALS)).fetchall()
        return {
            TopicName(topic): HistoryTotals(int(files), int(count), int(size))
            for topic, files, count, size in rows
        }

    async def orphans(self, alive: Collection[TopicName]) -> Mapping[TopicName, datetime]:
        async with self._connection() as connection, connection.transaction():
            await connection.execute(BACK, (list(alive),))
            await connection.execute(NEW_ORPHANS, (list(alive),))
            rows = await (
                await connection.execute("SELECT topic, seen_at FROM history_orphan")
            ).fetchall()
        return {TopicName(topic): since for topic, since in rows}

    async def now(self) -> datetime:
        async with self._connection() as connection:
            row = await (await connection.execute("SELECT now()")).fetchone()
        assert row is not None, "a SELECT without FROM has one row"
        found: datetime = row[0]
        return found

    async def remove(self, topics: Sequence[TopicName]) -> None:
        async with self._connection() as connection, connection.transaction():
            await connection.execute(
                "DELETE FROM history_file WHERE topic = ANY(%s)", (list(topics),)
            )
            await connection.execute(BACK, (list(topics),))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[TupleRow]]:
        try:
            async with self._pool.connection() as connection:
                yield connection
        except (psycopg.Error, PoolTimeout) as failed:
            raise StoreError(f"Postgres: {failed}") from failed


def _file(row: TupleRow) -> HistoryFile:
    topic, part, first, following, key, count, size, least, largest = row
    return HistoryFile(
        TopicName(topic),
        PartitionIndex(part),
        Offset(first),
        Offset(following),
        str(key),
        int(count),
        int(size),
        None if least is None else Micros(least),
        None if largest is None else Micros(largest),
    )
