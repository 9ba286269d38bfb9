"""Starts parts in parallel, each as soon as what it needs is ready, and waits until all are
healthy.

One thread per part, because starting is waiting: on a file, a port, a process. A step that several
parts name is carried out once. Nothing is stopped when one part fails: what runs is kept for the
next try, and the failure tells where to look.
"""

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, assert_never

from fennel_core.apps.local import processes
from fennel_core.apps.local.decide import Decision, Running, decide
from fennel_core.apps.local.health import ask
from fennel_core.apps.local.host import HostError
from fennel_core.apps.local.layout import Layout
from fennel_core.apps.local.parts import Part
from fennel_core.apps.local.progress import Display, Failed, Ready, Skipped, State, Waiting, Working
from fennel_core.apps.local.steps import Machine, Step, carry_out
from fennel_core.settings.model import MIB

ASK_EVERY_S: Final = 0.2
LOG_KEPT_BYTES: Final = 20 * MIB
LAST_LINES: Final = 15
NOT_INHERITED: Final = frozenset(
    {"PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
)
"""Without bytecode files each of Airflow's processes compiles a thousand modules at every start."""
OURS: Final = ("FENNEL_", "AIRFLOW__")
"""A part gets these from its row alone: Kafka and the executors have no business with passwords
that stand in somebody's shell.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A part that did not become ready. `log_lines`: the end of what it said since it was
    started.
    """

    part: Part
    why: str
    log_lines: tuple[str, ...]


@dataclass
class Launch:
    """One run of `up`."""

    machine: Machine
    display: Display
    _steps: dict[Step, Future[None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _given_up: threading.Event = field(default_factory=threading.Event)

    def run(self, parts: Sequence[Part]) -> tuple[Failure, ...]:
        """Blocks until each part is ready, failed or skipped. The parts must include what they
        need.

        On KeyboardInterrupt what was started goes on, each with its record.
        """
        outcomes: dict[str, Future[State]] = {part.name: Future() for part in parts}
        failures: list[Failure] = []
        with ThreadPoolExecutor(max_workers=max(1, len(parts)), thread_name_prefix="up") as pool:
            for part in parts:
                pool.submit(self._bring_up, part, outcomes, failures)
            try:
                wait(outcomes.values())
            except KeyboardInterrupt:
                # or leaving the pool would wait for what nobody waits for any more
                self._given_up.set()
                raise
        return tuple(failures)

    def _bring_up(
        self, part: Part, outcomes: Mapping[str, "Future[State]"], failures: list[Failure]
    ) -> None:
        outcome: State = Failed("the launcher itself failed")
        log_start = 0
        try:
            for need in part.needs:
                if not outcomes[need].done():
                    self.display.show(part, Waiting(need))
                if not isinstance(outcomes[need].result(), Ready):
                    outcome = Skipped(need)
                    return
            if self._given_up.is_set():
                outcome = Skipped("somebody who waits")
                return
            log_start = size_of_log(self.machine.layout, part)
            outcome = self._start_and_wait(part)
        except HostError as error:
            outcome = Failed(str(error))
        except OSError as error:
            outcome = Failed(f"{error.strerror or error}: {error.filename or part.command[0]}")
        finally:
            self.display.show(part, outcome)
            if isinstance(outcome, Failed):
                failures.append(
                    Failure(part, outcome.why, last_lines(self.machine.layout, part, log_start))
                )
            outcomes[part.name].set_result(outcome)

    def _start_and_wait(self, part: Part) -> State:
        began = time.monotonic()
        record = processes.read_record(self.machine.layout.pids / part.name)
        alive = record is not None and processes.is_alive(record)
        decision = decide(part, Running(record.digest) if record is not None and alive else None)
        match decision:
            case Decision.KEEP:
                pass
            case Decision.RESTART:
                assert record is not None
                self.display.show(part, Working("restarting: its settings changed"))
                processes.stop(record, part.stop_signal, self.machine.settings.shutdown_grace_s)
                self.start(part)
            case Decision.START:
                if record is not None:
                    processes.stop(record, part.stop_signal, 0.5)  # children that outlived it
                self.start(part)
            case unexpected:
                assert_never(unexpected)
        why = self._wait_until_healthy(part, began)
        if why is not None:
            return Failed(why)
        for step in part.after:
            self._once(part, step)
        return Ready(time.monotonic() - began, kept=decision is Decision.KEEP)

    def start(self, part: Part) -> None:
        """Starts it and writes its record; does not wait. Raises HostError and OSError."""
        for step in part.before:
            self._once(part, step)
        self.display.show(part, Working("starting"))
        layout = self.machine.layout
        rotate(layout, part)
        with layout.log(part.name).open("ab") as log:
            process = subprocess.Popen(
                part.command,
                cwd=layout.root,
                env=environment_of(part),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # Written before anything else: a part without a record could not be stopped.
        processes.write_record(
            layout.pids / part.name, processes.describe(process.pid, part.digest, part.port)
        )

    def _wait_until_healthy(self, part: Part, began: float) -> str | None:
        record = processes.read_record(self.machine.layout.pids / part.name)
        assert record is not None
        while True:
            why = ask(part.health, processes.began_at(record))
            if why is None:
                return None
            if not processes.is_alive(record):
                return "it ended while it was starting"
            if time.monotonic() - began > part.ready_s:
                return f"not ready after {part.ready_s:.0f} s: {why}"
            if self._given_up.wait(ASK_EVERY_S):
                return "nobody waits for it any more"

    def _once(self, part: Part, step: Step) -> None:
        """Carries out a step, or waits for the part that is already at it; whoever comes second
        gets the same error.
        """
        self.display.show(part, Working(step.value))
        with self._lock:
            mine = step not in self._steps
            future = self._steps.setdefault(step, Future())
        if mine:
            try:
                carry_out(step, self.machine)
            except BaseException as error:
                future.set_exception(error)
                raise
            future.set_result(None)
        future.result()


def environment_of(part: Part) -> dict[str, str]:
    """Its row's variables, and of ours what is nobody's setting."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in NOT_INHERITED and not name.startswith(OURS)
    }
    return inherited | dict(part.env)


def size_of_log(layout: Layout, part: Part) -> int:
    path = layout.log(part.name)
    return path.stat().st_size if path.exists() and path.stat().st_size <= LOG_KEPT_BYTES else 0


def rotate(layout: Layout, part: Part) -> None:
    path = layout.log(part.name)
    if path.exists() and path.stat().st_size > LOG_KEPT_BYTES:
        path.replace(path.with_suffix(".log.1"))


def last_lines(layout: Layout, part: Part, start: int) -> tuple[str, ...]:
    """The last lines a part wrote behind byte `start` of its log, without the frames of Java's
    stack traces, which say little.
    """
    path = layout.log(part.name)
    if not path.exists():
        return ()
    with path.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    return tuple(
        [line for line in lines if line.strip() and not line.startswith("\tat ")][-LAST_LINES:]
    )
