"""The router: accept connections, queue calls, give each to a worker, and end what goes wrong.

It is the one process that sees every workspace, so it runs no user code and reads nothing of a call
but the prefix of its frame, which the platform wrote. Waiting calls take turns by share
(`fair_queue`) and are refused when they have waited for their own time limit. One workspace runs at
most as many calls as the setting says, and the router runs `RESERVED` more, so that one workspace
with long calls leaves a place to the others.

A connection is passed to the worker itself, which talks to the caller directly; the router only
watches. It enforces the time limit by SIGKILL, and responds in place of a dead worker with the
reason, so one call fails and the next one gets another process. The scope of a connection's first
call is the scope of all its calls: a worker may keep a duplicate of a connection, and would
otherwise respond to the next call of another workspace.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from fennel_core.executors import protocol, worker
from fennel_core.executors.fair_queue import FairQueue
from fennel_core.executors.fleet import (
    DISRUPTIVE,
    MOST_WORKERS,
    SPARES,
    EndReason,
    Fleet,
    WorkerEnd,
    WorkerProcess,
    WorkerState,
)
from fennel_core.executors.internal_errors import ProtocolError
from fennel_core.executors.sandbox.confinement import Layer, Users

log = logging.getLogger("fennel.executors")
BACKLOG: Final = 256
RESERVED: Final = 1
"""Calls beyond the setting, which one workspace alone cannot run."""
LONGEST_LIMIT_MS: Final = 600_000
"""A caller's own time limit may exceed the setting (loading a project does), but not this."""
DISRUPTION_PAUSE_S: Final = 0.1
"""After code has ended its process, the next call of its workspace waits: a new process costs more
than a call, and a workspace must not keep the machine busy with forks.
"""
CONTROL_BYTES: Final = 64
"""More than a worker that works ever has in its control socket."""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    socket: Path
    processes: int
    time_limit_ms: int
    layers: tuple[Layer, ...]
    users: Users | None


@dataclass(eq=False, slots=True)
class CallerConnection:
    """A connection. `scope` is that of its first call, None before it."""

    sock: socket.socket
    worker: WorkerProcess[CallerConnection] | None = None
    limit_ms: int = 0
    share: int = 0
    workspace: bytes = protocol.NO_CALL
    scope: bytes | None = None
    waiting_until: float | None = None


Worker = WorkerProcess[CallerConnection]


