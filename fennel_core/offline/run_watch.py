"""Watch a running program of a request, for the process that has started it.

A run notices by itself that its request was cancelled, and ends in order (`request_run`). It cannot
while a JVM or a Spark application starts, or while a thread of it waits for S3, and it cannot say
that it has ended. So the process that has started the program reads the request's state, too: it
ends what is left after a grace period, and then releases the request, so that its objects are
deleted at once and not when its lease ends, or another run begins soon if this one has not claimed
the request.

    cancelled ── noticed ── GRACE_S ── SIGTERM ── TERMINATE_S ── SIGKILL     10 s in total, at most
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

from fennel_core.connections.errors import ConnectionsError
from fennel_core.offline import request_row
from fennel_core.offline.request_states import RequestState
from fennel_core.offline.request_store import RequestStore
from fennel_core.telemetry.logs import logger

WATCH_S: Final = 1.0
GRACE_S: Final = 3.5
"""How long a run may take to end in order: it notices within 2 s, and Spark stops its tasks."""
TERMINATE_S: Final = 3.0
"""How long a JVM may take to delete its folders before it is killed."""
POLL_S: Final = 0.05
log = logger(__name__)


def family_of(pid: int) -> list[psutil.Process]:
    """Return a process and all below it; none if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@dataclass(frozen=True, slots=True)
class RunWatch:
    """Ends the processes of a run when its request is cancelled. `family`: its processes now."""

    store: RequestStore
    id: str
    family: Callable[[], Sequence[psutil.Process]]

    async def run(self, ended: asyncio.Event) -> None:
        """Return after the program has ended, as `ended` says."""
        while not await _within(ended, WATCH_S):
            if await self._is_cancelled():
                if not await _within(ended, GRACE_S):
                    await asyncio.to_thread(self._end)
                await ended.wait()
        await self._release()

    async def _is_cancelled(self) -> bool:
        try:
            row = await self.store.read(self.id)
        except ConnectionsError as away:
            log.warning("state of the request not read; retrying", reason=str(away))
            return False
        return row is None or row.state is RequestState.CANCELLED

    def _end(self) -> None:
        """End all processes; blocks."""
        known = list(self.family())
        log.warning("a cancelled run is terminated", request=self.id, processes=len(known))
        for number, patience_s in ((signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, 0.0)):
            # Children of a process that has ended are below it no more.
            known = [*dict.fromkeys([*known, *self.family()])]
            for each in known:
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(number)
            # `psutil.wait_procs` would take the exit status that the program's parent waits for.
            deadline = time.monotonic() + patience_s
            while (known := [*filter(_runs, known)]) and time.monotonic() < deadline:
                time.sleep(POLL_S)

    async def _release(self) -> None:
        try:
            await self.store.change(self.id, request_row.released)
        except ConnectionsError as away:
            log.warning("request not released; its lease ends soon", reason=str(away))


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def _within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
