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

from fennel_core.apps.errors import UnknownService
from fennel_core.apps.local.services import FENNEL, INFRA, Service


class LaunchAction(StrEnum):
    START = "start"
    KEEP = "keep"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class RunningService:
    """A part that is alive, and the digest it was started with."""

    digest: str


def launch_action(service: Service, running: RunningService | None) -> LaunchAction:
    if running is None:
        return LaunchAction.START
    return LaunchAction.KEEP if running.digest == service.digest else LaunchAction.RESTART


def select_services(services: Sequence[Service], names: Sequence[str]) -> tuple[Service, ...]:
    """The parts that names and groups (`infra`, `fennel`) mean, in the table's order; all of them
    for no name.

    Raises UnknownPartError.
    """
    known = {service.name for service in services} | {INFRA, FENNEL}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UnknownService(
            f"There is no part called {', '.join(unknown)}; there are {', '.join(sorted(known))}."
        )
    return tuple(
        service
        for service in services
        if not names or service.name in names or service.group in names
    )


def with_dependencies(
    services: Sequence[Service], wanted: Sequence[Service]
) -> tuple[Service, ...]:
    """What must run so that the wanted parts can: themselves and, transitively, what they need; in
    the table's order.
    """
    by_name: Mapping[str, Service] = {service.name: service for service in services}
    needed: set[str] = set()
    open_names = [service.name for service in wanted]
    while open_names:
        name = open_names.pop()
        if name not in needed:
            needed.add(name)
            open_names += by_name[name].needs
    return tuple(service for service in services if service.name in needed)


def stop_waves(services: Sequence[Service]) -> tuple[tuple[Service, ...], ...]:
    """Groups to stop one after another: nobody is stopped before those who need it. Each part
    stands in exactly one.
    """
    left = list(services)
    waves = []
    while left:
        needed = {name for service in left for name in service.needs}
        wave = tuple(service for service in left if service.name not in needed)
        assert wave, f"parts need each other in a circle: {[service.name for service in left]}"
        waves.append(wave)
        left = [service for service in left if service not in wave]
    return tuple(waves)
