"""Orders about sinks in Postgres: pauses and rewinds (see `controls.py`), and replays of dead
letters (see `redrive.sink_replays`). Migrations 0027 and 0034.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString

from fennel_core.connections.postgres import Pool, connection_of
from fennel_core.redrive.sink_replays import SinkReplay
from fennel_core.sinks.controls import RewindOrder, SinkName
from fennel_core.sinks.positions import SinkRewind
from fennel_core.sources.controls import SourcePause
from fennel_core.sources.postgres import CHANNEL, NOTIFY
from fennel_core.vocab.ids import PartitionIndex, TopicName, WorkspaceId

PAUSES: Final[LiteralString] = "SELECT workspace, sink, paused_by, paused_at FROM sink_pause"
PAUSE: Final[LiteralString] = """
    INSERT INTO sink_pause (workspace, sink, paused_by) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING
"""
RESUME: Final[LiteralString] = "DELETE FROM sink_pause WHERE workspace = %s AND sink = %s"
REWINDS: Final[LiteralString] = "SELECT sink, number, partitions, offsets, whole FROM sink_rewind"
PENDING: Final[LiteralString] = """
    SELECT sink, number, partitions, offsets, whole FROM sink_rewind
    WHERE carried_out IS NULL OR carried_out < number
"""
CARRIED_OUT: Final[LiteralString] = """
    UPDATE sink_rewind r SET carried_out = greatest(r.carried_out, d.number)
    FROM unnest(%(sinks)s::text[], %(numbers)s::bigint[]) AS d (sink, number)
    WHERE r.sink = d.sink
"""
REWIND: Final[LiteralString] = """
    INSERT INTO sink_rewind AS r (sink, number, partitions, offsets, whole)
    SELECT a.id, extract(epoch FROM clock_timestamp()) * 1000000, %(parts)s, %(offsets)s, %(whole)s
    FROM asset a WHERE a.id = %(sink)s
    ON CONFLICT (sink) DO UPDATE SET number = greatest(r.number + 1, excluded.number),
        partitions = excluded.partitions, offsets = excluded.offsets, whole = excluded.whole
"""
REPLAY: Final[LiteralString] = """
    INSERT INTO sink_replay (sink, topic, part, "offset", message_part, message_offset)
    SELECT a.id, r.topic, r.part, r."offset", r.message_part, r.message_offset
    FROM unnest(%(sinks)s::text[], %(topics)s::text[], %(parts)s::integer[], %(offsets)s::bigint[],
            %(message_parts)s::integer[], %(message_offsets)s::bigint[])
        AS r (sink, topic, part, "offset", message_part, message_offset)
        JOIN asset a ON a.id = r.sink
    ON CONFLICT DO NOTHING
"""
REPLAY_COUNTS: Final[LiteralString] = "SELECT sink, count(*) FROM sink_replay GROUP BY sink"
REPLAYS_DUE: Final[LiteralString] = """
    SELECT r.topic, r.part, r."offset", r.message_part, r.message_offset
    FROM sink_replay r LEFT JOIN unnest(%(parts)s::integer[], %(following)s::bigint[])
        AS p (part, following) ON p.part = r.message_part
    WHERE r.sink = %(sink)s AND (r.message_part IS NULL OR r.message_offset < p.following)
    ORDER BY r.topic, r.part, r."offset" LIMIT %(count)s
"""
REPLAYED: Final[LiteralString] = """
    DELETE FROM sink_replay r USING unnest(%(sinks)s::text[], %(topics)s::text[],
        %(parts)s::integer[], %(offsets)s::bigint[]) AS e (sink, topic, part, "offset")
    WHERE (r.sink, r.topic, r.part, r."offset") = (e.sink, e.topic, e.part, e."offset")
