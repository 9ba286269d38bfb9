"""The process that workers are forked from (executor environment).

It imports and exercises all libraries once, and then only forks: it never sees user code or data,
so nothing of one workspace can reach another through the memory that a worker starts with. The
router asks for workers over a socket. A request carries the worker's end of its control socket and
the page of memory in which it notes that it responds; the reply carries a descriptor of the new
process. Only a parent learns how a process ended, so the template reports that as well.

The libraries are imported and called, but nothing here starts a thread: threads do not survive a
fork, and a pool that has lost them blocks its first user for ever.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import random
import resource
import select
import signal
import socket
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from fennel_core.executors.answering_page import map_answering
from fennel_core.executors.sandbox.confinement import ConfinementPlan, confine
from fennel_core.executors.warmup import exercise
from fennel_core.executors.worker import Worker, WorkerLimits, address_space_bytes

FORK: Final = struct.Struct(">Ii")
"""A request: the worker's number, and its user, or `NO_USER`."""
EVENT: Final = struct.Struct(">cIi")
"""A report: `STARTED` with a pid, or `ENDED` with a status of waitpid(2)."""
STARTED, ENDED = b"S", b"E"
NO_USER: Final = -1
NOT_FORKED: Final = 71
"""The exit status that is reported of a worker that could not be forked."""
CONTROL_DESCRIPTOR, NULL_DESCRIPTOR = 3, 4
MOST_DESCRIPTORS: Final = 4096
"""More than the template has: one for each worker, and a few."""

log = logging.getLogger("fennel.executors")
Confine = Callable[[int | None, int], None]
"""Confines the process: its user, its parent. A benchmark measures without."""


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """What a new worker gets: descriptors of its control socket and of its page, and its user."""

    control: int
    page: int
    user: int | None


def confined_by(plan: ConfinementPlan) -> Confine:
    """Return the function that applies `plan`."""

    def apply(user: int | None, parent: int) -> None:
        confine(plan, user, parent)

    return apply


def warm_up() -> None:
    """Run each conversion once and freeze the heap, so that workers inherit imports and caches."""
    exercise()
    pa.set_cpu_count(1)
    gc.collect()
    gc.freeze()


class Template:
    """The loop of the template."""

    def __init__(self, requests: socket.socket, limits: WorkerLimits, confine: Confine) -> None:
        self._requests = requests
        self._limits = limits
        self._confine = confine
        self._poll = select.poll()
        self._poll.register(requests, select.POLLIN)
        self._children: dict[int, tuple[int, int]] = {}
        """Number and pid by process descriptor."""

    def run(self) -> None:
        """Serve until the router closes the socket; the workers die with this process."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._requests.fileno():
                    self._report_end(descriptor)
                elif not self._fork():
                    return

    def _fork(self) -> bool:
        """Fork a worker; return False when there are no more requests."""
        request, descriptors, _, _ = socket.recv_fds(self._requests, FORK.size, 2)
        if len(request) < FORK.size:
            return False
        number, user = FORK.unpack(request)
        control, page = descriptors
        start = WorkerStart(control, page, None if user == NO_USER else user)
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as failed:
            # The machine has no more processes; the router tries again after a pause.
            log.error("no worker could be forked: %s", failed)
            self._requests.send(EVENT.pack(ENDED, number, NOT_FORKED << 8))
            pid = -1
        if pid == 0:
            become_worker(start, self._limits, self._confine, parent)
        for each in descriptors:
            os.close(each)
        if pid < 0:
            return True
        process = os.pidfd_open(pid)
        self._children[process] = (number, pid)
        self._poll.register(process, select.POLLIN)
        socket.send_fds(self._requests, [EVENT.pack(STARTED, number, pid)], [process])
        return True

    def _report_end(self, process: int) -> None:
        self._poll.unregister(process)
        number, pid = self._children.pop(process)
        _, status = os.waitpid(pid, 0)
        os.close(process)
        self._requests.send(EVENT.pack(ENDED, number, status))


def become_worker(start: WorkerStart, limits: WorkerLimits, confine: Confine, parent: int) -> None:
    """Be a worker in a freshly forked process; never returns."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        page = map_answering(start.page)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        # Copies first, above both places: either descriptor may have the number of the other one.
        first_free = NULL_DESCRIPTOR + 1
        control_copy = fcntl.fcntl(start.control, fcntl.F_DUPFD, first_free)
        null_copy = fcntl.fcntl(null, fcntl.F_DUPFD, first_free)
        os.dup2(control_copy, CONTROL_DESCRIPTOR)
        os.dup2(null_copy, NULL_DESCRIPTOR)
        os.closerange(first_free, MOST_DESCRIPTORS)
        control = socket.socket(fileno=CONTROL_DESCRIPTOR)
        random.seed()
        # Forks would share the global random state that user code draws from.
        np.random.seed()
        limit = address_space_bytes() + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        confine(start.user, parent)
        # User code must not fill the disk through the log of the executors.
        os.dup2(NULL_DESCRIPTOR, 1)
        os.dup2(NULL_DESCRIPTOR, 2)
        os.close(NULL_DESCRIPTOR)
        Worker(control, page, limits).run()
        code = 0
    except BaseException:
        # The log of the executors, until standard error is closed above.
        traceback.print_exc()
        raise
    finally:
        os._exit(code)
