"""What `up` and `down` do, decided from facts without touching the world.

| a part is | its record says | decision |
|---|---|---|
| not running | anything | start |
| running | the same command, environment and ports | keep |
| running | another command, environment or port | restart, so that a changed setting never half
applies |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fennel_core.apps.local.parts import FENNEL, INFRA, Part


class UnknownPartError(Exception):
    """Somebody asked for a part that is not in the table; the text lists those that are."""


class Decision(StrEnum):
    START = "start"
    KEEP = "keep"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Running:
    """A part that is alive, and the digest it was started with."""

    digest: str


def decide(part: Part, running: Running | None) -> Decision:
    if running is None:
        return Decision.START
    return Decision.KEEP if running.digest == part.digest else Decision.RESTART


def chosen(parts: Sequence[Part], names: Sequence[str]) -> tuple[Part, ...]:
    """The parts that names and groups (`infra`, `fennel`) mean, in the table's order; all of them
    for no name.

    Raises UnknownPartError.
    """
    known = {part.name for part in parts} | {INFRA, FENNEL}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UnknownPartError(
            f"There is no part called {', '.join(unknown)}; there are {', '.join(sorted(known))}."
        )
    return tuple(part for part in parts if not names or part.name in names or part.group in names)


def with_needs(parts: Sequence[Part], wanted: Sequence[Part]) -> tuple[Part, ...]:
    """What must run so that the wanted parts can: themselves and, transitively, what they need; in
    the table's order.
    """
    by_name: Mapping[str, Part] = {part.name: part for part in parts}
    needed: set[str] = set()
    open_names = [part.name for part in wanted]
    while open_names:
        name = open_names.pop()
        if name not in needed:
            needed.add(name)
            open_names += by_name[name].needs
    return tuple(part for part in parts if part.name in needed)


def stopping_waves(parts: Sequence[Part]) -> tuple[tuple[Part, ...], ...]:
    """Groups to stop one after another: nobody is stopped before those who need it. Each part
    stands in exactly one.
    """
    left = list(parts)
    waves = []
    while left:
        needed = {name for part in left for name in part.needs}
        wave = tuple(part for part in left if part.name not in needed)
        assert wave, f"parts need each other in a circle: {[part.name for part in left]}"
        waves.append(wave)
        left = [part for part in left if part not in wave]
    return tuple(waves)
