"""What people see while parts start: a table that renews itself on a terminal, a line per change
anywhere else.
"""

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

from fennel_core.apps.local.layout import Layout
from fennel_core.apps.local.parts import Part


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not begun: another part has to be ready first."""

    on: str


@dataclass(frozen=True, slots=True)
class Working:
    what: str


@dataclass(frozen=True, slots=True)
class Ready:
    """`kept`: it ran already."""

    took_s: float
    kept: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """`why`: one sentence."""

    why: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """Never begun, because what it needs failed."""

    needs: str


State = Waiting | Working | Ready | Failed | Skipped


def in_words(state: State) -> str:
    match state:
        case Waiting(on):
            return f"waits for {on}"
        case Working(what):
            return what
        case Ready(_, kept=True):
            return "ready (was running)"
        case Ready(took_s):
            return f"ready after {took_s:.1f} s"
        case Failed(why):
            return f"FAILED: {why}"
        case Skipped(needs):
            return f"not started: needs {needs}"
        case unexpected:
            assert_never(unexpected)


class Display(Protocol):
    """Told of each change, from any thread."""

    def show(self, part: Part, state: State) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def display_for(parts: Sequence[Part], layout: Layout) -> Display:
    return LiveTable(parts, layout) if sys.stdout.isatty() else PlainLines(parts, layout)


@dataclass
class PlainLines:
    """For log files and CI."""

    parts: Sequence[Part]
    layout: Layout
    began: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def show(self, part: Part, state: State) -> None:
        where = f"port {part.port}" if part.port else "no port"
        with self.lock:
            elapsed = time.monotonic() - self.began
            print(
                f"{elapsed:6.1f} s  {part.title:<22} {where:<10} "
                f"{in_words(state):<34} "
                f"{self.layout.shown(self.layout.log(part.name))}",
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
    """For people: one row per part, renewed in place."""

    def __init__(self, parts: Sequence[Part], layout: Layout) -> None:
        self._parts = parts
        self._layout = layout
        self._states: dict[str, State] = {part.name: Working("queued") for part in parts}
        self._began = time.monotonic()
        self._live = Live(get_renderable=self._table, console=Console(), refresh_per_second=8)

    def show(self, part: Part, state: State) -> None:
        self._states = {**self._states, part.name: state}

    def _table(self) -> Table:
        states = self._states
        done = sum(isinstance(state, Ready) for state in states.values())
        table = Table(
            box=None,
            pad_edge=False,
            title=f"{done} of {len(states)} parts ready, {time.monotonic() - self._began:.0f} s",
            title_justify="left",
        )
        for name in ("part", "port", "state", "log file"):
            table.add_column(name)
        for part in self._parts:
            state = states[part.name]
            table.add_row(
                part.title,
                str(part.port or "–"),
                Text(in_words(state), style=_style(state)),
                Text(self._layout.shown(self._layout.log(part.name)), style="dim"),
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


def _style(state: State) -> str:
    match state:
        case Ready():
            return "green"
        case Failed() | Skipped():
            return "red"
        case Waiting():
            return "dim"
        case Working():
            return "yellow"
        case unexpected:
            assert_never(unexpected)
