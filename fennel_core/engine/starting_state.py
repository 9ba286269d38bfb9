"""The life cycle of one job partition's local state in one process: where its runners start from.

Theory. A runner starts from one state as a whole: what is on the disk, a snapshot, or the start of
the log. Which of these may be used follows from what happened to the ones before. `PHASES` has the
phases and the events that lead from one to another; `after` adds what an event says about
snapshots. Everything here is a value: `engine.snapshots` does what a phase asks for, and records
the event only when it is done, so that a cancelled start is simply started again.

Example. A partition runs on its local state (`OPENED`, origin LOCAL). Its replay differs from the
log: `Discarded`. The next start sets the folder aside (`Quarantined`), restores snapshot 7
(`Restored`), whose replay differs, too: `Discarded` excludes snapshot 7. After the last snapshot
comes the start of the log (`StartedFromLog`); when that differs as well, nothing is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, assert_never

from fennel_core.engine.errors import RebuildRequested, StateDiscarded
from fennel_core.hangar.store import HangarCorrupt


class StateOrigin(Enum):
    """The origin of a state that was not restored from a snapshot."""

    LOCAL = auto()
    """It was on the disk when this process started."""
    LOG_START = auto()
    """It is replayed from the start of the log."""


Origin = int | StateOrigin
"""What a state was made from: a snapshot's number, or else its origin."""


class Phase(Enum):
    """Which local state the next runner may start from."""

    UNOPENED = auto()
    """Any that is on the disk: this process has not opened one yet."""
    OPENED = auto()
    """The one that this process has opened, or that another slot has left since."""
    DISCARDED = auto()
    """None: the one on the disk must be set aside first."""
    QUARANTINED = auto()
    """None but what this process has begun to install since it set the last one aside."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """The state proved unusable, or an operator asked for another one."""

    why: Exception


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The local state was set aside, if there was one."""


@dataclass(frozen=True, slots=True)
class Limited:
    """The snapshots that an operator's request excludes are known."""

    later: frozenset[int]


@dataclass(frozen=True, slots=True)
class FoundLocal:
    """A runner starts from what is on the disk."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The local state is a copy of a snapshot now."""

    number: int


@dataclass(frozen=True, slots=True)
class Unopenable:
    """A restored snapshot could not be opened, and was deleted again."""

    number: int


@dataclass(frozen=True, slots=True)
class PutBack:
    """The local state that a snapshot had replaced is back in its place."""


@dataclass(frozen=True, slots=True)
class StartedFromLog:
    """The local state is empty: everything is replayed."""


Event = (
    Discarded
    | Quarantined
    | Limited
    | FoundLocal
    | Restored
    | Unopenable
    | PutBack
    | StartedFromLog
)

PHASES: Final[Mapping[Phase, Mapping[type[Event], Phase]]] = {
    Phase.UNOPENED: {
        Discarded: Phase.DISCARDED,
        Quarantined: Phase.QUARANTINED,
        FoundLocal: Phase.OPENED,
        Restored: Phase.OPENED,
        Unopenable: Phase.QUARANTINED,
        StartedFromLog: Phase.OPENED,
    },
    Phase.OPENED: {
        Discarded: Phase.DISCARDED,
        Quarantined: Phase.QUARANTINED,
        FoundLocal: Phase.OPENED,
        Restored: Phase.OPENED,
        Unopenable: Phase.QUARANTINED,
        StartedFromLog: Phase.OPENED,
    },
    Phase.DISCARDED: {
        Discarded: Phase.DISCARDED,
        Quarantined: Phase.QUARANTINED,
        Limited: Phase.DISCARDED,
        FoundLocal: Phase.DISCARDED,
        Restored: Phase.DISCARDED,
        Unopenable: Phase.DISCARDED,
        PutBack: Phase.DISCARDED,
        StartedFromLog: Phase.DISCARDED,
    },
    Phase.QUARANTINED: {
        Discarded: Phase.DISCARDED,
        Quarantined: Phase.QUARANTINED,
        Limited: Phase.QUARANTINED,
        FoundLocal: Phase.OPENED,
        Restored: Phase.OPENED,
        Unopenable: Phase.QUARANTINED,
        PutBack: Phase.UNOPENED,
        StartedFromLog: Phase.OPENED,
    },
}
"""Phase × event → phase. An event that is not listed cannot happen in that phase.

A start may be overtaken: the state is discarded while it is being opened. What that start reports
afterwards changes nothing.
"""


@dataclass(frozen=True, slots=True)
class StartingState:
    """What is known about the states that a job partition may start from."""

    phase: Phase = Phase.UNOPENED
    origin: Origin | None = None
    """What the current local state was made from; None while there is none."""
    reason: str = ""
    """Why the local state was discarded."""
    excluded: frozenset[Origin] = frozenset()
    """Origins that are not used any more as long as this process lives."""
    corrupt_once: frozenset[int] = frozenset()
    """Snapshots whose restored state was found corrupt once."""
    exclude_from: int | None = None
    """Snapshots from this number on are to be excluded."""

    @property
    def unusable(self) -> frozenset[int]:
        """The numbers of the snapshots that are excluded."""
        return frozenset(each for each in self.excluded if not isinstance(each, StateOrigin))

    @property
    def description(self) -> str:
        """What the current state was made from, as text for operators."""
        match self.origin:
            case None:
                return "nothing yet"
            case StateOrigin.LOCAL:
                return "its local state"
            case StateOrigin.LOG_START:
                return "the start of its log"
            case int(number):
                return f"snapshot #{number}"
            case never:
                assert_never(never)


UNOPENED: Final = StartingState()


def after(known: StartingState, event: Event) -> StartingState:
    """Return what is known after an event."""
    phases = PHASES[known.phase]
    assert type(event) in phases, f"{event} in phase {known.phase.name}"
    if known.phase is Phase.DISCARDED and not isinstance(event, Discarded | Quarantined):
        return known
    known = replace(known, phase=phases[type(event)])
    match event:
        case Discarded(RebuildRequested() as request):
            # An operator asks: what was excluded before may be used again.
            return replace(
                known,
                reason=str(request),
                excluded=frozenset(),
                corrupt_once=frozenset(),
                exclude_from=request.before,
            )
        case Discarded(why):
            return _with_defect(replace(known, reason=str(why)), why)
        case Quarantined():
            return replace(known, origin=None, reason="")
        case Limited(later):
            return replace(known, excluded=known.excluded | later, exclude_from=None)
        case FoundLocal():
            # A runner that starts again goes on with the state that the last one was given.
            origin = StateOrigin.LOCAL if known.origin is None else known.origin
            return replace(known, origin=origin)
        case Restored(number):
            return replace(known, origin=number)
        case Unopenable(number):
            return replace(known, origin=None, excluded=known.excluded | {number})
        case PutBack():
            return known
        case StartedFromLog():
            return replace(known, origin=StateOrigin.LOG_START)
        case never:
            assert_never(never)


def _with_defect(known: StartingState, why: Exception) -> StartingState:
    """Exclude what the state was made from, if the defect says something about it.

    A replay that differs does. Corruption says nothing about the snapshot, whose checksums were
    right; corruption that returns with the same snapshot does: its files were corrupt before they
    were copied.
    """
    origin = known.origin
    if origin is None or origin is StateOrigin.LOCAL:
        return known
    if not isinstance(why, HangarCorrupt | StateDiscarded):
        return replace(known, excluded=known.excluded | {origin})
    if isinstance(origin, StateOrigin):
        return known
    excluded = known.excluded | ({origin} & known.corrupt_once)
    return replace(known, excluded=excluded, corrupt_once=known.corrupt_once | {origin})
