"""The index of history in Postgres (migrations 0006, 0015, 0018, 0019, 0022 and 0024).

Theory. Every change of a partition's files changes the partition's own row in the same transaction,
and locks that row first. So changes of a partition happen one after the other, by all processes,
and the row always has the end and the totals of the files: neither is read from the files. What was
searched is none of this, so marks lock only the files that they change.

Adding is one statement: it moves the end of the partition from the first offset of the file to the
next one, and the file is inserted only if that happened. Of two writers that race for the same
offset the second finds another end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString, cast

import psycopg

from fennel_core.connections import postgres
from fennel_core.connections.postgres import Pool
from fennel_core.history.row_needs import readers_now
from fennel_core.history.store import (
    HistoryFile,
    HistoryTotals,
    Readers,
    SearchedFiles,
    require_replaceable,
)
from fennel_core.vocab.ids import (
    DatasetName,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)

COLUMNS: Final = (
    "topic, part, first_offset, next_offset, object_key, row_count, size_bytes, min_ts, max_ts, "
    "searched_to, removed_rows, min_stamp, searched_for, expired_rows, expired_to, "
    "expiry_searched_to"
)
VALUES: Final = """%(topic)s, %(part)s, %(first_offset)s, %(next_offset)s, %(object_key)s,
    %(row_count)s, %(size_bytes)s, %(min_ts)s, %(max_ts)s, %(searched_to)s, %(removed_rows)s,
    %(min_stamp)s, %(searched_for)s, %(expired_rows)s, %(expired_to)s,
    %(expiry_searched_to)s"""
ADD: Final = f"""
    WITH begun AS (
        INSERT INTO history_partition (topic, part, next_offset, files, row_count, size_bytes)
        SELECT %(topic)s, %(part)s, %(next_offset)s, 1, %(row_count)s, %(size_bytes)s
        WHERE %(first_offset)s = 0
          AND NOT EXISTS (SELECT FROM history_file WHERE object_key = %(object_key)s)
        ON CONFLICT DO NOTHING RETURNING true
    ), moved AS (
        UPDATE history_partition SET next_offset = %(next_offset)s, files = files + 1,
            row_count = row_count + %(row_count)s, size_bytes = size_bytes + %(size_bytes)s
        WHERE topic = %(topic)s AND part = %(part)s AND next_offset = %(first_offset)s
          AND NOT EXISTS (SELECT FROM history_file WHERE object_key = %(object_key)s)
        RETURNING true
    )
    INSERT INTO history_file ({COLUMNS})
    SELECT {VALUES} FROM (TABLE begun UNION ALL TABLE moved) AS changed RETURNING true
"""  # noqa: S608  # a constant
SKIP: Final = """
    WITH begun AS (
        INSERT INTO history_partition
            (topic, part, next_offset, files, row_count, size_bytes, lost_offsets)
        SELECT %(topic)s, %(part)s, %(following)s, 0, 0, 0, %(following)s WHERE %(first)s = 0
        ON CONFLICT DO NOTHING RETURNING true
    ), moved AS (
        UPDATE history_partition SET next_offset = %(following)s,
            lost_offsets = lost_offsets + %(following)s - %(first)s
        WHERE topic = %(topic)s AND part = %(part)s AND next_offset = %(first)s
        RETURNING true
    )
    SELECT true FROM (TABLE begun UNION ALL TABLE moved) AS changed
"""
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
ENDS: Final = "SELECT topic, part, next_offset FROM history_partition WHERE topic = ANY(%s)"
PARTITIONS: Final = (
    "SELECT topic, part FROM history_partition WHERE files >= %s ORDER BY topic, part"
)
REPLACED: Final = """
    WITH replaced AS (
        DELETE FROM history_file WHERE topic = %(topic)s AND part = %(part)s
          AND object_key = ANY(%(old)s) AND clock_timestamp() <= %(deadline)s
        RETURNING object_key, searched_to, searched_for, min_stamp
    )
    INSERT INTO history_retired
        (object_key, topic, deletable_after, searched_to, searched_for, min_stamp)
    SELECT object_key, %(topic)s, now() + %(kept)s, searched_to, searched_for, min_stamp
    FROM replaced
