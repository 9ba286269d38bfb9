"""Restart services that crash: `python -m fennel_core.apps.local.watchdog`.

`up` writes a record for each service and `down` removes it, so a record without its process means a
crash, and nothing else does. `restart_policy.py` decides when a service is restarted: with pauses
that double up to a bound, when its dependencies are ready, and without end. Starting and stopping
hold the platform lock; while another process holds it, the watchdog restarts nothing.

`status` shows restarts and next attempts from the file of `restart_reports.py`. Setup steps are not
repeated: they belong to `up`, and Airflow's migration takes seconds in which no other service would
be restarted.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Final, assert_never

from fennel_core.apps.errors import PlatformLocked, SetupFailed
from fennel_core.apps.local import processes
from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.launcher import Launcher
from fennel_core.apps.local.platform import load_context, platform_lock
from fennel_core.apps.local.readiness import check_readiness
from fennel_core.apps.local.restart_policy import (
    Observation,
    Pausing,
    Restarting,
    Running,
    Starting,
    Supervised,
    Waiting,
    failed,
    observed,
    restarted,
)
from fennel_core.apps.local.restart_reports import (
    RestartReport,
    remove_reports,
    write_reports,
)
from fennel_core.apps.local.services import WATCHDOG, Service, service_table
from fennel_core.apps.local.setup_steps import PlatformContext
from fennel_core.apps.local.start_display import (
    AwaitingDependency,
    InProgress,
    PlainLines,
    StartFailed,
    StartSucceeded,
)

CHECK_EVERY_S: Final = 1.0
CHECK_DEAD_EVERY_S: Final = 0.2
"""While a service is down, so that it waits for its pause and for its dependencies only."""


class ReadinessPoller:
    """Runs readiness checks in threads, because one may take seconds."""

    def __init__(self, services: Sequence[Service], layout: FileLayout) -> None:
        self._services = {service.name: service for service in services}
        self._layout = layout
        self._pool = ThreadPoolExecutor(max_workers=len(services), thread_name_prefix="ready")
        self._checks: dict[str, Future[bool]] = {}
        self._results: dict[str, bool] = {}

    def poll(self, names: set[str]) -> dict[str, bool]:
        """Return the latest results for `names` and repeat their checks.

        Results of services that were not named in the last call are forgotten, so a result never
        describes an earlier process.
        """
        for name in set(self._checks) - names:
            self._checks.pop(name).cancel()
        for name in [name for name, check in self._checks.items() if check.done()]:
            self._results[name] = self._checks.pop(name).result()
        self._results = {name: ready for name, ready in self._results.items() if name in names}
        for name in names - set(self._checks):
            self._checks[name] = self._pool.submit(self._check, self._services[name])
        return dict(self._results)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _check(self, service: Service) -> bool:
        record = processes.read_record(self._layout.pids / service.name)
        if record is None or not processes.is_alive(record):
            return False
        return check_readiness(service.readiness, processes.began_at(record)) is None


class Watchdog:
    """Restarts the services of one platform; call `check` about once a second."""

    def __init__(self, context: PlatformContext) -> None:
        self._context = context
        self._services = [service for service in service_table(context) if service.name != WATCHDOG]
        self._display = PlainLines(self._services, context.layout)
        self._poller = ReadinessPoller(self._services, context.layout)
        self._states: dict[str, Supervised] = {}
        self._ready: dict[str, bool] = {}

    @property
    def states(self) -> Mapping[str, Supervised]:
        return self._states

    @property
    def pause_s(self) -> float:
        """Return how long to wait until the next `check`, s."""
        settled = all(isinstance(state.phase, Running) for state in self._states.values())
        return CHECK_EVERY_S if settled else CHECK_DEAD_EVERY_S

    def check(self, now_s: float) -> None:
        """Look at every service once and restart those that are due.

        `now_s`: monotonic clock, s.
        """
        alive = self._alive_by_service()
        self._states = {name: self._states.get(name, Supervised(Starting())) for name in alive}
        self._ready = self._poller.poll(self._to_poll(alive))
        for service in self._services:
            if service.name in alive:
                self._check_one(service, alive, now_s)

    def close(self) -> None:
        """Stop the threads of the readiness checks."""
        self._poller.close()

    def reports(self, now_s: float, wall_s: float) -> dict[str, RestartReport]:
        """Return service → report. `now_s`: monotonic clock; `wall_s`: the same moment, wall."""
        return {
            name: RestartReport(
                restarts=state.restarts,
                failures=state.failures,
                next_attempt=round(wall_s + state.phase.until_s - now_s, 1)
                if isinstance(state.phase, Pausing)
                else None,
                waiting_for=state.phase.on if isinstance(state.phase, Waiting) else None,
            )
            for name, state in self._states.items()
        }

    def _alive_by_service(self) -> dict[str, bool]:
        """Return service → whether its process runs, for every service that `up` started."""
        records = {
            service.name: processes.read_record(self._context.layout.pids / service.name)
            for service in self._services
        }
        return {
            name: processes.is_alive(record)
            for name, record in records.items()
            if record is not None
        }

    def _to_poll(self, alive: Mapping[str, bool]) -> set[str]:
        """Return starting services, and the running dependencies of those that ended."""
        starting = {
            name
            for name, state in self._states.items()
            if alive[name] and isinstance(state.phase, Starting)
        }
        needed = {
            need
            for service in self._services
            if alive.get(service.name) is False
            for need in service.needs
            if alive.get(need)
        }
        return starting | needed

    def _check_one(self, service: Service, alive: Mapping[str, bool], now_s: float) -> None:
        before = self._states[service.name]
        down: str | None = None
        if not alive[service.name]:
            known = {need: self._is_ready(need, alive) for need in service.needs}
            down = next((need for need, ready in known.items() if ready is False), None)
            if down is None and None in known.values():
                return  # a check of a dependency is under way
        seen = Observation(alive[service.name], self._ready.get(service.name), down)
        after = observed(before, seen, now_s)
        if isinstance(after.phase, Restarting):
            after = self._restart(service, after, now_s)
        self._states[service.name] = after
        if after.phase != before.phase:
            self._show(service, after, now_s)

    def _is_ready(self, name: str, alive: Mapping[str, bool]) -> bool | None:
        return self._ready.get(name) if alive.get(name) else False

    def _restart(self, service: Service, before: Supervised, now_s: float) -> Supervised:
        try:
            with platform_lock(self._context.layout, wait=False):
                record = processes.read_record(self._context.layout.pids / service.name)
                if record is None or processes.is_alive(record):
                    return before  # another process restarted or stopped it first
                processes.stop(record, signal.SIGTERM, 1.0)  # children that outlived it
                Launcher(self._context, self._display).start(service, setup=False)
                return restarted(before)
        except PlatformLocked:
            return before
        except (SetupFailed, OSError) as error:
            self._display.show(service, StartFailed(str(error)))
            return failed(before, now_s)

    def _show(self, service: Service, state: Supervised, now_s: float) -> None:
        match state.phase:
            case Running():
                self._display.show(service, StartSucceeded(0.0, kept=state.restarts == 0))
            case Waiting(on):
                self._display.show(service, AwaitingDependency(on))
            case Pausing(until_s):
                times = "once" if state.failures == 1 else f"{state.failures} times in a row"
                self._display.show(
                    service, InProgress(f"ended {times}, restart in {until_s - now_s:.0f} s")
                )
            case Starting() | Restarting():
                pass  # the launcher shows each start
            case unexpected:
                assert_never(unexpected)


def main() -> None:
    """Check until SIGTERM."""
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    context = load_context()
    watchdog = Watchdog(context)
    beat = context.layout.run / "watchdog.beat"
    written: dict[str, RestartReport] = {}
    while not stopping:
        watchdog.check(time.monotonic())
        reap()
        beat.touch()
        reports = watchdog.reports(time.monotonic(), time.time())
        if reports != written:
            write_reports(context.layout, reports)
            written = reports
        time.sleep(watchdog.pause_s)
    watchdog.close()
    beat.unlink(missing_ok=True)
    remove_reports(context.layout)
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
