"""The executors' host: `python -m fennel_core.executors.host`, in the client's environment.

One parent, which never runs user code, forks worker processes from its own warm, frozen heap and
passes each waiting connection to an idle one. Waiting calls take turns by share (`fair_queue`) and
are refused when they have waited for their own time limit. One workspace runs at most as many calls
as the setting says, and the host has `RESERVED` workers more, so that one workspace with long calls
leaves a worker to the others. Connections stay open between calls. The
parent reads only the prefix of a frame. It enforces the wall-time
limit by SIGKILL, detects deaths by process descriptors, and responds in place of a dead worker with
the reason, so one call fails and the next one gets a new process. Code that one worker had to load
is sent to the others while they are idle and to every new one, which keeps the cost of recycling
workers out of requests. Only code that loads quickly is sent: a module that sleeps at import would
otherwise occupy every worker.

Environment: FENNEL_EXECUTORS_SOCKET (path), FENNEL_EXECUTOR_PROCESSES,
FENNEL_EXECUTOR_TIME_LIMIT_MS, FENNEL_EXECUTOR_MEMORY_LIMIT_BYTES,
FENNEL_EXECUTOR_CALLS_PER_PROCESS. Linux only (epoll, process descriptors).
"""

from __future__ import annotations

import gc
import json
import logging
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

from fennel_core.executors import protocol, worker
from fennel_core.executors.fair_queue import FairQueue
from fennel_core.executors.internal_errors import ProtocolError
from fennel_core.executors.warmup import exercise
from fennel_core.executors.worker import (
    CONTROL,
    DONE,
    KNOWN,
    LOAD,
    RUN,
    WorkerLimits,
    control_message,
)

log = logging.getLogger("fennel.executors")
KNOWN_CODES = 512
"""Codes that the host sends to new workers; the least recently loaded one is evicted."""
BACKLOG = 256
RESERVED = 1
"""Workers beyond the setting, which one workspace alone cannot occupy."""
RETIRED = "it was recycled"
PRELOAD_LIMIT_MS = 1_000
"""A worker that loads code ahead of its calls for longer is killed."""
PRELOADED_MS = PRELOAD_LIMIT_MS // 2
"""Code that took longer to load is loaded by its own calls only."""
CONTROL_CHUNK_BYTES = 1 << 16
CRASH_PAUSE_S = 0.1
"""A worker that dies younger than this is replaced after a pause, so that a process that cannot
start does not spin.
"""


@dataclass(frozen=True, slots=True)
class HostSettings:
    socket: Path
    processes: int
    time_limit_ms: int
    memory_limit_bytes: int
    calls_per_process: int

    @classmethod
    def read(cls, environment: dict[str, str]) -> HostSettings:
        """Read the environment; KeyError or ValueError names a missing or malformed variable."""
        return cls(
            socket=Path(environment[protocol.SOCKET_ENV]),
            processes=int(environment.get(protocol.PROCESSES_ENV, "2")),
            time_limit_ms=int(environment.get(protocol.TIME_LIMIT_ENV, "10000")),
            memory_limit_bytes=int(environment.get(protocol.MEMORY_LIMIT_ENV, str(2 << 30))),
            calls_per_process=int(environment.get(protocol.CALLS_ENV, "10000")),
        )


@dataclass(eq=False, slots=True)
class CallerConnection:
    sock: socket.socket
    worker: WorkerProcess | None = None
    limit_ms: int = 0
    share: int = 0
    workspace: int = 0
    waiting_until: float | None = None


@dataclass(eq=False, slots=True)
class WorkerProcess:
    """The host's record of a worker.

    `connection` is set while it runs a call, `loading` while it loads code; otherwise it is idle.
    """

    pid: int
    pid_descriptor: int
    control: socket.socket
    answering: Any
    born: float
    loading: str | None = None
    dying: bool = False
    connection: CallerConnection | None = None
    deadline: float | None = None
    cause: str | None = None
    inbox: bytearray = field(default_factory=bytearray)
    loaded: set[str] = field(default_factory=set)


