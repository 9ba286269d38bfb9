"""`python -m fennel_core.apps.local.watch`: starts a part again when it has ended without being
asked to.

Theory. A part that `up` started has a record; `down` removes it. So a record without its process
means a crash, and nothing else does. A part that ends again and again soon after its start is
broken rather than unlucky: the pauses double, and after a few tries it is left as it is for a
person to look at (`status` shows it as died, `up` tries again). Whoever starts or stops parts holds
the platform's lock; while somebody does, the watch only looks on.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Final

from fennel_core.apps.local import processes
from fennel_core.apps.local.host import HostError
from fennel_core.apps.local.launch import Launch
from fennel_core.apps.local.parts import WATCH, Part, table
from fennel_core.apps.local.platform import Busy, machine_here, only_one
from fennel_core.apps.local.progress import Failed, PlainLines, Ready, Working
from fennel_core.apps.local.steps import Machine

LOOK_EVERY_S: Final = 1.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
"""A part that lived this long was well: its next crash counts as its first."""
TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Crashes:
    """What the watch remembers of a part: crashes in a row, the last of them, and when it may be
    started again (monotonic, s).
    """

    in_a_row: int
    record: processes.Started
    again_at_s: float


def after_crash(
    before: Crashes | None, record: processes.Started, now_s: float, lived_s: float
) -> Crashes:
    """The memory after one more crash. Pure."""
    in_a_row = 1 if before is None or lived_s >= STEADY_S else before.in_a_row + 1
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (in_a_row - 1))
    return Crashes(in_a_row, record, now_s + pause_s)


def gave_up(crashes: Crashes) -> bool:
    return crashes.in_a_row > TRIES


class Watch:
    """One look at a time; `now_s` is a monotonic clock in seconds."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._parts = [part for part in table(machine) if part.name != WATCH]
        self._display = PlainLines(self._parts, machine.layout)
        self._memory: dict[str, Crashes] = {}
        self._seen_alive_s: dict[str, float] = {}

    @property
    def memory(self) -> Mapping[str, Crashes]:
        return self._memory

    def look(self, now_s: float) -> None:
        """Finds who has ended and starts again those whose pause is over."""
        for part in self._parts:
            record = processes.read_record(self._machine.layout.pids / part.name)
            if record is None:
                self._memory.pop(part.name, None)
                continue
            if processes.is_alive(record):
                self._seen_alive_s.setdefault(part.name, now_s)
                continue
            known = self._memory.get(part.name)
            if known is None or known.record != record:
                lived_s = now_s - self._seen_alive_s.pop(part.name, now_s)
                known = after_crash(known, record, now_s, lived_s)
                self._memory[part.name] = known
                self._tell(part, known)
            if now_s >= known.again_at_s and not gave_up(known):
                self._start_again(part)

    def _tell(self, part: Part, crashes: Crashes) -> None:
        if gave_up(crashes):
            self._display.show(
                part,
                Failed(f"ended {crashes.in_a_row} times in a row: it is left for you to look at"),
            )
        else:
            self._display.show(part, Working("ended unasked"))

    def _start_again(self, part: Part) -> None:
        try:
            with only_one(self._machine.layout, wait=False):
                record = processes.read_record(self._machine.layout.pids / part.name)
                if record is None or processes.is_alive(record):
                    return  # somebody was faster
                processes.stop(record, signal.SIGTERM, 1.0)  # children that outlived it
                Launch(self._machine, self._display).start(part)
                self._display.show(part, Ready(0.0, kept=False))
        except Busy:
            return
        except (HostError, OSError) as error:
            self._display.show(part, Failed(str(error)))


def main() -> None:
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    machine = machine_here()
    watch = Watch(machine)
    beat = machine.layout.run / "watch.beat"
    while not stopping:
        watch.look(time.monotonic())
        reap()
        beat.touch()
        time.sleep(LOOK_EVERY_S)
    beat.unlink(missing_ok=True)
    sys.exit(0)


def reap() -> None:
    """Takes the exit status of parts started from here."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    main()
