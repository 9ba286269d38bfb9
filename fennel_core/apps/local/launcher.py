"""Start services in parallel, each when its dependencies are ready, and wait for all of them.

One thread per service, because starting is waiting: for a file, a port, a process. A setup step
that several services name runs once. Nothing is stopped when one service fails: the others keep
running for the next attempt, and the failure names the log to read.
"""

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, assert_never

from fennel_core.apps.errors import SetupFailed
from fennel_core.apps.local import processes
from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.launch_plan import LaunchAction, RunningService, launch_action
from fennel_core.apps.local.readiness import check_readiness
from fennel_core.apps.local.services import Service
from fennel_core.apps.local.setup_steps import PlatformContext, SetupStep, run_setup_step
from fennel_core.apps.local.start_display import (
    AwaitingDependency,
    InProgress,
    StartDisplay,
    StartFailed,
    StartSkipped,
    StartState,
    StartSucceeded,
)
from fennel_core.settings.model import MIB

CHECK_EVERY_S: Final = 0.2
LOG_KEPT_BYTES: Final = 20 * MIB
LAST_LINES: Final = 15
NOT_INHERITED: Final = frozenset(
    {"PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
)
"""Without bytecode files each Airflow process compiles a thousand modules at every start."""
OWN_PREFIXES: Final = ("FENNEL_", "AIRFLOW__")
"""A service gets these variables from its row only: Kafka and the executors must not inherit
passwords from the caller's shell.
"""


@dataclass(frozen=True, slots=True)
class StartFailure:
    """A service that did not become ready. `log_lines`: its last log lines since the start."""

    service: Service
    why: str
    log_lines: tuple[str, ...]


@dataclass
class Launcher:
    """One run of `up`."""

    context: PlatformContext
    display: StartDisplay
    _steps: dict[SetupStep, Future[None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _given_up: threading.Event = field(default_factory=threading.Event)

    def run(self, services: Sequence[Service]) -> tuple[StartFailure, ...]:
        """Start the services and block until each is ready, failed or skipped.

        `services` must include every dependency. On KeyboardInterrupt the started services keep
        running, each with its record.
        """
        outcomes: dict[str, Future[StartState]] = {service.name: Future() for service in services}
        failures: list[StartFailure] = []
        with ThreadPoolExecutor(max_workers=max(1, len(services)), thread_name_prefix="up") as pool:
            for service in services:
                pool.submit(self._bring_up, service, outcomes, failures)
            try:
                wait(outcomes.values())
            except KeyboardInterrupt:
                # Without this, leaving the pool would wait for every readiness check.
                self._given_up.set()
                raise
        return tuple(failures)

    def _bring_up(
        self,
        service: Service,
        outcomes: Mapping[str, "Future[StartState]"],
        failures: list[StartFailure],
    ) -> None:
        outcome: StartState = StartFailed("internal error of the launcher")
        log_start = 0
        try:
            for need in service.needs:
                if not outcomes[need].done():
                    self.display.show(service, AwaitingDependency(need))
                if not isinstance(outcomes[need].result(), StartSucceeded):
                    outcome = StartSkipped(f"`{need}` is not ready")
                    return
            if self._given_up.is_set():
                outcome = StartSkipped("the start was interrupted")
                return
            log_start = size_of_log(self.context.layout, service)
            outcome = self._start_and_wait(service)
        except SetupFailed as error:
            outcome = StartFailed(str(error))
        except OSError as error:
            outcome = StartFailed(
                f"{error.strerror or error}: {error.filename or service.command[0]}"
            )
        finally:
            self.display.show(service, outcome)
            if isinstance(outcome, StartFailed):
                failures.append(
                    StartFailure(
                        service, outcome.why, last_lines(self.context.layout, service, log_start)
                    )
                )
            outcomes[service.name].set_result(outcome)

    def _start_and_wait(self, service: Service) -> StartState:
        began = time.monotonic()
        record = processes.read_record(self.context.layout.pids / service.name)
        alive = record is not None and processes.is_alive(record)
        decision = launch_action(
            service, RunningService(record.digest) if record is not None and alive else None
        )
        match decision:
            case LaunchAction.KEEP:
                pass
            case LaunchAction.RESTART:
                assert record is not None
                self.display.show(service, InProgress("restarting: its settings changed"))
                processes.stop(record, service.stop_signal, self.context.settings.shutdown_grace_s)
                self.start(service)
            case LaunchAction.START:
                if record is not None:
                    processes.stop(record, service.stop_signal, 0.5)  # children that outlived it
                self.start(service)
            case unexpected:
                assert_never(unexpected)
        why = self._wait_until_healthy(service, began)
        if why is not None:
            return StartFailed(why)
        for step in service.after:
            self._once(service, step)
        return StartSucceeded(time.monotonic() - began, kept=decision is LaunchAction.KEEP)

    def start(self, service: Service, setup: bool = True) -> None:
        """Start the service and write its record, without waiting.

        `setup`: run its setup steps first. Raises SetupFailed and OSError.
        """
        for step in service.before if setup else ():
            self._once(service, step)
        self.display.show(service, InProgress("starting"))
        layout = self.context.layout
        rotate(layout, service)
        with layout.log(service.name).open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  # a fixed list of arguments, and no shell
                service.command,
                cwd=layout.root,
                env=environment_of(service),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=service.umask,
            )
        # First of all: a service without a record cannot be stopped.
        processes.write_record(
            layout.pids / service.name,
            processes.describe(process.pid, service.digest, service.port),
        )

    def _wait_until_healthy(self, service: Service, began: float) -> str | None:
        record = processes.read_record(self.context.layout.pids / service.name)
        assert record is not None
        while True:
            why = check_readiness(service.readiness, processes.began_at(record))
            if why is None:
                return None
            if not processes.is_alive(record):
                return "its process ended during the start"
            if time.monotonic() - began > service.ready_s:
                return f"not ready after {service.ready_s:.0f} s: {why}"
            if self._given_up.wait(CHECK_EVERY_S):
                return "the start was interrupted"

    def _once(self, service: Service, step: SetupStep) -> None:
        """Run a setup step, or wait for the service that runs it; both get the same error."""
        self.display.show(service, InProgress(step.value))
        with self._lock:
            mine = step not in self._steps
            future = self._steps.setdefault(step, Future())
        if mine:
            try:
                run_setup_step(step, self.context)
            except BaseException as error:
                future.set_exception(error)
                raise
            future.set_result(None)
        future.result()


def environment_of(service: Service) -> dict[str, str]:
    """Return the variables of its row on top of the inherited ones, less `OWN_PREFIXES`."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in NOT_INHERITED and not name.startswith(OWN_PREFIXES)
    }
    return inherited | dict(service.env)


def size_of_log(layout: FileLayout, service: Service) -> int:
    """Return where the next start begins in the log; 0 if the log is about to be rotated."""
    path = layout.log(service.name)
    return path.stat().st_size if path.exists() and path.stat().st_size <= LOG_KEPT_BYTES else 0


def rotate(layout: FileLayout, service: Service) -> None:
    """Move the log aside once it is larger than `LOG_KEPT_BYTES`."""
    path = layout.log(service.name)
    if path.exists() and path.stat().st_size > LOG_KEPT_BYTES:
        path.replace(path.with_suffix(".log.1"))


def last_lines(layout: FileLayout, service: Service, start: int) -> tuple[str, ...]:
    """Return the last lines after byte `start` of the log, without frames of Java stack traces."""
    path = layout.log(service.name)
    if not path.exists():
        return ()
    with path.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    return tuple(
        [line for line in lines if line.strip() and not line.startswith("\tat ")][-LAST_LINES:]
    )
