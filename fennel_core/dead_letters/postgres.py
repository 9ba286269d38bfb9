"""Counts of dead letters in Postgres (migrations 0009, 0020 and 0034).

Theory. One transaction moves the offset of a partition by compare-and-set and adds the counts. Of
two servers that read the same range, one waits for the other's row and then finds another offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString, cast

from fennel_core.blueprints.logical import AssetKind
from fennel_core.connections import postgres
from fennel_core.connections.postgres import Pool
from fennel_core.dead_letters.counts import CountedRange, CountKey, DeadLetterCount, LetterCount
from fennel_core.vocab.dead_letters import DeadLetterKind
from fennel_core.vocab.ids import (
    Millis,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
)

TOPICS: Final = """
    SELECT a.id, w.partitions FROM asset a JOIN workspace w ON w.name = a.workspace
    WHERE a.kind = %s AND a.state IN ('live', 'retained')
"""
POSITIONS: Final = "SELECT topic, part, next_offset FROM dead_letter_position"
ADVANCE: Final = """
    INSERT INTO dead_letter_position AS p (topic, part, next_offset)
    SELECT %(topic)s, %(part)s, %(next)s
    WHERE %(first)s = 0 OR EXISTS (
        SELECT FROM dead_letter_position WHERE topic = %(topic)s AND part = %(part)s
    )
    ON CONFLICT (topic, part) DO UPDATE SET next_offset = excluded.next_offset
    WHERE p.next_offset = %(first)s
    RETURNING true
"""
ADD: Final = """
    INSERT INTO dead_letter_count AS c
        (topic, writer, subject, kind, row_count, newest_at, newest_reason, replayed_rows,
        dropped_rows, refused_rows, superseded_rows)
    VALUES (%(topic)s, %(writer)s, %(subject)s, %(kind)s, %(rows)s,
        to_timestamp(%(newest_ms)s / 1000.0), %(reason)s, %(replayed)s, %(dropped)s, %(refused)s,
        %(superseded)s)
    ON CONFLICT (topic, writer, subject, kind) DO UPDATE
    SET row_count = c.row_count + excluded.row_count,
        replayed_rows = c.replayed_rows + excluded.replayed_rows,
        dropped_rows = c.dropped_rows + excluded.dropped_rows,
        refused_rows = c.refused_rows + excluded.refused_rows,
        superseded_rows = c.superseded_rows + excluded.superseded_rows,
        newest_at = greatest(c.newest_at, excluded.newest_at),
        newest_reason = CASE WHEN c.newest_at > excluded.newest_at THEN c.newest_reason
            ELSE excluded.newest_reason END
"""
READ: Final = """
    SELECT a.workspace, c.writer, c.subject, c.kind, c.row_count,
        (extract(epoch FROM c.newest_at) * 1000)::bigint, c.newest_reason, c.replayed_rows,
        c.dropped_rows, c.refused_rows, c.superseded_rows
    FROM dead_letter_count c JOIN asset a ON a.id = c.topic
    WHERE a.state IN ('live', 'retained')
    ORDER BY a.workspace, c.topic, c.writer, c.subject, c.kind
"""


class PostgresDeadLetterCounts:
    """`DeadLetterCounts` in the tables `dead_letter_count` and `dead_letter_position`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def topics(self) -> Mapping[TopicName, int]:
        rows = await self._rows(TOPICS, (AssetKind.DEAD.value,))
        return {TopicName(name): int(partitions) for name, partitions in rows}

    async def positions(self) -> Mapping[TopicPartition, Offset]:
        return {
            (TopicName(topic), PartitionIndex(part)): Offset(offset)
            for topic, part, offset in await self._rows(POSITIONS)
        }

    async def add(self, counted: CountedRange) -> bool:
        topic, part = counted.source
        at = {
            "topic": topic,
            "part": part,
            "first": counted.first,
            "next": counted.next_offset,
        }
        async with (
            postgres.connection_of(self._pool) as connection,
            connection.transaction(),
            connection.cursor() as cursor,
        ):
            if await (await cursor.execute(ADVANCE, at)).fetchone() is None:
                return False
            await cursor.executemany(
                ADD, [_values(topic, *each) for each in sorted(counted.counts.items(), key=_order)]
            )
        return True

    async def read(self) -> Sequence[DeadLetterCount]:
        return [
            DeadLetterCount(
                WorkspaceId(workspace),
                CountKey(writer, subject, DeadLetterKind(kind)),
                LetterCount(int(rows), Millis(newest_ms), reason, *map(int, settled)),
            )
            for workspace, writer, subject, kind, rows, newest_ms, reason, *settled in (
                await self._rows(READ)
            )
        ]

    async def _rows(
        self, statement: LiteralString, values: tuple[object, ...] = ()
    ) -> list[tuple[Any, ...]]:
        async with postgres.connection_of(self._pool) as connection:
            rows = await (await connection.execute(statement, values)).fetchall()
        return cast(list[tuple[Any, ...]], rows)


def _order(item: tuple[CountKey, LetterCount]) -> CountKey:
    """Rows are locked in one order, so that two servers never wait for each other."""
    return item[0]


def _values(topic: TopicName, key: CountKey, count: LetterCount) -> dict[str, object]:
    return {
        "topic": topic,
        "writer": key.writer,
        "subject": key.subject,
        "kind": key.kind.value,
        "rows": count.rows,
        "newest_ms": count.newest_ms,
        "reason": count.newest_reason.replace("\0", ""),
        "replayed": count.replayed,
        "dropped": count.dropped,
        "refused": count.refused,
        "superseded": count.superseded,
    }
