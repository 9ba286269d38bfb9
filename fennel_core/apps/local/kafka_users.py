"""Kafka users of the services, for a platform whose topics are on a cluster with authentication.

With FENNEL_KAFKA_PASSWORDS_DIR, `up` starts no broker: each service connects to the cluster at
FENNEL_KAFKA_BOOTSTRAP with the user of its component, whose password it finds in a file of that
folder. `fennel-core kafka-access` writes users, rules and files.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import SecretStr

from fennel_core.settings.model import Settings

CONTROL: Final = "definition"
COMPONENT_OF: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{name: name for name in ("ingest", "engine", "query", "history", "sources", CONTROL)},
        # Its tasks are the steps of commits, snapshots and offline queries.
        "airflow-scheduler": CONTROL,
    }
)
"""Service to component of `ledger.kafka_access.ACCESS`. All other services use no topic."""


def on_cluster(given: Settings, root: Path) -> Settings:
    """Return the settings of a process of the operator: commands, and the file `env`.

    It connects as the user whose password is set, else as the definition server.
    """
    assert given.kafka_passwords_dir is not None, "the platform has no broker of its own"
    settings = given.model_copy(update={"kafka_passwords_dir": root / given.kafka_passwords_dir})
    return settings if given.kafka_password.get_secret_value() else settings_of(CONTROL, settings)


def settings_of(service: str, settings: Settings) -> Settings:
    """Return the settings of a service: with its own Kafka user, or with none.

    The password is empty if its file cannot be read, which `problems` reports.
    """
    file = _file_of(service, settings)
    user, password = ("", "") if file is None else (file.name, _password(file)[0])
    return settings.model_copy(update={"kafka_user": user, "kafka_password": SecretStr(password)})


def problems(settings: Settings, services: Iterable[str]) -> Iterator[str]:
    """Yield why commands and these services cannot use the cluster; none without a cluster."""
    if settings.kafka_passwords_dir is None:
        return
    if settings.reach_by_name:
        yield (
            "FENNEL_KAFKA_PASSWORDS_DIR has no effect on containers, whose broker is a service. "
            "Unset it."
        )
        return
    if not settings.kafka_security.startswith("SASL"):
        yield (
            f"FENNEL_KAFKA_PASSWORDS_DIR needs users, and FENNEL_KAFKA_SECURITY is "
            f"{settings.kafka_security}. Set it to SASL_SSL, or unset the folder to use the "
            "bundled broker."
        )
    own = () if settings.kafka_password.get_secret_value() else (CONTROL,)
    missing = (missing_password(service, settings) for service in (*own, *services))
    yield from dict.fromkeys(each for each in missing if each is not None)


def missing_password(service: str, settings: Settings) -> str | None:
    """Return why the password of a service's Kafka user cannot be read, and what to do."""
    file = _file_of(service, settings)
    if file is None or (reason := _password(file)[1]) is None:
        return None
    return (
        f"the password of Kafka's user `{file.name}` cannot be read ({reason}: {file}). "
        f"Run `fennel-core kafka-access --passwords {file.parent} WORKSPACE…`, with every "
        "workspace and as an administrator of the cluster."
    )


def _file_of(service: str, settings: Settings) -> Path | None:
    """Return the file with the password of a service's Kafka user; None if it has no user."""
    folder, component = settings.kafka_passwords_dir, COMPONENT_OF.get(service)
    if folder is None or component is None:
        return None
    from fennel_core.ledger.kafka_access import user_of

    return folder / user_of(component)


def _password(file: Path) -> tuple[str, str | None]:
    """Return the password in a file, or why there is none."""
    try:
        found = file.read_text().strip()
    except OSError as error:
        return "", error.strerror
    return found, None if found else "it is empty"
