"""Restart services that crash: `python -m fennel_core.apps.local.watchdog`.

`up` writes a record for each service and `down` removes it, so a record without its process means a
crash, and nothing else does. A service that keeps ending soon after its start is broken: pauses
between restarts double, and after a few attempts the watchdog gives up (`status` shows the service
as died, `up` tries again). Starting and stopping hold the platform lock; while another process
holds it, the watchdog does nothing.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Final

from fennel_core.apps.errors import PlatformLocked, SetupFailed
from fennel_core.apps.local import processes
from fennel_core.apps.local.launcher import Launcher
from fennel_core.apps.local.platform import load_context, platform_lock
from fennel_core.apps.local.services import WATCHDOG, Service, service_table
from fennel_core.apps.local.setup_steps import PlatformContext
from fennel_core.apps.local.start_display import InProgress, PlainLines, StartFailed, StartSucceeded

CHECK_EVERY_S: Final = 1.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
"""A service that ran this long was healthy: its next crash counts as its first."""
TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class CrashHistory:
    """Crashes of one service in a row.

    `record`: the process that crashed last. `again_at_s`: earliest restart, monotonic clock, s.
    """

    in_a_row: int
    record: processes.ProcessRecord
    again_at_s: float


def after_crash(
    before: CrashHistory | None, record: processes.ProcessRecord, now_s: float, lived_s: float
) -> CrashHistory:
    """Return the history after one more crash of a process that lived `lived_s`."""
    in_a_row = 1 if before is None or lived_s >= STEADY_S else before.in_a_row + 1
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (in_a_row - 1))
    return CrashHistory(in_a_row, record, now_s + pause_s)


def has_given_up(crashes: CrashHistory) -> bool:
    """Return whether the service crashed too often to be restarted once more."""
    return crashes.in_a_row > TRIES


class Watchdog:
    """Restarts the services of one platform; call `check` about once a second."""

    def __init__(self, context: PlatformContext) -> None:
        self._context = context
        self._services = [service for service in service_table(context) if service.name != WATCHDOG]
        self._display = PlainLines(self._services, context.layout)
        self._memory: dict[str, CrashHistory] = {}
        self._seen_alive_s: dict[str, float] = {}

    @property
    def memory(self) -> Mapping[str, CrashHistory]:
        return self._memory

    def check(self, now_s: float) -> None:
        """Record new crashes and restart services whose pause is over.

        `now_s`: monotonic clock, s.
        """
        for service in self._services:
            record = processes.read_record(self._context.layout.pids / service.name)
            if record is None:
                self._memory.pop(service.name, None)
                continue
            if processes.is_alive(record):
                self._seen_alive_s.setdefault(service.name, now_s)
                continue
            known = self._memory.get(service.name)
            if known is None or known.record != record:
                lived_s = now_s - self._seen_alive_s.pop(service.name, now_s)
                known = after_crash(known, record, now_s, lived_s)
                self._memory[service.name] = known
                self._show_crash(service, known)
            if now_s >= known.again_at_s and not has_given_up(known):
                self._start_again(service)

    def _show_crash(self, service: Service, crashes: CrashHistory) -> None:
        if has_given_up(crashes):
            self._display.show(
                service,
                StartFailed(f"ended {crashes.in_a_row} times in a row; not restarting it"),
            )
        else:
            self._display.show(service, InProgress("crashed"))

    def _start_again(self, service: Service) -> None:
        try:
            with platform_lock(self._context.layout, wait=False):
                record = processes.read_record(self._context.layout.pids / service.name)
                if record is None or processes.is_alive(record):
                    return  # another process restarted or stopped it first
                processes.stop(record, signal.SIGTERM, 1.0)  # children that outlived it
                Launcher(self._context, self._display).start(service)
                self._display.show(service, StartSucceeded(0.0, kept=False))
        except PlatformLocked:
            return
        except (SetupFailed, OSError) as error:
            self._display.show(service, StartFailed(str(error)))


def main() -> None:
    """Check once a second until SIGTERM."""
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    context = load_context()
    watchdog = Watchdog(context)
    beat = context.layout.run / "watchdog.beat"
    while not stopping:
        watchdog.check(time.monotonic())
        reap()
        beat.touch()
        time.sleep(CHECK_EVERY_S)
    beat.unlink(missing_ok=True)
    sys.exit(0)


def reap() -> None:
    """Collect the exit status of services that the watchdog started."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    main()
