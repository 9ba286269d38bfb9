"""The index of history in Postgres (migration 0006).

Theory. Adding is one statement: the row is inserted if its first offset equals the largest next
offset so far. Two writers that race for the same offset meet in the primary key, and one of them
adds nothing; a writer that is behind finds another end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, LiteralString, cast

from fennel_core.connections import postgres
from fennel_core.connections.postgres import Pool
from fennel_core.history.store import HistoryFile, HistoryTotals
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName, TopicPartition

COLUMNS: Final = (
    "topic, part, first_offset, next_offset, object_key, row_count, size_bytes, min_ts, max_ts"
)
ADD: Final = f"""
    INSERT INTO history_file ({COLUMNS})
    SELECT %(topic)s, %(part)s, %(first_offset)s, %(next_offset)s, %(object_key)s, %(row_count)s,
        %(size_bytes)s, %(min_ts)s, %(max_ts)s
    WHERE %(first_offset)s = (
        SELECT coalesce(max(next_offset), 0) FROM history_file
        WHERE topic = %(topic)s AND part = %(part)s
    )
    ON CONFLICT DO NOTHING RETURNING true
"""  # noqa: S608  # a constant
ALREADY_ADDED: Final = """
    SELECT true FROM history_file
    WHERE topic = %(topic)s AND part = %(part)s AND first_offset = %(first_offset)s
      AND next_offset = %(next_offset)s AND object_key = %(object_key)s
"""
FILES: Final = f"""
    SELECT {COLUMNS} FROM history_file
    WHERE topic = %(topic)s AND part = %(part)s
      AND first_offset < coalesce(%(upto)s::bigint, next_offset)
    ORDER BY first_offset
"""  # noqa: S608  # a constant
ENDS: Final = """
    SELECT topic, part, max(next_offset) FROM history_file WHERE topic = ANY(%s)
    GROUP BY topic, part
"""
KEYS: Final = "SELECT object_key FROM history_file WHERE topic = %s"
REMOVE_BEFORE: Final = """
    DELETE FROM history_file
    WHERE topic = %(topic)s AND part = %(part)s AND next_offset <= %(offset)s
      AND next_offset < (
        SELECT max(next_offset) FROM history_file WHERE topic = %(topic)s AND part = %(part)s
      )
    RETURNING first_offset, object_key
"""
TOTALS: Final = (
    "SELECT topic, count(*), sum(row_count), sum(size_bytes) FROM history_file GROUP BY topic"
)


class PostgresHistoryFiles:
    """`HistoryFiles` in the table `history_file`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def ends(self, topics: Collection[TopicName]) -> Mapping[TopicPartition, Offset]:
        rows = await self._rows(ENDS, (list(topics),))
        return {(TopicName(topic), PartitionIndex(part)): Offset(end) for topic, part, end in rows}

    async def files(
        self, topic: TopicName, part: PartitionIndex, upto: Offset | None = None
    ) -> tuple[HistoryFile, ...]:
        rows = await self._rows(FILES, {"topic": topic, "part": part, "upto": upto})
        return tuple(_file(row) for row in rows)

    async def add(self, file: HistoryFile) -> bool:
        async with postgres.connection_of(self._pool) as connection:
            added = await (await connection.execute(ADD, asdict(file))).fetchone()
            if added is None:
                cursor = await connection.execute(ALREADY_ADDED, asdict(file))
                added = await cursor.fetchone()
        return added is not None

    async def keys(self, topic: TopicName) -> frozenset[str]:
        return frozenset(key for (key,) in await self._rows(KEYS, (topic,)))

    async def totals(self) -> Mapping[TopicName, HistoryTotals]:
        return {
            TopicName(topic): HistoryTotals(int(files), int(count), int(size))
            for topic, files, count, size in await self._rows(TOTALS)
        }

    async def remove_before(
        self, topic: TopicName, part: PartitionIndex, offset: Offset
    ) -> list[str]:
        at = {"topic": topic, "part": part, "offset": offset}
        return [str(key) for _, key in sorted(await self._rows(REMOVE_BEFORE, at))]

    async def remove(self, topics: Sequence[TopicName]) -> None:
        async with postgres.connection_of(self._pool) as connection:
            await connection.execute(
                "DELETE FROM history_file WHERE topic = ANY(%s)", (list(topics),)
            )

    async def _rows(
        self, statement: LiteralString, values: tuple[object, ...] | Mapping[str, object] = ()
    ) -> list[tuple[Any, ...]]:
        async with postgres.connection_of(self._pool) as connection:
            rows = await (await connection.execute(statement, values)).fetchall()
        return cast(list[tuple[Any, ...]], rows)


def _file(row: tuple[Any, ...]) -> HistoryFile:
    topic, part, first, following, key, count, size, smallest, largest = row
    return HistoryFile(
        TopicName(topic),
        PartitionIndex(part),
        Offset(first),
        Offset(following),
        str(key),
        int(count),
        int(size),
        None if smallest is None else Micros(smallest),
        None if largest is None else Micros(largest),
    )