class ExecutorRouter:
    """The router's loop.

    `template` is the socket to the template; the loop ends when the other side of `owner` is
    closed.
    """

    def __init__(
        self,
        settings: RouterSettings,
        template: socket.socket,
        owner: socket.socket | None = None,
    ) -> None:
        self._settings = settings
        self._owner = owner
        self._template = template
        self._epoll = select.epoll()
        self._listener = listen(settings.socket)
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        for sock in (self._listener, template, self._wake):
            self._epoll.register(sock, select.EPOLLIN)
        if owner is not None:
            self._epoll.register(owner, select.EPOLLIN)
        self._connections: dict[int, CallerConnection] = {}
        self._queue: FairQueue[CallerConnection] = FairQueue()
        self._running: Counter[bytes] = Counter()
        """Running calls by workspace."""
        self._long: set[bytes] = set()
        """Workspaces whose last call was long, or ended its process: their next one starts at the
        priority of long calls.
        """
        self._paused: dict[bytes, float] = {}
        """Until when the calls of workspaces wait whose code has ended a process."""
        most = max(MOST_WORKERS, settings.processes + RESERVED + SPARES)
        self._fleet: Fleet[CallerConnection] = Fleet(template, settings.users, most, self._watch)
        self._stopping = owner is not None and not _has_told(owner)

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Leave the loop (a signal handler); template and workers end with this process."""
        self._stopping = True

    def run(self) -> None:
        """Serve until stopped; raises `EOFError` if the template ends."""
        signal.set_wakeup_fd(self._woken.fileno())
        while not self._stopping:
            self._fleet.tend(time.monotonic())
            for descriptor, events in self._epoll.poll(self._pause(time.monotonic())):
                self._handle(descriptor, events)
            self._enforce(time.monotonic())
            self._dispatch(time.monotonic())
        for process in list(self._fleet):
            self._fleet.kill(process, EndReason.STOPPING, "the executors are stopping")
        self._settings.socket.unlink(missing_ok=True)

    def _pause(self, now: float) -> float:
        times = [c.waiting_until for c in self._queue if c.waiting_until is not None]
        if times:
            times += self._paused.values()
        if (next_at := self._fleet.next_event_at()) is not None:
            times.append(next_at)
        return max(0.0, min(times) - now) if times else -1.0

    def _handle(self, descriptor: int, events: int) -> None:
        if descriptor == self._listener.fileno():
            self._accept()
        elif descriptor == self._template.fileno():
            if (end := self._fleet.read_event(time.monotonic())) is not None:
                self._ended(end)
        elif descriptor == self._wake.fileno():
            self._wake.recv(CONTROL_BYTES)
        elif self._owner is not None and descriptor == self._owner.fileno():
            self._stopping = True
        elif (process := self._fleet.of_control(descriptor)) is not None:
            self._read_control(process)
        elif descriptor in self._connections:
            self._connection_event(self._connections[descriptor], events)

    def _watch(self, control: socket.socket) -> None:
        self._epoll.register(control, select.EPOLLIN)

    # --- connections of the platform --------------------------------------------------------------

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        self._connections[sock.fileno()] = CallerConnection(sock)
        self._epoll.register(sock, select.EPOLLIN | select.EPOLLRDHUP)

    def _connection_event(self, connection: CallerConnection, events: int) -> None:
        if connection.worker is not None:
            if events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                # A worker that is already responding finishes on its own.
                if not connection.worker.answering:
                    text = "the caller disconnected"
                    self._fleet.kill(connection.worker, EndReason.CALLER_GONE, text)
                self._close(connection)
            return
        if connection.waiting_until is not None:
            # Only the end of the connection is watched while its call waits.
            self._close(connection)
            return
        size = protocol.PREFIX.size
        try:
            peeked = connection.sock.recv(size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            if len(peeked) < size:
                self._close(connection)  # The end of the stream, or not our protocol.
                return
            prefix = protocol.unpack_prefix(peeked)
        except OSError:
            self._close(connection)
            return
        except ProtocolError as wrong:
            self._refuse(connection, protocol.REFUSED, str(wrong))
            return
        if not prefix.header_bytes:
            connection.sock.recv(size)
            if prefix.scope != protocol.NO_CALL:
                self._fleet.replace(prefix.scope, "its code sent a malformed message")
                self._paused[prefix.workspace] = time.monotonic() + DISRUPTION_PAUSE_S
            self._send(connection, self._report())
            return
        self._enqueue(connection, prefix)

    def _enqueue(self, connection: CallerConnection, prefix: protocol.FramePrefix) -> None:
        if connection.scope not in (None, prefix.scope):
            text = "a connection serves the calls of one scope; open another one"
            self._refuse(connection, protocol.REFUSED, text)
            return
        connection.scope = prefix.scope
        connection.workspace, connection.share = prefix.workspace, prefix.share
        limit_ms = prefix.time_limit_ms or self._settings.time_limit_ms
        connection.limit_ms = min(limit_ms, LONGEST_LIMIT_MS)
        connection.waiting_until = time.monotonic() + connection.limit_ms / 1000
        self._epoll.modify(connection.sock, select.EPOLLRDHUP)
        self._queue.append(connection.share, connection)

    def _refuse(self, connection: CallerConnection, reason: str, message: str) -> None:
        self._send(connection, worker.failure(reason, message, ""))
        self._close(connection)

    def _send(self, connection: CallerConnection, header: dict[str, Any]) -> None:
        frame = protocol.pack(json.dumps(header).encode())
        try:
            connection.sock.send(frame, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return  # The caller has disconnected.

    def _close(self, connection: CallerConnection) -> None:
        descriptor = connection.sock.fileno()
        if self._connections.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
            connection.sock.close()
        self._queue.discard(connection.share, connection)

    # --- calls ------------------------------------------------------------------------------------

    def _dispatch(self, now: float) -> None:
        self._paused = {name: until for name, until in self._paused.items() if until > now}

        def may_run(connection: CallerConnection) -> bool:
            assert connection.scope is not None, "a waiting call has a scope"
            return (
                connection.workspace not in self._paused
                and self._running[connection.workspace] < self._settings.processes
                and self._fleet.can_serve(connection.scope, now)
            )

        while self._running.total() < self._settings.processes + RESERVED:
            connection = self._queue.pop_allowed(may_run)
            if connection is None:
                return
            assert connection.scope is not None, "a waiting call has a scope"
            deadline = now + connection.limit_ms / 1000
            low = connection.workspace in self._long
            process = self._fleet.assign(connection.scope, connection, now, deadline, low=low)
            connection.waiting_until, connection.worker = None, process
            self._running[connection.workspace] += 1
            try:
                socket.send_fds(process.control, [worker.RUN], [connection.sock.fileno()])
            except OSError:
                self._fleet.kill(process, EndReason.UNREACHABLE, "it could not be reached")

    def _read_control(self, process: Worker) -> None:
        try:
            message = process.control.recv(CONTROL_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message in (worker.DONE, worker.WORN) and process.state is WorkerState.RUNNING:
            self._done(process, worn=message == worker.WORN)
            return
        # A worker that has closed its end has ended, or interferes; one byte is enough to know.
        self._epoll.unregister(process.control)
        if process.state is not WorkerState.DYING:
            text = "" if not message else "its code interfered with the process that runs it"
            reason = EndReason.MALFORMED if message else EndReason.DIED
            self._fleet.kill(process, reason, text)

    def _done(self, process: Worker, *, worn: bool) -> None:
        connection = process.call
        assert connection is not None, "a running worker has a call"
        self._release(connection)
        now = time.monotonic()
        if process.runs_long:
            self._long.add(connection.workspace)
        else:
            self._long.discard(connection.workspace)
        self._fleet.finish(process, now, worn=worn)
        if connection.sock.fileno() in self._connections:
            self._epoll.modify(connection.sock, select.EPOLLIN | select.EPOLLRDHUP)

    def _release(self, connection: CallerConnection) -> None:
        connection.worker = None
        self._running[connection.workspace] -= 1
        if not self._running[connection.workspace]:
            del self._running[connection.workspace]

    def _enforce(self, now: float) -> None:
        self._fleet.end_late(
            now, lambda call: f"it ran longer than its limit of {call.limit_ms} ms"
        )
        late = [c for c in self._queue if c.waiting_until is not None and now >= c.waiting_until]
        for connection in late:
            text = f"no executor became free within {connection.limit_ms} ms"
            self._refuse(connection, protocol.BUSY, text)

    def _ended(self, end: WorkerEnd[CallerConnection]) -> None:
        process = end.worker
        connection = process.call
        if connection is not None:
            self._release(connection)
            if process.end_reason in DISRUPTIVE:
                self._long.add(connection.workspace)
                self._paused[connection.workspace] = time.monotonic() + DISRUPTION_PAUSE_S
            if connection.sock.fileno() in self._connections:
                self._respond_for(end, connection)
        self._fleet.dispose(process)

    def _respond_for(self, end: WorkerEnd[CallerConnection], connection: CallerConnection) -> None:
        """Respond to the call of a worker that has ended, unless it has responded."""
        process = end.worker
        if not process.answering:
            timed_out = process.end_reason is EndReason.TIMEOUT
            reason = protocol.TIMEOUT if timed_out else protocol.CRASHED
            self._send(connection, worker.failure(reason, end.text, ""))
        # A response that was sent is read before the end of the connection.
        self._close(connection)

    def _report(self) -> dict[str, Any]:
        """Return what operators see of the executors (`client.ExecutorReport`)."""
        return {
            "op": "report",
            "layers": [[each.name, each.active, each.detail] for each in self._settings.layers],
            "workers": len(self._fleet),
            "idle": self._fleet.idle,
            "running": self._running.total(),
            "waiting": len(self._queue),
            "started": self._fleet.counts.started,
            "ended": {reason.value: self._fleet.counts.ended[reason] for reason in EndReason},
        }


def _has_told(owner: socket.socket) -> bool:
    """Tell the owner that calls are accepted; return False if it has ended."""
    try:
        owner.send(protocol.READY)
    except OSError:
        return False
    return True


def listen(path: Path) -> socket.socket:
    """Return a listening Unix socket that only its owner can reach, replacing a stale file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Under another name until it listens: a client that finds the path can connect.
    unnamed = path.with_suffix(".new")
    unnamed.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(unnamed))
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    unnamed.replace(path)
    return listener
