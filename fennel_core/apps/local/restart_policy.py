"""Decide, without I/O, when the watchdog restarts a service. A service is never abandoned.

| state | observation | next state |
|---|---|---|
| Starting | ready | Running |
| Starting | ended | Waiting if a dependency is down, else Pausing with one more failure |
| Running | ended | Waiting if a dependency is down, else Pausing |
| Waiting | the dependencies are ready | Restarting |
| Pausing | the pause is over | Restarting, or Waiting if a dependency is down |
| Restarting | the start succeeded, or failed | Starting, or Pausing with one more failure |

Pauses double from `FIRST_PAUSE_S` to `LONGEST_PAUSE_S` with each failure in a row. A service that
was ready for `STEADY_S` is healthy, so its next end is its first. The end of a service whose
dependency is down is no failure of its own: it waits for the dependency without a pause.
"""

from dataclasses import dataclass
from typing import Final, assert_never

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Starting:
    """Its process runs and was not ready yet."""


@dataclass(frozen=True, slots=True)
class Running:
    """Its process runs and was ready at `since_s`."""

    since_s: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """Its process ended; it is restarted when its dependency `on` is ready."""

    on: str


@dataclass(frozen=True, slots=True)
class Pausing:
    """Its process ended; it is restarted at `until_s`."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Restarting:
    """It must be restarted now."""


Phase = Starting | Running | Waiting | Pausing | Restarting


@dataclass(frozen=True, slots=True)
class Supervised:
    """State of one service.

    `failures`: ends in a row without `STEADY_S` of being ready in between. `restarts`: starts by
    the watchdog. Times are of the monotonic clock, s.
    """

    phase: Phase
    failures: int = 0
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """Result of looking at a service once.

    `ready`: None if not known. `dependency_down`: a dependency that is not ready, or None.
    """

    alive: bool
    ready: bool | None
    dependency_down: str | None


def observed(before: Supervised, seen: Observation, now_s: float) -> Supervised:
    """Return the state after an observation: one row of the table above."""
    match before.phase:
        case Starting() if seen.alive:
            return _in(before, Running(now_s)) if seen.ready else before
        case Running() if seen.alive:
            return before
        case Starting():
            return _ended(before, seen, now_s)
        case Running(since_s):
            healthy = now_s - since_s >= STEADY_S
            fresh = Supervised(before.phase, 0 if healthy else before.failures, before.restarts)
            return _ended(fresh, seen, now_s)
        case Waiting() | Pausing() | Restarting() if seen.alive:
            return _in(before, Starting())  # another process restarted it
        case Waiting() | Restarting():
            return _restarting_unless_blocked(before, seen)
        case Pausing(until_s):
            return before if now_s < until_s else _restarting_unless_blocked(before, seen)
        case unexpected:
            assert_never(unexpected)


def restarted(before: Supervised) -> Supervised:
    """Return the state after a start by the watchdog."""
    return Supervised(Starting(), before.failures, before.restarts + 1)


def failed(before: Supervised, now_s: float) -> Supervised:
    """Return the state after an end, or after a start that failed."""
    failures = before.failures + 1
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10))
    return Supervised(Pausing(now_s + pause_s), failures, before.restarts)


def _ended(before: Supervised, seen: Observation, now_s: float) -> Supervised:
    if seen.dependency_down is not None:
        return _in(before, Waiting(seen.dependency_down))
    return failed(before, now_s)


def _restarting_unless_blocked(before: Supervised, seen: Observation) -> Supervised:
    down = seen.dependency_down
    return _in(before, Restarting() if down is None else Waiting(down))


def _in(before: Supervised, phase: Phase) -> Supervised:
    return Supervised(phase, before.failures, before.restarts)
