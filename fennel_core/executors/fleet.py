"""The workers of the router: spare ones, those of a scope, and their ends.

A worker starts as a *spare*, which has no scope yet. The first call that it gets binds it to the
call's scope (one version of one workspace's code), and it serves that scope until it ends, so that
neither memory nor patches of libraries pass from one scope to another. A worker without a call is
idle; after `FREEZE_AFTER_S` it is stopped, so threads that user code left behind do not run. If
there are more than `MOST_WORKERS`, the one that has been idle for longest ends.

    SPARE ──first call──▶ RUNNING ◀──call── IDLE
      │                      │  └────done────▲ │
      └──────────────────────┴─────kill────────┴──▶ DYING ──end──▶ (gone)

The template forks workers and reports their ends (`template`); signals are sent to the process
descriptor, which never names another process.
"""

from __future__ import annotations

import enum
import logging
import mmap
import os
import signal
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from fennel_core.executors.answering_page import map_answering, new_answering_page
from fennel_core.executors.call_priority import (
    LONG_CALL_CPU_S,
    cpu_s_of,
    lower_priority,
    restore_priority,
)
from fennel_core.executors.sandbox.confinement import THREADS, Users
from fennel_core.executors.template import ENDED, EVENT, FORK, NO_USER, STARTED

log = logging.getLogger("fennel.executors")
SPARES: Final = 2
"""Workers that wait for a scope without one: its first call does not wait for a fork."""
MOST_WORKERS: Final = 64
"""Idle ones included, each of which costs about 7 MB."""
FREEZE_AFTER_S: Final = 0.1
COUNT_EVERY_S: Final = 0.05
"""How often the threads of a call are counted. Where a worker has a user of its own the kernel
refuses more; elsewhere a call could take every process that the machine allows. A call that turns
out to be a long one then gives way to short ones (`call_priority`).
"""
CRASH_PAUSE_S: Final = 0.1
"""After a spare worker ended by itself, the next one is forked after this time, so that processes
that cannot start do not spin.
"""

Call = TypeVar("Call")
Scope = bytes


class WorkerState(enum.Enum):
    """Where a worker is in its life."""

    SPARE = enum.auto()
    IDLE = enum.auto()
    RUNNING = enum.auto()
    DYING = enum.auto()


class EndReason(enum.Enum):
    """Why a worker ended, for the report."""

    RETIRED = "retired"
    """It had run its number of calls, or its memory had grown."""
    EVICTED = "evicted"
    """It was idle, and there were too many."""
    TIMEOUT = "timeout"
    CALLER_GONE = "caller-gone"
    THREADS = "threads"
    """It ran more threads than one call may."""
    MALFORMED = "malformed"
    """It sent the router or a caller a message that a worker does not send."""
    UNREACHABLE = "unreachable"
    STOPPING = "stopping"
    DIED = "died"
    """It ended by itself."""


DISRUPTIVE: Final = frozenset(
    {EndReason.TIMEOUT, EndReason.THREADS, EndReason.MALFORMED, EndReason.DIED}
)
"""Ends that code brought about, and that cost a new process."""
QUIET: Final = frozenset({EndReason.RETIRED, EndReason.EVICTED, EndReason.STOPPING})
"""Ends that are no warnings."""


@dataclass(eq=False, slots=True)
class WorkerProcess(Generic[Call]):
    """The router's record of a worker.

    `process` is its process descriptor, None until the template has forked it.
    """

    number: int
    control: socket.socket
    page: mmap.mmap
    user: int | None
    state: WorkerState = WorkerState.SPARE
    process: int | None = None
    pid: int = 0
    scope: Scope | None = None
    call: Call | None = None
    deadline: float | None = None
    cpu_s_before: float = 0.0
    """How long it had computed when its call began."""
    counted_at: float = 0.0
    """When its threads are counted next; only calls that take long are."""
    idle_since: float = 0.0
    frozen: bool = False
    demoted: bool = False
    """Whether it runs at the priority of long calls."""
    replaced_for: str = ""
    """Why it ends after its call, "" if it does not."""
    end_reason: EndReason = EndReason.DIED
    end_text: str = ""

    @property
    def runs_long(self) -> bool:
        """Whether its call is a long one."""
        return cpu_s_of(self.pid) - self.cpu_s_before >= LONG_CALL_CPU_S

    @property
    def answering(self) -> bool:
        """Whether the worker has begun to respond."""
        return bool(self.page[0])


@dataclass(frozen=True, slots=True)
class WorkerEnd(Generic[Call]):
    """A worker that has ended. `status` is that of waitpid(2)."""

    worker: WorkerProcess[Call]
    status: int

    @property
    def text(self) -> str:
        return self.worker.end_text or death(self.status)


@dataclass(slots=True)
class FleetCounts:
    """What has happened since the start, for the report."""

    started: int = 0
    ended: Counter[EndReason] = field(default_factory=Counter)