class ExecutorHost:
    """The parent's loop."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self._epoll = select.epoll()
        self._listener = listen(settings.socket)
        self._epoll.register(self._listener, select.EPOLLIN)
        self._connections: dict[int, CallerConnection] = {}
        self._processes: dict[
            int, WorkerProcess
        ] = {}  # by control descriptor and by process descriptor
        self._queue: FairQueue[CallerConnection] = FairQueue()
        self._idle: list[WorkerProcess] = []
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._stopping = False
        self._fork_at: float | None = None

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Leave the loop (a signal handler); the workers die with the parent."""
        self._stopping = True

    def run(self) -> None:
        """Serve until stopped."""
        signal.set_wakeup_fd(self._woken.fileno())
        for _ in range(self._settings.processes + RESERVED):
            self._fork()
        while not self._stopping:
            now = time.monotonic()
            for descriptor, events in self._epoll.poll(self._pause(now)):
                self._handle(descriptor, events)
            self._enforce(time.monotonic())
            self._dispatch(time.monotonic())
        for process in set(self._processes.values()):
            self._kill(process, "the executors are stopping")
        self._settings.socket.unlink(missing_ok=True)

    def _pause(self, now: float) -> float:
        times = [p.deadline for p in set(self._processes.values()) if p.deadline is not None]
        times += [c.waiting_until for c in self._queue if c.waiting_until is not None]
        if self._fork_at is not None:
            times.append(self._fork_at)
        return max(0.0, min(times) - now) if times else -1.0

    def _handle(self, descriptor: int, events: int) -> None:
        if descriptor == self._listener.fileno():
            self._accept()
        elif descriptor in self._processes:
            process = self._processes[descriptor]
            if descriptor == process.pid_descriptor:
                self._reap(process)
            else:
                self._read_control(process)
        elif descriptor in self._connections:
            self._connection_event(self._connections[descriptor], events)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        self._connections[sock.fileno()] = CallerConnection(sock)
        self._epoll.register(sock, select.EPOLLIN | select.EPOLLRDHUP)

    def _connection_event(self, connection: CallerConnection, events: int) -> None:
        if connection.worker is not None:
            if events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                # A worker that is already responding finishes on its own.
                if not connection.worker.answering[0]:
                    self._kill(connection.worker, "the caller disconnected")
                self._close(connection)
            return
        try:
            prefix = connection.sock.recv(
                protocol.PREFIX.size, socket.MSG_PEEK | socket.MSG_DONTWAIT
            )
            if len(prefix) < protocol.PREFIX.size:
                self._close(connection)  # The end of the stream, or not our protocol.
                return
            _, _, limit_ms = protocol.unpack_prefix(prefix)
            connection.share, connection.workspace = protocol.share_of(prefix)
        except OSError:
            self._close(connection)
            return
        except ProtocolError as wrong:
            self._respond(connection, protocol.REFUSED, str(wrong))
            self._close(connection)
            return
        connection.limit_ms = min(
            limit_ms or self._settings.time_limit_ms, self._settings.time_limit_ms
        )
        connection.waiting_until = time.monotonic() + connection.limit_ms / 1000
        self._epoll.modify(connection.sock, select.EPOLLRDHUP)
        self._queue.append(connection.share, connection)

    def _dispatch(self, now: float) -> None:
        if self._fork_at is not None and now >= self._fork_at:
            self._fork_at = None
            while len(set(self._processes.values())) < self._settings.processes + RESERVED:
                self._fork()
        while self._idle and (connection := self._queue.pop_allowed(self._may_run)) is not None:
            process = self._idle.pop()
            connection.waiting_until, connection.worker = None, process
            process.connection = connection
            process.answering[0] = 0
            process.deadline = now + connection.limit_ms / 1000
            try:
                socket.send_fds(process.control, [control_message(RUN)], [connection.sock.fileno()])
            except OSError:
                self._kill(process, "it could not be reached")
        for process in [p for p in self._idle if len(p.loaded) < len(self._known)]:
            self._preload(process, now)

    def _may_run(self, connection: CallerConnection) -> bool:
        """Return whether the workspace of a call may occupy another worker."""
        running = sum(
            process.connection is not None and process.connection.workspace == connection.workspace
            for process in set(self._processes.values())
        )
        return running < self._settings.processes

    def _preload(self, process: WorkerProcess, now: float) -> None:
        """Make an idle worker load one code that another one has loaded."""
        key = next((k for k in self._known if k not in process.loaded), None)
        if key is None:
            return
        self._idle.remove(process)
        process.loaded.add(key)
        process.loading = key
        process.deadline = now + PRELOAD_LIMIT_MS / 1000
        try:
            process.control.sendall(control_message(LOAD, self._known[key]))
        except OSError:
            self._kill(process, "it could not be reached")

    def _read_control(self, process: WorkerProcess) -> None:
        try:
            chunk = process.control.recv(CONTROL_CHUNK_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            # The worker is about to end, which its process descriptor reports.
            self._epoll.unregister(process.control)
            return
        process.inbox += chunk
        while len(process.inbox) >= CONTROL.size:
            kind, size = CONTROL.unpack_from(process.inbox)
            if len(process.inbox) < CONTROL.size + size:
                return
            body = bytes(process.inbox[CONTROL.size : CONTROL.size + size])
            del process.inbox[: CONTROL.size + size]
            if kind == KNOWN:
                self._learn(process, body)
            elif kind == DONE:
                self._done(process, worn=bool(body))

    def _learn(self, process: WorkerProcess, body: bytes) -> None:
        known = json.loads(body)
        key = known["code"]
        process.loaded.add(key)
        if known["load_ms"] > PRELOADED_MS:
            return
        self._known[key] = body
        self._known.move_to_end(key)
        while len(self._known) > KNOWN_CODES:
            evicted, _ = self._known.popitem(last=False)
            for other in set(self._processes.values()):
                other.loaded.discard(evicted)

    def _done(self, process: WorkerProcess, *, worn: bool) -> None:
        connection = process.connection
        process.connection, process.deadline, process.loading = None, None, None
        if connection is not None:
            connection.worker = None
            if connection.sock.fileno() in self._connections:
                self._epoll.modify(connection.sock, select.EPOLLIN | select.EPOLLRDHUP)
        if worn:
            self._kill(process, RETIRED)
        elif not process.dying:
            self._idle.append(process)

    def _enforce(self, now: float) -> None:
        for process in set(self._processes.values()):
            if process.deadline is not None and now >= process.deadline:
                limit_ms = (
                    process.connection.limit_ms
                    if process.connection is not None
                    else PRELOAD_LIMIT_MS
                )
                self._kill(process, f"it ran longer than its limit of {limit_ms} ms")
        late = [c for c in self._queue if c.waiting_until is not None and now >= c.waiting_until]
        for connection in late:
            self._respond(
                connection,
                protocol.BUSY,
                f"no executor became free within {connection.limit_ms} ms",
            )
            self._close(connection)

    def _kill(self, process: WorkerProcess, cause: str) -> None:
        process.cause, process.deadline, process.dying = process.cause or cause, None, True
        if process in self._idle:
            self._idle.remove(process)
        # The group includes processes that user code started; it may not exist yet.
        for kill in (os.killpg, os.kill):
            try:
                kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _reap(self, process: WorkerProcess) -> None:
        _, status = os.waitpid(process.pid, 0)
        if process.cause != RETIRED:
            log.warning("worker %d ended: %s", process.pid, process.cause or death(status))
        for descriptor in (process.pid_descriptor, process.control.fileno()):
            self._processes.pop(descriptor, None)
        self._epoll.unregister(process.pid_descriptor)
        os.close(process.pid_descriptor)
        process.control.close()
        if process in self._idle:
            self._idle.remove(process)
        if process.loading is not None:
            # Code that kills a worker while it loads must not kill every new one.
            self._known.pop(process.loading, None)
        connection = process.connection
        if connection is not None and connection.sock.fileno() in self._connections:
            connection.worker = None
            if not process.answering[0]:
                timed_out = process.cause is not None and process.cause.startswith("it ran longer")
                reason = protocol.TIMEOUT if timed_out else protocol.CRASHED
                self._respond(connection, reason, process.cause or death(status))
            self._close(connection)
        process.answering.close()
        self._replace(process)

    def _replace(self, process: WorkerProcess) -> None:
        if self._stopping:
            return
        now = time.monotonic()
        if process.cause is None and now - process.born < CRASH_PAUSE_S:
            self._fork_at = now + CRASH_PAUSE_S
        else:
            self._fork()

    def _respond(self, connection: CallerConnection, reason: str, message: str) -> None:
        frame = protocol.pack(json.dumps(worker.failure(reason, message, "")).encode())
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

    def _fork(self) -> None:
        ours, theirs = socket.socketpair()
        answering = mmap.mmap(-1, mmap.PAGESIZE)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become_worker(theirs, ours, answering)
        theirs.close()
        process = WorkerProcess(pid, os.pidfd_open(pid), ours, answering, time.monotonic())
        self._processes[process.pid_descriptor] = self._processes[ours.fileno()] = process
        self._epoll.register(process.pid_descriptor, select.EPOLLIN)
        self._epoll.register(ours, select.EPOLLIN)
        self._idle.append(process)

    def _become_worker(self, theirs: socket.socket, ours: socket.socket, answering: Any) -> None:
        code = 1
        try:
            limits = WorkerLimits(
                self._settings.memory_limit_bytes, self._settings.calls_per_process
            )
            worker.enter(theirs, answering, limits, lambda: self._close_inherited(ours))
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _close_inherited(self, ours: socket.socket) -> None:
        """Close every descriptor of the parent, so that a connection ends when the parent closes
        it.
        """
        signal.set_wakeup_fd(-1)
        ours.close()
        for sock in (self._wake, self._woken):
            sock.close()
        self._epoll.close()
        self._listener.close()
        for connection in self._connections.values():
            connection.sock.close()
        for process in set(self._processes.values()):
            os.close(process.pid_descriptor)
            process.control.close()


def death(status: int) -> str:
    """Return how a process ended, for people."""
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        hint = (
            " (the system is out of memory, or the process was killed)" if name == "SIGKILL" else ""
        )
        return f"it was ended by signal {name}{hint}"
    return f"it exited with status {os.WEXITSTATUS(status)}"


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


def warm_up() -> None:
    """Run each conversion once and freeze the heap, so that workers inherit imports and caches."""
    exercise()
    pa.set_cpu_count(1)
    gc.collect()
    gc.freeze()


def main() -> None:
    """Run the host."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = HostSettings.read(dict(os.environ))
    warm_up()
    host = ExecutorHost(settings)
    signal.signal(signal.SIGTERM, host.stop)
    signal.signal(signal.SIGINT, host.stop)
    log.info("%d + %d processes on %s", settings.processes, RESERVED, settings.socket)
    host.run()


if __name__ == "__main__":
    main()
