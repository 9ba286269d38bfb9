"""Several processes of one server on one listening port, and the parent that supervises them.

The parent binds the port and starts the workers, each with the socket as an inherited descriptor;
all of them accept from its one queue, so connections that wait are not lost with a worker. The
parent serves nothing itself. A worker that ends is restarted after a pause. When none is left the
parent ends, too: what stops every worker is reported and retried by the parent's own supervisor
(watchdog, container runtime) exactly as for a single process. A signal stops the parent and all
workers, which finish their requests first.

A worker's standard input is a pipe that only the parent holds open. Its end makes the worker
stop, so none outlives a parent that was killed.

Helpers are processes of the same program that do not accept from the port: each serves its own Unix
socket, whose address the workers know. They are supervised like workers, and workers do without one
that is restarted.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fennel_core.telemetry import metrics
from fennel_core.telemetry.logs import logger

INHERITED_OPTION: Final = "--inherited"
HELPER_OPTION: Final = "--helper"
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 20.0
"""A worker that ran this long is healthy, so its next end is its first."""
STOP_MARGIN_S: Final = 3.0
"""Time to close connections after the grace period of requests."""

log = logger(__name__)


def restart_pause_s(failures: int) -> float:
    """Return the pause after so many ends in a row."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10))


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, which does not listen yet; raises OSError.

    Connections are refused until the first worker listens.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family is socket.AF_INET6:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


@dataclass(frozen=True, slots=True)
class InheritedResources:
    """What the workers of one parent share: a bound socket, the descriptor of memory, and the
    addresses of the helpers' sockets.
    """

    listener: socket.socket
    memory: int
    helpers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HelperResources:
    """What a helper has: the address of its socket, and the memory of the workers."""

    address: str
    memory: int


def inherited_resources(arguments: Sequence[str]) -> InheritedResources | HelperResources:
    """Return what the parent passed to this worker or helper; raises ValueError without it."""
    match arguments:
        case [option, memory, listener, *helpers] if option == INHERITED_OPTION:
            bound = socket.socket(fileno=int(listener))
            return InheritedResources(bound, int(memory), tuple(helpers))
        case [option, memory, address] if option == HELPER_OPTION:
            return HelperResources(address, int(memory))
        case _:
            raise ValueError(f"{sys.argv[0]} is started by its parent, with what they share")


def stop_with_parent() -> None:
    """Stop this worker as a signal does when its parent has ended; call it in the event loop."""
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def ended() -> None:
        # The parent writes nothing: readable means closed.
        loop.remove_reader(descriptor)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(descriptor, ended)


async def run_workers(
    module: str,
    count: int,
    listener: socket.socket,
    *,
    grace_s: float,
    memory: int,
    helpers: int = 0,
) -> int:
    """Run `count` workers and `helpers` of `module` until a signal arrives; return the exit status.

    Takes over `listener`; `memory` is the descriptor of memory that the processes share. Those that
    do not end within `grace_s` and a margin are killed.
    """
    folder = Path(tempfile.mkdtemp(prefix="fennel-workers-"))
    try:
        return await Workers(module, count, helpers, listener, memory, folder).run(grace_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Workers:
    """The workers and helpers of one parent.

    They are numbered from 1, workers first. `folder` has their metrics and the helpers' sockets.
    """

    def __init__(
        self,
        module: str,
        count: int,
        helpers: int,
        listener: socket.socket,
        memory: int,
        folder: Path,
    ) -> None:
        self._module = module
        self._count = count
        self._listener = listener
        self._memory = memory
        self._folder = folder
        self._addresses = {
            number: str(folder / f"{number}.sock")
            for number in range(count + 1, count + 1 + helpers)
        }
        """The sockets of helpers."""
        self._running: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        self._lost = False
        """Every worker has ended."""
        self._failed = False
        """A worker did not end cleanly after a signal."""

    async def run(self, grace_s: float) -> int:
        loop = asyncio.get_running_loop()
        for stop in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(stop, self._stopping.set)
        # Helpers first: a worker that is ready finds them.
        for number in (*self._addresses, *range(1, self._count + 1)):
            await self._start(number)
        keepers = [asyncio.create_task(self._keep(number)) for number in dict(self._running)]
        stopping = asyncio.create_task(self._stopping.wait())
        # A keeper ends before that with an error only.
        await asyncio.wait([stopping, *keepers], return_when=asyncio.FIRST_COMPLETED)
        self._stopping.set()
        # The workers close theirs, too, so that connections are refused from here on.
        self._listener.close()
        for process in self._running.values():
            _send(process, signal.SIGTERM)
        _, late = await asyncio.wait(keepers, timeout=grace_s + STOP_MARGIN_S)
        for process in self._running.values():
            _send(process, signal.SIGKILL)
        if late:
            await asyncio.wait(late)
        for keeper in keepers:
            keeper.result()
        return 1 if self._lost or self._failed else 0

    async def _start(self, number: int) -> None:
        address = self._addresses.get(number)
        if address is None:
            listener = self._listener.fileno()
            shared = [self._memory, listener]
            arguments = [INHERITED_OPTION, *map(str, shared), *self._addresses.values()]
        else:
            shared = [self._memory]
            arguments = [HELPER_OPTION, str(self._memory), address]
        self._running[number] = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._module, *arguments),
            stdin=PIPE,
            pass_fds=shared,
            env={**os.environ, metrics.MULTIPROCESS_VARIABLE: str(self._folder)},
        )
        if self._stopping.is_set():
            # Too late for the signal that the others got.
            _send(self._running[number], signal.SIGTERM)

    async def _keep(self, number: int) -> None:
        """Restart a worker whenever it ends, until the parent stops."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            process = self._running[number]
            status = await process.wait()
            del self._running[number]
            metrics.forget_process(process.pid, self._folder)
            if self._stopping.is_set():
                self._failed |= status not in {0, -signal.SIGTERM}
                return
            failures = 1 if loop.time() - began >= STEADY_S else failures + 1
            if self._running.keys() <= self._addresses.keys():
                log.error("no worker is left; this process ends", worker=number, status=status)
                self._lost = True
                self._stopping.set()
                return
            pause_s = restart_pause_s(failures)
            log.error("a worker ended", worker=number, status=status, restarted_in_s=pause_s)
            if await _is_set_within(self._stopping, pause_s):
                return
            await self._start(number)


def _send(process: Process, number: signal.Signals) -> None:
    # It may have ended since, and its pid belongs to it until its keeper has seen that.
    if process.returncode is None:
        process.send_signal(number)


async def _is_set_within(event: asyncio.Event, s: float) -> bool:
    try:
        async with asyncio.timeout(s):
            return await event.wait()
    except TimeoutError:
        return False
