"""Connections to the lookup services of slots: one per address, opened on demand.

Many requests share one connection (`connections.frames` matches responses to calls), so a query
server needs as many connections as there are slots. A broken connection fails its calls with
`ConnectionError` and is dropped; the next call opens a new one. Concurrent calls to a new address
share one attempt to connect.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fennel_core.connections.frames import Channel, RemoteError
from fennel_core.connections.slot_protocol import Reaction, reaction_to
from fennel_core.query.errors import JobParked


async def connect(address: str) -> Channel:
    """Connect to a Unix socket path or to `host:port`; raises OSError."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in address:
        return Channel(*await asyncio.open_connection(host, int(port)))
    return await Channel.open(address)


def retry_reason(refused: RemoteError) -> str:
    """Return why a refused call must be repeated at the partition's owner.

    Raises `JobParked` when the job is parked, and the refusal itself when a retry cannot help.
    """
    match reaction_to(refused):
        case Reaction.RETRY_AT_OWNER:
            return str(refused)
        case Reaction.REPORT_PARKED:
            raise JobParked(str(refused)) from refused
        case Reaction.FAIL:
            raise refused


class SlotConnections:
    """The connections of one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, Channel] = {}
        self._opening: dict[str, asyncio.Task[Channel]] = {}

    async def call(self, address: str, op: str, argument: object) -> Any:
        """Return the result of an operation of the slot.

        Raises `RemoteError` when the slot refuses, `OSError` when it cannot be reached.
        """
        channel = self._open.get(address)
        if channel is None or channel.closed:
            channel = await self._connect(address)
        return await channel.call(op, argument)

    async def close(self) -> None:
        for channel in self._open.values():
            await channel.close()
        self._open.clear()

    async def _connect(self, address: str) -> Channel:
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.create_task(connect(address))
            opening.add_done_callback(lambda task: self._opened(address, task))
        return await asyncio.shield(opening)

    def _opened(self, address: str, task: asyncio.Task[Channel]) -> None:
        del self._opening[address]
        if not task.cancelled() and task.exception() is None:
            self._open[address] = task.result()
