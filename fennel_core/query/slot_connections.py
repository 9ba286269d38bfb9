"""Connections to the lookup services of slots: one per address, opened on demand.

Helpers of the query server (`large_reads`) are reached in the same way.

Many requests share one connection (`connections.frames` matches responses to calls), so a query
server needs as many connections as there are slots. A broken connection fails its calls with
`ConnectionError` and is dropped; the next call opens a new one. Concurrent calls to a new address
share one attempt to connect.

A frozen process keeps its sockets open. A connection on which nothing is received for `silence_s`
is given up, and a new one is used only after a first response. If that does not arrive either, the
slot counts as unresponsive: calls fail at once with `SlotUnresponsive`, and a background task tries
again. So a frozen slot costs each of the first requests two time limits and later ones nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fennel_core.connections.frames import Channel, RemoteError
from fennel_core.connections.slot_protocol import Reaction, reaction_to
from fennel_core.query.errors import JobParked, SlotCallFailed, SlotUnresponsive

SILENCE_S: Final = 1.0
"""A slot's event loop responds within milliseconds; a loaded machine needs some hundred."""
PROBE_PAUSE_S: Final = 1.0
PROBES: Final = 60
"""After this many probes the address is forgotten; a slot that restarts has a new one."""


async def connect(address: str, silence_s: float) -> Channel:
    """Connect to a Unix socket path or to `host:port`; raises OSError."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in address:
        return Channel(*await asyncio.open_connection(host, int(port)), silence_s)
    return await Channel.open(address, silence_s)


async def connect_responsive(address: str, silence_s: float) -> Channel:
    """Connect and wait for a first response; raises `SlotUnresponsive` and OSError."""
    channel = await connect(address, silence_s)
    try:
        async with asyncio.timeout(silence_s):
            await channel.ping()
    except TimeoutError as silent:
        await channel.close()
        raise SlotUnresponsive(f"no response for {silence_s:g} s") from silent
    return channel


def retry_reason(refused: RemoteError) -> str:
    """Return why a refused call must be repeated at the partition's owner.

    Raises `JobParked` when the job is parked, and `SlotCallFailed` when a retry cannot help.
    """
    match reaction_to(refused):
        case Reaction.RETRY_AT_OWNER:
            return str(refused)
        case Reaction.REPORT_PARKED:
            raise JobParked(str(refused)) from refused
        case Reaction.FAIL:
            raise SlotCallFailed(refused.remote_code, str(refused)) from refused


class SlotConnections:
    """The connections of one event loop."""

    def __init__(self, silence_s: float = SILENCE_S) -> None:
        self._silence_s = silence_s
        self._open: dict[str, Channel] = {}
        self._opening: dict[str, asyncio.Task[Channel]] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}

    async def call(self, address: str, op: str, argument: object) -> Any:
        """Return the result of an operation of the slot.

        Raises `RemoteError` when the slot refuses, `SlotUnresponsive` when it is known to be
        frozen, and `OSError` when it cannot be reached.
        """
        channel = await self.channel(address)
        return await channel.call(op, argument)

    async def channel(self, address: str) -> Channel:
        """Return an open connection; raises `SlotUnresponsive` and OSError."""
        channel = self._open.get(address)
        if channel is None or channel.closed:
            channel = await self._connect(address)
        return channel

    async def close(self) -> None:
        for probe in self._probes.values():
            probe.cancel()
        for channel in self._open.values():
            await channel.close()
        self._open.clear()

    async def _connect(self, address: str) -> Channel:
        if address in self._probes:
            raise SlotUnresponsive("it did not respond to earlier requests")
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.create_task(
                connect_responsive(address, self._silence_s)
            )
            opening.add_done_callback(lambda task: self._opened(address, task))
        return await asyncio.shield(opening)

    def _opened(self, address: str, task: asyncio.Task[Channel]) -> None:
        del self._opening[address]
        if task.cancelled():
            return
        failed = task.exception()
        if failed is None:
            self._open[address] = task.result()
        elif isinstance(failed, SlotUnresponsive):
            self._probes[address] = asyncio.create_task(self._probe(address))

    async def _probe(self, address: str) -> None:
        """Connect again until the slot responds or is gone."""
        try:
            for _ in range(PROBES):
                await asyncio.sleep(PROBE_PAUSE_S)
                try:
                    self._open[address] = await connect_responsive(address, self._silence_s)
                except SlotUnresponsive:
                    continue
                except OSError:
                    # Nothing listens there any more, so the next call fails by itself.
                    pass
                return
        finally:
            del self._probes[address]
