"""The executors: `python -m fennel_core.executors.host`, in the client's environment.

Three kinds of processes. The *template* (`template`) has imported all libraries and forks workers;
it never sees code or data. The *router* (`router`) accepts the platform's calls and gives each to a
worker; it never runs user code. A *worker* (`worker`) is confined (`sandbox`) and runs the calls of
one scope, a version of one workspace's code, for its whole life.

The layers of protection that this machine has are found out before anything else and logged; the
executors do not start where user code could not be confined. Executors of a task (`task_sandbox`)
have an owner, with which they end, whatever way it ends.

Environment: FENNEL_EXECUTORS_SOCKET (path), FENNEL_EXECUTOR_PROCESSES,
FENNEL_EXECUTOR_TIME_LIMIT_MS, FENNEL_EXECUTOR_MEMORY_LIMIT_BYTES,
FENNEL_EXECUTOR_CALLS_PER_PROCESS, FENNEL_EXECUTORS_OWNER (a descriptor, optional). Linux only.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd

from fennel_core.executors import environment, protocol, template
from fennel_core.executors.internal_errors import SandboxUnavailable
from fennel_core.executors.router import RESERVED, ExecutorRouter, RouterSettings
from fennel_core.executors.sandbox.confinement import ConfinementPlan, Layer, Users
from fennel_core.executors.sandbox.probe import confinement_plan
from fennel_core.executors.worker import WorkerLimits

log = logging.getLogger("fennel.executors")
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4


@dataclass(frozen=True, slots=True)
class HostSettings:
    socket: Path
    processes: int
    time_limit_ms: int
    memory_limit_bytes: int
    calls_per_process: int
    owner: int | None
    """The descriptor of a socket to the process that these executors end with."""

    @classmethod
    def read(cls, environment: dict[str, str]) -> HostSettings:
        """Read the environment; KeyError or ValueError names a missing or malformed variable."""
        return cls(
            socket=Path(environment[protocol.SOCKET_ENV]),
            processes=int(environment.get(protocol.PROCESSES_ENV, "2")),
            time_limit_ms=int(environment.get(protocol.TIME_LIMIT_ENV, "10000")),
            memory_limit_bytes=int(environment.get(protocol.MEMORY_LIMIT_ENV, str(2 << 30))),
            calls_per_process=int(environment.get(protocol.CALLS_ENV, "10000")),
            owner=int(owner) if (owner := environment.get(protocol.OWNER_ENV)) else None,
        )


def plan_of_this_machine() -> ConfinementPlan:
    """Return what confines workers here; raises `SandboxUnavailable`.

    Readable are the Python environment and this package. Paths do not come from `sys.path`, which
    holds the folder of the whole platform.
    """
    package = Path(__file__).resolve().parent
    libraries = Path(pd.__file__).resolve().parents[1]
    python = (Path(sys.prefix), Path(sys.base_prefix), libraries)
    files = (Path(os.__file__), Path(pd.__file__), Path(__file__))
    return confinement_plan((*python, package, package.parent / "__init__.py"), files)


def clean_environment(module: str) -> None:
    """Start the program `module` again without the variables that user code must not see.

    They would stay readable in `/proc/self/environ` otherwise. Returns if there are
    none.
    """
    if set(os.environ) - set(environment.allowed(os.environ)):
        arguments = [sys.executable, "-m", module]
        os.execve(sys.executable, arguments, environment.allowed(os.environ))  # noqa: S606  # itself


def main() -> None:
    """Run the executors."""
    clean_environment("fennel_core.executors.host")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = HostSettings.read(dict(os.environ))
    try:
        plan = plan_of_this_machine()
    except SandboxUnavailable as refused:
        log.error("the executors do not start: %s", refused)
        if settings.owner is not None:
            socket.socket(fileno=settings.owner).send(str(refused).encode())
        sys.exit(1)
    log.info("user code is confined: %s", plan.report)
    run(settings, template.confined_by(plan), plan.layers, plan.users)


def run(
    settings: HostSettings,
    confine: template.Confine,
    layers: tuple[Layer, ...],
    users: Users | None,
) -> None:
    """Start the template, and route calls until a signal arrives."""
    limits = WorkerLimits(settings.memory_limit_bytes, settings.calls_per_process)
    requests, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    owner = None if settings.owner is None else socket.socket(fileno=settings.owner)
    template.warm_up()
    host = os.getpid()
    child = os.fork()
    if child == 0:
        requests.close()
        if owner is not None:
            owner.close()
        _be_template(served, limits, confine, host)
    served.close()
    _hide_from_others()
    router = ExecutorRouter(
        RouterSettings(settings.socket, settings.processes, settings.time_limit_ms, layers, users),
        requests,
        owner,
    )
    signal.signal(signal.SIGTERM, router.stop)
    signal.signal(signal.SIGINT, router.stop)
    log.info("%d + %d calls at a time on %s", settings.processes, RESERVED, settings.socket)
    try:
        router.run()
    except EOFError:
        log.error("the process that starts workers has ended; the executors end, too")
        sys.exit(1)
    if owner is not None:
        # It was made for these executors; an owner that was killed cannot delete it.
        settings.socket.parent.rmdir()


def _be_template(
    served: socket.socket, limits: WorkerLimits, confine: template.Confine, host: int
) -> None:
    """Serve the router's requests; never returns."""
    code = 1
    try:
        # The router ends this process: at its own end, however that comes.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        _hide_from_others()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == host:
            template.Template(served, limits, confine).run()
        code = 0
    finally:
        os._exit(code)


def _hide_from_others() -> None:
    """Keep other processes of this user from reading the memory of this one."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)


if __name__ == "__main__":
    main()
