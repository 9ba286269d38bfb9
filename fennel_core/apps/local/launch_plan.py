"""Decide, without I/O, which services to start, keep, restart or stop, and in which order.

| service | its record | action |
|---|---|---|
| not running | any | start |
| running | same command, environment and ports | keep |
| running | another command, environment or port | restart, so that no change applies partially |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fennel_core.apps.errors import UnknownService
from fennel_core.apps.local.services import FENNEL, INFRA, Service


class LaunchAction(StrEnum):
    """What `up` does with one service."""

    START = "start"
    KEEP = "keep"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class RunningService:
    """A service that is alive, and the digest it was started with."""

    digest: str


def launch_action(service: Service, running: RunningService | None) -> LaunchAction:
    """Return the cell of the table above."""
    if running is None:
        return LaunchAction.START
    return LaunchAction.KEEP if running.digest == service.digest else LaunchAction.RESTART


def select_services(services: Sequence[Service], names: Sequence[str]) -> tuple[Service, ...]:
    """Return the services with these names or groups, in table order; all of them for no name.

    Raises UnknownService.
    """
    known = {service.name for service in services} | {INFRA, FENNEL}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UnknownService(
            f"unknown service `{', '.join(unknown)}`; valid names: {', '.join(sorted(known))}"
        )
    return tuple(
        service
        for service in services
        if not names or service.name in names or service.group in names
    )


def with_dependencies(
    services: Sequence[Service], wanted: Sequence[Service]
) -> tuple[Service, ...]:
    """Return the wanted services and, transitively, those they need, in table order."""
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
    """Return groups to stop one after another: a service stops after those that need it."""
    remaining = list(services)
    waves = []
    while remaining:
        needed = {name for service in remaining for name in service.needs}
        wave = tuple(service for service in remaining if service.name not in needed)
        assert wave, f"services need each other in a cycle: {[each.name for each in remaining]}"
        waves.append(wave)
        remaining = [service for service in remaining if service not in wave]
    return tuple(waves)