"""
REPLACEMENT: Final = f"""
    INSERT INTO history_file ({COLUMNS}) VALUES ({VALUES})
"""  # noqa: S608  # a constant
REPLACED_TOTALS: Final = """
    UPDATE history_partition SET files = files - %(old_files)s + 1,
        row_count = row_count - %(old_rows)s + %(row_count)s,
        size_bytes = size_bytes - %(old_bytes)s + %(size_bytes)s,
        expired_rows = expired_rows - %(old_expired)s + %(expired_rows)s
    WHERE topic = %(topic)s AND part = %(part)s
"""
MARK_SEARCHED: Final = """
    UPDATE history_file SET searched_for = %(dataset)s, searched_to =
        CASE WHEN searched_for = %(dataset)s THEN greatest(searched_to, %(upto)s) ELSE %(upto)s END
    WHERE object_key = ANY(%(keys)s) RETURNING true
"""
MARK_EXPIRED: Final = """
    UPDATE history_file SET expiry_searched_to = greatest(expiry_searched_to, %(to)s)
    WHERE object_key = ANY(%(keys)s) RETURNING true
"""
SEARCHED: Final = """
    SELECT searched_for, searched_to, false, count(*) FILTER (WHERE row_count > 0), sum(row_count),
        sum(removed_rows), coalesce(min(min_stamp) FILTER (WHERE row_count > 0), 0)
    FROM history_file WHERE topic = %(topic)s GROUP BY 1, 2
    UNION ALL
    SELECT searched_for, searched_to, true, count(*), 0, 0, min(min_stamp)
    FROM history_retired WHERE topic = %(topic)s GROUP BY 1, 2
    ORDER BY 3, 1, 2
"""
KEYS: Final = """
    SELECT object_key FROM history_file WHERE topic = %(topic)s
    UNION ALL SELECT object_key FROM history_retired WHERE topic = %(topic)s
"""
RETIRED: Final = "SELECT object_key FROM history_retired"
DUE: Final = """
    SELECT object_key FROM history_retired WHERE deletable_after < now()
    ORDER BY deletable_after, object_key LIMIT %s
"""
FORGET: Final = "DELETE FROM history_retired WHERE object_key = ANY(%s) RETURNING object_key"
LOCK: Final = """
    SELECT next_offset FROM history_partition WHERE topic = %(topic)s AND part = %(part)s FOR UPDATE
"""
REMOVE_BEFORE: Final = """
    WITH removed AS (
        DELETE FROM history_file
        WHERE topic = %(topic)s AND part = %(part)s AND next_offset <= %(offset)s
          AND next_offset < %(end)s
        RETURNING first_offset, object_key, row_count, size_bytes, expired_rows
    ), counted AS (
        UPDATE history_partition p SET files = p.files - r.files, row_count = p.row_count - r.rows,
            size_bytes = p.size_bytes - r.bytes, expired_rows = p.expired_rows - r.expired
        FROM (SELECT count(*) AS files, coalesce(sum(row_count), 0) AS rows,
            coalesce(sum(size_bytes), 0) AS bytes,
            coalesce(sum(expired_rows), 0) AS expired FROM removed) AS r
        WHERE p.topic = %(topic)s AND p.part = %(part)s
    )
    SELECT first_offset, object_key FROM removed ORDER BY first_offset
"""
REMOVE: Final = (
    "DELETE FROM history_partition WHERE topic = ANY(%s)",
    "DELETE FROM history_file WHERE topic = ANY(%s)",
    "DELETE FROM history_retired WHERE topic = ANY(%s)",
)
TOTALS: Final = """
    SELECT topic, sum(files), sum(row_count), sum(size_bytes), sum(lost_offsets),
        sum(expired_rows)
    FROM history_partition GROUP BY topic
