"""Pauses and rewinds of sinks in Postgres (migration 0027); see `controls.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString

from fennel_core.connections.postgres import Pool, connection_of
from fennel_core.sinks.controls import RewindOrder, SinkName
from fennel_core.sinks.positions import SinkRewind
from fennel_core.sources.controls import SourcePause
from fennel_core.sources.postgres import CHANNEL, NOTIFY
from fennel_core.vocab.ids import TopicName, WorkspaceId

PAUSES: Final[LiteralString] = "SELECT workspace, sink, paused_by, paused_at FROM sink_pause"
PAUSE: Final[LiteralString] = """
    INSERT INTO sink_pause (workspace, sink, paused_by) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING
"""
RESUME: Final[LiteralString] = "DELETE FROM sink_pause WHERE workspace = %s AND sink = %s"
REWINDS: Final[LiteralString] = "SELECT sink, number, partitions, offsets, whole FROM sink_rewind"
REWIND: Final[LiteralString] = """
    INSERT INTO sink_rewind AS r (sink, number, partitions, offsets, whole)
    SELECT a.id, extract(epoch FROM clock_timestamp()) * 1000000, %(parts)s, %(offsets)s, %(whole)s
    FROM asset a WHERE a.id = %(sink)s
    ON CONFLICT (sink) DO UPDATE SET number = greatest(r.number + 1, excluded.number),
        partitions = excluded.partitions, offsets = excluded.offsets, whole = excluded.whole
"""


class PostgresSinkControls:
    """`SinkControls` in the tables `sink_pause` and `sink_rewind`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def pauses(self) -> Mapping[SinkName, SourcePause]:
        return {
            (WorkspaceId(workspace), sink): SourcePause(by, at)
            for workspace, sink, by, at in await self._rows(PAUSES)
        }

    async def pause(self, name: SinkName, by: str) -> None:
        await self._ordered([(PAUSE, (*name, by))])

    async def resume(self, name: SinkName) -> None:
        await self._ordered([(RESUME, name)])

    async def rewind(self, orders: Sequence[RewindOrder]) -> None:
        await self._ordered(
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
            ]
        )

    async def rewinds(self) -> Mapping[TopicName, SinkRewind]:
        return {
            TopicName(sink): SinkRewind(number, dict(zip(parts, offsets, strict=True)), whole)
            for sink, number, parts, offsets, whole in await self._rows(REWINDS)
        }

    async def _rows(self, statement: LiteralString) -> list[tuple[Any, ...]]:
        async with connection_of(self._pool) as connection:
            return await (await connection.execute(statement)).fetchall()

    async def _ordered(self, statements: Sequence[tuple[LiteralString, Any]]) -> None:
        """Run statements in one transaction, and notify the process that writes the sinks."""
        async with connection_of(self._pool) as connection, connection.transaction():
            for statement, values in statements:
                await connection.execute(statement, values)
            await connection.execute(NOTIFY, {"channel": CHANNEL})
