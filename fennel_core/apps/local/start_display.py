"""Show the progress of a start: a live table on a terminal, a line per change anywhere else."""

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self, assert_never

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.services import Service


@dataclass(frozen=True, slots=True)
class AwaitingDependency:
    """Not started yet: the service `on` has to be ready first."""

    on: str


@dataclass(frozen=True, slots=True)
class InProgress:
    """Being started. `activity`: the present step."""

    activity: str


@dataclass(frozen=True, slots=True)
class StartSucceeded:
    """Ready. `kept`: it was running before."""

    took_s: float
    kept: bool


@dataclass(frozen=True, slots=True)
class StartFailed:
    """Not ready. `why`: one sentence."""

    why: str


@dataclass(frozen=True, slots=True)
class StartSkipped:
    """Not started. `reason`: a dependency failed, or the start was interrupted."""

    reason: str


StartState = AwaitingDependency | InProgress | StartSucceeded | StartFailed | StartSkipped


def describe_state(state: StartState) -> str:
    """Return the state in a few words."""
    match state:
        case AwaitingDependency(on):
            return f"waiting for {on}"
        case InProgress(activity):
            return activity
        case StartSucceeded(_, kept=True):
            return "ready (was running)"
        case StartSucceeded(took_s):
            return f"ready after {took_s:.1f} s"
        case StartFailed(why):
            return f"FAILED: {why}"
        case StartSkipped(reason):
            return f"not started: {reason}"
        case unexpected:
            assert_never(unexpected)


class StartDisplay(Protocol):
    """Shows each change of state; called from any thread."""

    def show(self, service: Service, state: StartState) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def display_for(services: Sequence[Service], layout: FileLayout) -> StartDisplay:
    """Return the display that suits the standard output."""
    return LiveTable(services, layout) if sys.stdout.isatty() else PlainLines(services, layout)


@dataclass
class PlainLines:
    """One line per change, for log files and CI."""

    services: Sequence[Service]
    layout: FileLayout
    began: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def show(self, service: Service, state: StartState) -> None:
        where = f"port {service.port}" if service.port else "no port"
        with self.lock:
            elapsed = time.monotonic() - self.began
            print(
                f"{elapsed:6.1f} s  {service.title:<22} {where:<10} "
                f"{describe_state(state):<34} "
                f"{self.layout.shown(self.layout.log(service.name))}",
                flush=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return


class LiveTable:
    """One row per service, redrawn in place."""

    def __init__(self, services: Sequence[Service], layout: FileLayout) -> None:
        self._services = services
        self._layout = layout
        self._states: dict[str, StartState] = {
            service.name: InProgress("queued") for service in services
        }
        self._began = time.monotonic()
        self._live = Live(get_renderable=self._table, console=Console(), refresh_per_second=8)

    def show(self, service: Service, state: StartState) -> None:
        self._states = {**self._states, service.name: state}

    def _table(self) -> Table:
        states = self._states
        done = sum(isinstance(state, StartSucceeded) for state in states.values())
        table = Table(
            box=None,
            pad_edge=False,
            title=f"{done} of {len(states)} services ready, {time.monotonic() - self._began:.0f} s",
            title_justify="left",
        )
        for name in ("service", "port", "state", "log file"):
            table.add_column(name)
        for service in self._services:
            state = states[service.name]
            table.add_row(
                service.title,
                str(service.port or "–"),
                Text(describe_state(state), style=_style(state)),
                Text(self._layout.shown(self._layout.log(service.name)), style="dim"),
            )
        return table

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()


def _style(state: StartState) -> str:
    match state:
        case StartSucceeded():
            return "green"
        case StartFailed() | StartSkipped():
            return "red"
        case AwaitingDependency():
            return "dim"
        case InProgress():
            return "yellow"
        case unexpected:
            assert_never(unexpected)