"""


async def rows_of(pool: Pool, statement: LiteralString, values: Any = None) -> list[Any]:
    """Return the rows of a query. Raises SystemUnavailable."""
    async with connection_of(pool) as connection:
        return await (await connection.execute(statement, values)).fetchall()


async def ordered(pool: Pool, statements: Sequence[tuple[LiteralString, Any]]) -> None:
    """Run statements in one transaction, and notify the process that writes the sinks."""
    async with connection_of(pool) as connection, connection.transaction():
        for statement, values in statements:
            await connection.execute(statement, values)
        await connection.execute(NOTIFY, {"channel": CHANNEL})


class PostgresSinkControls:
    """`SinkControls` in the tables `sink_pause` and `sink_rewind`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def pauses(self) -> Mapping[SinkName, SourcePause]:
        return {
            (WorkspaceId(workspace), sink): SourcePause(by, at)
            for workspace, sink, by, at in await rows_of(self._pool, PAUSES)
        }

    async def pause(self, name: SinkName, by: str) -> None:
        await ordered(self._pool, [(PAUSE, (*name, by))])

    async def resume(self, name: SinkName) -> None:
        await ordered(self._pool, [(RESUME, name)])

    async def rewind(self, orders: Sequence[RewindOrder]) -> None:
        await ordered(
            self._pool,
            [
                (
                    REWIND,
                    {
                        "sink": each.sink,
                        "parts": list(each.to),
                        "offsets": list(each.to.values()),
                        "whole": each.whole,
                    },
                )
                # In the order of their names, so that two orders wait for each other.
                for each in sorted(orders, key=lambda each: each.sink)
            ],
        )

    async def rewinds(self) -> Mapping[TopicName, SinkRewind]:
        return await self._rewinds(REWINDS)

    async def pending(self) -> Mapping[TopicName, SinkRewind]:
        return await self._rewinds(PENDING)

    async def carried_out(self, numbers: Mapping[TopicName, int]) -> None:
        values = {"sinks": list(numbers), "numbers": list(numbers.values())}
        async with connection_of(self._pool) as connection:
            await connection.execute(CARRIED_OUT, values)

    async def _rewinds(self, statement: LiteralString) -> Mapping[TopicName, SinkRewind]:
        return {
            TopicName(sink): SinkRewind(number, dict(zip(parts, offsets, strict=True)), whole)
            for sink, number, parts, offsets, whole in await rows_of(self._pool, statement)
        }


class PostgresSinkReplays:
    """`SinkReplays` in the table `sink_replay`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def order(self, replays: Sequence[SinkReplay]) -> None:
        # In one order, so that two transactions wait for each other.
        own = sorted(replays, key=lambda each: (each.sink, each.place))
        messages = [(None, None) if each.message is None else each.message for each in own]
        values = _places(own) | {
            "message_parts": [part for part, _ in messages],
            "message_offsets": [offset for _, offset in messages],
        }
        await ordered(self._pool, [(REPLAY, values)])

    async def counts(self) -> Mapping[TopicName, int]:
        return {TopicName(sink): count for sink, count in await rows_of(self._pool, REPLAY_COUNTS)}

    async def due(
        self, sink: TopicName, following: Mapping[int, int], count: int
    ) -> Sequence[SinkReplay]:
        values = {
            "sink": sink,
            "parts": list(following),
            "following": list(following.values()),
            "count": count,
        }
        return [
            SinkReplay(
                sink,
                (TopicName(topic), PartitionIndex(part)),
                offset,
                None if message_part is None else (message_part, message_offset),
            )
            for topic, part, offset, message_part, message_offset in await rows_of(
                self._pool, REPLAYS_DUE, values
            )
        ]

    async def end(self, replays: Sequence[SinkReplay]) -> None:
        own = sorted(replays, key=lambda each: (each.sink, each.place))
        await ordered(self._pool, [(REPLAYED, _places(own))])


def _places(replays: Sequence[SinkReplay]) -> dict[str, Any]:
    return {
        "sinks": [each.sink for each in replays],
        "topics": [each.at[0] for each in replays],
        "parts": [each.at[1] for each in replays],
        "offsets": [each.offset for each in replays],
    }