"""


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

    async def skip(
        self, topic: TopicName, part: PartitionIndex, first: Offset, following: Offset
    ) -> bool:
        assert first < following, "what is skipped has records"
        at = {"topic": topic, "part": part, "first": first, "following": following}
        return bool(await self._rows(SKIP, at))

    async def partitions(self, least_files: int) -> list[TopicPartition]:
        rows = await self._rows(PARTITIONS, (least_files,))
        return [(TopicName(topic), PartitionIndex(part)) for topic, part in rows]

    async def now(self) -> datetime:
        return await postgres.now(self._pool)

    async def replace(
        self,
        old: Sequence[HistoryFile],
        new: HistoryFile,
        deadline: datetime,
        kept: timedelta,
        readers: Readers | None = None,
    ) -> bool:
        require_replaceable(old, new)
        values = asdict(new) | {
            "old": [file.object_key for file in old],
            "old_files": len(old),
            "old_rows": sum(file.row_count for file in old),
            "old_expired": sum(file.expired_rows for file in old),
            "old_bytes": sum(file.size_bytes for file in old),
            "deadline": deadline,
            "kept": kept,
        }
        async with postgres.connection_of(self._pool) as connection, connection.transaction():
            if readers is not None and await readers_now(connection, readers.workspace) != readers:
                return False
            await connection.execute(LOCK, values)
            deleted = await connection.execute(REPLACED, values)
            complete = deleted.rowcount == len(old)
            if not complete:
                raise psycopg.Rollback
            for statement in (REPLACEMENT, REPLACED_TOTALS):
                await connection.execute(statement, values)
        return complete

    async def mark_searched(self, keys: Sequence[str], dataset: DatasetName, upto: int) -> None:
        await self._rows(MARK_SEARCHED, {"keys": list(keys), "dataset": dataset, "upto": upto})

    async def mark_expired(self, keys: Sequence[str], to: Micros) -> None:
        await self._rows(MARK_EXPIRED, {"keys": list(keys), "to": to})

    async def searched(self, topic: TopicName) -> list[SearchedFiles]:
        return [
            SearchedFiles(DatasetName(dataset), int(upto), bool(retired), *map(int, counts))
            for dataset, upto, retired, *counts in await self._rows(SEARCHED, {"topic": topic})
        ]

    async def keys(self, topic: TopicName) -> frozenset[str]:
        return frozenset(key for (key,) in await self._rows(KEYS, {"topic": topic}))

    async def retired(self) -> frozenset[str]:
        return frozenset(key for (key,) in await self._rows(RETIRED))

    async def due(self, limit: int) -> list[str]:
        return sorted(key for (key,) in await self._rows(DUE, (limit,)))

    async def forget(self, keys: Sequence[str]) -> None:
        await self._rows(FORGET, (list(keys),))

    async def totals(self) -> Mapping[TopicName, HistoryTotals]:
        return {
            TopicName(topic): HistoryTotals(*map(int, counts))
            for topic, *counts in await self._rows(TOTALS)
        }

    async def remove_before(
        self, topic: TopicName, part: PartitionIndex, offset: Offset
    ) -> list[str]:
        at: dict[str, object] = {"topic": topic, "part": part, "offset": offset}
        async with postgres.connection_of(self._pool) as connection, connection.transaction():
            row = await (await connection.execute(LOCK, at)).fetchone()
            if row is None:
                return []
            cursor = await connection.execute(REMOVE_BEFORE, at | {"end": row[0]})
            return [str(key) for _, key in await cursor.fetchall()]

    async def remove(self, topics: Sequence[TopicName]) -> None:
        async with postgres.connection_of(self._pool) as connection, connection.transaction():
            for statement in REMOVE:
                await connection.execute(statement, (list(topics),))

    async def _rows(
        self, statement: LiteralString, values: tuple[object, ...] | Mapping[str, object] = ()
    ) -> list[tuple[Any, ...]]:
        async with postgres.connection_of(self._pool) as connection:
            rows = await (await connection.execute(statement, values)).fetchall()
        return cast(list[tuple[Any, ...]], rows)


def _file(row: tuple[Any, ...]) -> HistoryFile:
    topic, part, first, following, key, count, size, smallest, largest, *erasing = row
    searched_to, removed_rows, min_stamp, dataset, expired_rows, expired_to, expiry_to = erasing
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
        int(searched_to),
        int(removed_rows),
        int(min_stamp),
        DatasetName(dataset),
        int(expired_rows),
        Micros(expired_to),
        Micros(expiry_to),
    )