class Fleet(Generic[Call]):
    """The workers.

    `template` is the socket to it, `most` bounds the number of workers, and `watch` is called with
    the control socket of each new one.
    """

    def __init__(
        self,
        template: socket.socket,
        users: Users | None,
        most: int,
        watch: Callable[[socket.socket], None],
    ) -> None:
        self._template = template
        self._users = users
        self._most = most
        self._watch = watch
        self._workers: dict[int, WorkerProcess[Call]] = {}
        self.running: set[WorkerProcess[Call]] = set()
        self._by_control: dict[int, WorkerProcess[Call]] = {}
        self._spares: list[WorkerProcess[Call]] = []
        self._idle: OrderedDict[int, WorkerProcess[Call]] = OrderedDict()
        """By number, the one that has been idle for longest first."""
        self._next = 0
        self._paused_until = 0.0
        self._may_restore = True
        """Whether a lowered priority can be restored, which only root may; found out once."""
        self.counts = FleetCounts()

    def __iter__(self) -> Iterator[WorkerProcess[Call]]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def spares(self) -> int:
        return len(self._spares)

    @property
    def idle(self) -> int:
        return len(self._idle)

    def of_control(self, descriptor: int) -> WorkerProcess[Call] | None:
        """Return the worker whose control socket has this descriptor."""
        return self._by_control.get(descriptor)

    def can_serve(self, scope: Scope, now: float) -> bool:
        """Return whether a worker for the scope exists or may be forked."""
        return (
            bool(self._spares)
            or now >= self._paused_until
            or any(each.scope == scope for each in self._idle.values())
        )

    def assign(
        self, scope: Scope, call: Call, now: float, deadline: float, *, low: bool
    ) -> WorkerProcess[Call]:
        """Return a worker that runs `call` from now on; send it the connection.

        `low`: at the priority of long calls from its start, if that can be restored.
        """
        # The one that was used last: its memory is in the caches.
        found = next((w for w in reversed(self._idle.values()) if w.scope == scope), None)
        if found is not None:
            del self._idle[found.number]
        else:
            found = self._spares.pop(0) if self._spares else self._fork()
        if found.frozen:
            found.frozen = False
            self._signal(found, signal.SIGCONT)
        found.state, found.scope, found.call = WorkerState.RUNNING, scope, call
        found.deadline, found.counted_at = deadline, now + COUNT_EVERY_S
        found.cpu_s_before = cpu_s_of(found.pid)
        if low and self._may_restore and found.pid and not found.demoted:
            found.demoted = lower_priority(found.pid)
        found.page[0] = 0
        self.running.add(found)
        return found

    def finish(self, worker: WorkerProcess[Call], now: float, *, worn: bool) -> None:
        """Note that a running worker has no call any more."""
        worker.call, worker.deadline = None, None
        self.running.discard(worker)
        if worker.demoted:
            # Only root may: otherwise the worker keeps the priority of long calls.
            worker.demoted = not restore_priority(worker.pid)
            self._may_restore = self._may_restore and not worker.demoted
        if worker.replaced_for:
            self.kill(worker, EndReason.MALFORMED, worker.replaced_for)
        elif worn:
            self.kill(worker, EndReason.RETIRED, "it was recycled")
        elif worker.state is WorkerState.RUNNING:
            worker.state, worker.idle_since = WorkerState.IDLE, now
            self._idle[worker.number] = worker

    def kill(self, worker: WorkerProcess[Call], reason: EndReason, text: str) -> None:
        """End a worker; its end is reported by `read_event`. `text` is for people."""
        if worker.state is not WorkerState.DYING:
            worker.end_reason, worker.end_text = reason, text
        worker.state, worker.deadline = WorkerState.DYING, None
        self._idle.pop(worker.number, None)
        if worker in self._spares:
            self._spares.remove(worker)
        self._signal(worker, signal.SIGKILL)

    def replace(self, scope: Scope, text: str) -> None:
        """End the workers of a scope: those without a call at once, the others after it."""
        for worker in list(self):
            if worker.scope == scope and worker.state is WorkerState.IDLE:
                self.kill(worker, EndReason.MALFORMED, text)
            elif worker.scope == scope:
                worker.replaced_for = text

    def end_late(self, now: float, limit_text: Callable[[Call], str]) -> None:
        """End running workers that exceed their time limit, or have too many threads."""
        for worker in list(self.running):
            assert worker.call is not None, "a running worker has a call"
            if worker.deadline is not None and now >= worker.deadline:
                self.kill(worker, EndReason.TIMEOUT, limit_text(worker.call))
            elif worker.state is WorkerState.RUNNING and now >= worker.counted_at:
                worker.counted_at = now + COUNT_EVERY_S
                if not worker.demoted and worker.runs_long:
                    worker.demoted = lower_priority(worker.pid)
                if threads_of(worker.pid) > THREADS:
                    self.kill(worker, EndReason.THREADS, f"it ran more than {THREADS} threads")

    def tend(self, now: float) -> None:
        """Stop idle workers, end surplus ones, and fork spares."""
        for worker in self._unfrozen():
            if now - worker.idle_since >= FREEZE_AFTER_S:
                worker.frozen = True
                self._signal(worker, signal.SIGSTOP)
        while len(self._spares) < SPARES and now >= self._paused_until:
            self._spares.append(self._fork())
        if len(self) > self._most:
            alive = sum(each.state is not WorkerState.DYING for each in self)
            for worker in list(self._idle.values())[: max(0, alive - self._most)]:
                self.kill(worker, EndReason.EVICTED, "it was idle")

    def next_event_at(self) -> float | None:
        """Return when `end_late` and `tend` have to be called at the latest, None if that is
        open.
        """
        times = [worker.idle_since + FREEZE_AFTER_S for worker in self._unfrozen()]
        times += [min(w.deadline, w.counted_at) for w in self.running if w.deadline is not None]
        if len(self._spares) < SPARES:
            times.append(self._paused_until)
        return min(times, default=None)

    def read_event(self, now: float) -> WorkerEnd[Call] | None:
        """Read one event of the template; return the end that it reports, if any.

        Raises `EOFError` when the template has ended.
        """
        event, descriptors, _, _ = socket.recv_fds(self._template, EVENT.size, 1)
        if len(event) < EVENT.size:
            raise EOFError
        kind, number, value = EVENT.unpack(event)
        worker = self._workers[number]
        if kind == STARTED:
            worker.process, worker.pid = descriptors[0], value
            # It may have been killed, or have run a call, before this event was read.
            if worker.state is WorkerState.DYING:
                self._signal(worker, signal.SIGKILL)
            return None
        assert kind == ENDED, "the template reports starts and ends"
        return self._ended(worker, value, now)

    def dispose(self, worker: WorkerProcess[Call]) -> None:
        """Close what belongs to a worker that has ended."""
        del self._by_control[worker.control.fileno()]
        worker.control.close()
        worker.page.close()

    def _unfrozen(self) -> Iterator[WorkerProcess[Call]]:
        """Yield the idle workers that are not stopped, the one that was used last first."""
        for worker in reversed(self._idle.values()):
            if worker.frozen:
                return  # All that have been idle for longer are.
            if worker.process is not None:
                yield worker

    def _ended(self, worker: WorkerProcess[Call], status: int, now: float) -> WorkerEnd[Call]:
        if worker.state is WorkerState.SPARE:
            self._paused_until = now + CRASH_PAUSE_S
        end = WorkerEnd(worker, status)
        if worker.end_reason not in QUIET:
            log.warning("worker %d ended: %s", worker.pid, end.text)
        self.counts.ended[worker.end_reason] += 1
        self._idle.pop(worker.number, None)
        if worker in self._spares:
            self._spares.remove(worker)
        del self._workers[worker.number]
        self.running.discard(worker)
        worker.state = WorkerState.DYING
        if worker.process is not None:
            os.close(worker.process)
        return end

    def _signal(self, worker: WorkerProcess[Call], number: signal.Signals) -> None:
        if worker.process is None:
            return  # It gets its signal when the template has forked it.
        try:
            signal.pidfd_send_signal(worker.process, number)
        except ProcessLookupError:
            return  # It has ended; the template reports that.

    def _fork(self) -> WorkerProcess[Call]:
        ours, theirs = socket.socketpair()
        page = new_answering_page()
        self._next += 1
        worker = WorkerProcess[Call](self._next, ours, map_answering(page), self._free_user())
        request = FORK.pack(worker.number, NO_USER if worker.user is None else worker.user)
        socket.send_fds(self._template, [request], [theirs.fileno(), page])
        theirs.close()
        os.close(page)
        self._workers[worker.number] = self._by_control[ours.fileno()] = worker
        self.counts.started += 1
        self._watch(ours)
        return worker

    def _free_user(self) -> int | None:
        if self._users is None:
            return None
        taken = {each.user for each in self}
        count = self._users.count
        offsets = (offset % count for offset in range(self._next, self._next + count))
        return next(self._users.first + o for o in offsets if self._users.first + o not in taken)


def threads_of(pid: int) -> int:
    """Return the number of threads of a process, 0 if it has ended."""
    try:
        # A folder has a link for itself, one in its parent, and one for each folder in it.
        return os.stat(f"/proc/{pid}/task").st_nlink - 2
    except OSError:
        return 0


def death(status: int) -> str:
    """Return how a process ended, for people. `status` is that of waitpid(2)."""
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        hint = (
            " (the system is out of memory, or the process was killed)" if name == "SIGKILL" else ""
        )
        return f"it was ended by signal {name}{hint}"
    return f"it exited with status {os.WEXITSTATUS(status)}"
