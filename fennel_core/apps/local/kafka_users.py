"""Kafka users of the services, for a platform whose topics are on a cluster with authentication.

With FENNEL_KAFKA_PASSWORDS_DIR, `up` starts no broker: each service connects to the cluster at
FENNEL_KAFKA_BOOTSTRAP with the user of its component, whose password it finds in a file of that
folder. `fennel-core kafka-access` writes users, rules and files.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import SecretStr

from fennel_core.apps.errors import SetupFailed
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

    It connects as the user whose password is set, else as the definition server. Raises
    SetupFailed.
    """
    assert given.kafka_passwords_dir is not None, "the platform has no broker of its own"
    if given.reach_by_name:
        raise SetupFailed(
            "FENNEL_KAFKA_PASSWORDS_DIR has no effect on containers, whose broker is a service. "
            "Unset it."
        )
    if not given.kafka_security.startswith("SASL"):
        raise SetupFailed(
            f"FENNEL_KAFKA_PASSWORDS_DIR needs users, and FENNEL_KAFKA_SECURITY is "
            f"{given.kafka_security}. Set it to SASL_SSL, or unset the folder to use the bundled "
            "broker."
        )
    settings = given.model_copy(update={"kafka_passwords_dir": root / given.kafka_passwords_dir})
    return settings if given.kafka_password.get_secret_value() else settings_of(CONTROL, settings)


def settings_of(service: str, settings: Settings) -> Settings:
    """Return the settings of a service, with its own Kafka user; raises SetupFailed."""
    folder, component = settings.kafka_passwords_dir, COMPONENT_OF.get(service)
    if folder is None or component is None:
        return settings
    from fennel_core.ledger.kafka_access import user_of

    user = user_of(component)
    file = folder / user
    try:
        password = file.read_text().strip()
    except OSError as error:
        raise SetupFailed(
            f"the password of Kafka's user `{user}` cannot be read ({error.strerror}: {file}). "
            f"Run `fennel-core kafka-access --passwords {folder} WORKSPACE`."
        ) from error
    return settings.model_copy(update={"kafka_user": user, "kafka_password": SecretStr(password)})
