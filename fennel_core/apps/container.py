"""What a container of `docker-compose.yml` runs: one row of the same process table that `make up`
starts on a machine.

    python -m fennel_core.apps.container prepare [STEP ...]   make the keys where there are none,
    carry out steps, end
    python -m fennel_core.apps.container run PART             carry out what comes before the part,
    then become it
    python -m fennel_core.apps.container healthy              the health check: silent and 0, or a
    few words and 1

Theory. Commands, configuration files and environments are made in one place, so that containers
cannot drift from the local platform; what is left to the compose file is order, folders and
networks. `run` replaces itself by the part, so that signals reach it. It leaves the part's health
question in a file, because making the process table again would cost a second of processor time per
question.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from fennel_core.apps.local.readiness import check_readiness, from_json, to_json

if TYPE_CHECKING:
    from fennel_core.apps.local.setup_steps import PlatformContext

USAGE: Final = "usage: python -m fennel_core.apps.container prepare [STEP ...] | run PART | healthy"


def main(words: list[str], question: Path) -> int | str:
    """The exit status, or what is wrong. `question`: the file of the health question."""
    match words:
        case ["prepare", *steps]:
            return prepare(steps)
        case ["run", name]:
            return run(name, question)
        case ["healthy"]:
            return healthy(question)
        case _:
            return USAGE


def healthy(question: Path) -> int | str:
    """Asks what `run` wrote; the file's age is the part's."""
    try:
        health, began_s = from_json(question.read_text()), question.stat().st_mtime
    except FileNotFoundError:
        return "its start is being prepared"
    return check_readiness(health, datetime.fromtimestamp(began_s, UTC)) or 0


def prepare(names: list[str]) -> int | str:
    """Carries out steps by name, as `make-bucket`, in the order given; the keys come first."""
    from fennel_core.apps.errors import SetupFailed
    from fennel_core.apps.local.setup_steps import SetupStep, run_setup_step

    known = {step.name.lower().replace("_", "-"): step for step in SetupStep}
    if unknown := [name for name in names if name not in known]:
        return f"There is no step {', '.join(unknown)}; there are {', '.join(known)}."
    try:
        context = _context()
        for name in names:
            print(known[name].value, flush=True)
            run_setup_step(known[name], context)
    except SetupFailed as error:
        return str(error)
    return 0


def run(name: str, question: Path) -> str:
    """Becomes the part; returns only where that cannot be."""
    from fennel_core.apps.errors import SetupFailed
    from fennel_core.apps.local.launcher import environment_of
    from fennel_core.apps.local.services import service_table
    from fennel_core.apps.local.setup_steps import run_setup_step

    question.unlink(missing_ok=True)  # of the time before a restart
    try:
        context = _context()
        services = {service.name: service for service in service_table(context)}
        if name not in services:
            return f"There is no part {name}; there are {', '.join(services)}."
        service = services[name]
        for step in service.before:
            run_setup_step(step, context)
    except SetupFailed as error:
        return str(error)
    descriptor = os.open(question, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(to_json(service.health))
    os.chdir(context.layout.root)
    return _become(service.command, environment_of(service))


def _become(command: tuple[str, ...], environment: dict[str, str]) -> NoReturn:
    os.execvpe(command[0], command, environment)  # noqa: S606  # a row of our own table, and no shell


def _context() -> PlatformContext:
    from pydantic import ValidationError

    from fennel_core.apps.errors import SetupFailed
    from fennel_core.apps.local.platform import load_context

    try:
        return load_context()
    except ValidationError as error:
        raise SetupFailed("\n".join(str(each["msg"]) for each in error.errors())) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(tempfile.gettempdir()) / "fennel-health.json"))
