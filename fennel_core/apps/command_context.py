"""What the commands share: the platform of this machine, and the end with a message."""

import sys
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from fennel_core.apps.local.services import Service
    from fennel_core.apps.local.setup_steps import PlatformContext


def names_of(only: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in repeated options, each of which may list several with commas."""
    return tuple(name for word in only for name in word.split(",") if name)


def select(
    names: tuple[str, ...], *, kafka: bool = False
) -> "tuple[PlatformContext, tuple[Service, ...]]":
    """Return this platform and the named services; exits with a message if that is impossible.

    `kafka`: the command connects to Kafka, so its user must have a password.
    """
    from pydantic import ValidationError

    from fennel_core.apps.errors import AppsError
    from fennel_core.apps.local.kafka_users import problems
    from fennel_core.apps.local.launch_plan import select_services
    from fennel_core.apps.local.platform import load_context
    from fennel_core.apps.local.services import service_table

    try:
        context = load_context()
        if kafka and (missing := list(problems(context.settings, ()))):
            fail("\n".join(missing))
        return context, select_services(service_table(context), names)
    except ValidationError as error:
        fail(
            "\n".join(
                f"FENNEL_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}"
                if e["loc"]
                else e["msg"]
                for e in error.errors()
            )
        )
    except AppsError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.strerror}: {error.filename}")


def fail(message: str) -> NoReturn:
    """Print the message and exit with status 1."""
    click.secho(message, fg="red", err=True)
    sys.exit(1)
