"""Entry point of the containers of `docker-compose.yml`: one row of the service table each.

    python -m fennel_core.apps.container keys
        Generate missing keys, give each service its own, exit.
    python -m fennel_core.apps.container prepare STEP ...
        Run setup steps, exit.
    python -m fennel_core.apps.container run SERVICE
        Run the setup steps of the service, then replace this process by it.
    python -m fennel_core.apps.container healthy
        Health check: exits with 0 and no output, or with 1 and the problem.

Commands, configuration files and environments come from the table that `make up` uses, so that
containers cannot drift from the local platform; order, volumes and networks are left to the compose
file. `run` uses exec, so that signals reach the service. It writes the readiness check to a file,
because building the service table takes a second of processor time, too much for each check.
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

USAGE: Final = (
    "usage: python -m fennel_core.apps.container keys | prepare STEP ... | run SERVICE | healthy"
)
GRANTS: Final = "grants"
"""The folder of the data folder in which each service's volume of keys is mounted."""


def main(words: list[str], check_file: Path) -> int | str:
    """Return the exit status, or an error message. `check_file`: holds the readiness check."""
    match words:
        case ["keys"]:
            return keys()
        case ["prepare", _, *_]:
            return prepare(words[1:])
        case ["run", name]:
            return run(name, check_file)
        case ["healthy"]:
            return healthy(check_file)
        case _:
            return USAGE


def healthy(check_file: Path) -> int | str:
    """Perform the check that `run` wrote; the file's age is the service's age."""
    try:
        readiness, began_s = from_json(check_file.read_text()), check_file.stat().st_mtime
    except FileNotFoundError:
        return "its setup steps are running"
    return check_readiness(readiness, datetime.fromtimestamp(began_s, UTC)) or 0


def keys() -> int | str:
    """Generate missing keys, and copy to each service's volume those that it needs."""
    from fennel_core.apps.errors import SetupFailed
    from fennel_core.apps.local.platform_keys import grant_keys
    from fennel_core.apps.local.services import WITH_KEYS, keys_of

    try:
        layout = _context().layout
    except SetupFailed as error:
        return str(error)
    for service in sorted(WITH_KEYS):
        grant_keys(layout.secrets, keys_of(service), layout.data / GRANTS / service)
    return 0


def prepare(names: list[str]) -> int | str:
    """Run setup steps by name (as `make-bucket`) in the order given."""
    from fennel_core.apps.errors import SetupFailed
    from fennel_core.apps.local.setup_steps import SetupStep, run_setup_step

    known = {step.name.lower().replace("_", "-"): step for step in SetupStep}
    if unknown := [name for name in names if name not in known]:
        return f"unknown step `{', '.join(unknown)}`; valid steps: {', '.join(known)}"
    try:
        context = _context()
        for name in names:
            print(known[name].value, flush=True)
            run_setup_step(known[name], context)
    except SetupFailed as error:
        return str(error)
    return 0


def run(name: str, check_file: Path) -> str:
    """Replace this process by the service; returns an error message if that is impossible."""
    from fennel_core.apps.errors import SetupFailed
    from fennel_core.apps.local.launcher import environment_of
    from fennel_core.apps.local.services import service_table
    from fennel_core.apps.local.setup_steps import run_setup_step

    check_file.unlink(missing_ok=True)  # left over from before a restart
    try:
        context = _context()
        services = {service.name: service for service in service_table(context)}
        if name not in services:
            return f"unknown service `{name}`; valid services: {', '.join(services)}"
        service = services[name]
        for step in service.before:
            run_setup_step(step, context)
    except SetupFailed as error:
        return str(error)
    descriptor = os.open(check_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(to_json(service.readiness))
    os.chdir(context.layout.root)
    os.umask(service.umask)
    return _become(service.command, environment_of(service))


def _become(command: tuple[str, ...], environment: dict[str, str]) -> NoReturn:
    os.execvpe(command[0], command, environment)  # noqa: S606  # a row of our own table, and no shell


def _context() -> PlatformContext:
    from pydantic import ValidationError

    from fennel_core.apps.errors import SetupFailed
    from fennel_core.apps.local.kafka_users import problems
    from fennel_core.apps.local.platform import load_context

    try:
        context = load_context()
    except ValidationError as error:
        raise SetupFailed("\n".join(str(each["msg"]) for each in error.errors())) from error
    if refused := list(problems(context.settings, ())):
        raise SetupFailed("\n".join(refused))
    return context


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(tempfile.gettempdir()) / "fennel-health.json"))
