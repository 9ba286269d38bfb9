"""Passwords and keys of the local platform, generated once into files with mode 0600.

They are random and never shipped, so two installations share no key. Losing a file means losing
access to the data it protects, which is why `clean` deletes both together.
"""

import base64
import os
import secrets
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True, repr=False)
class PlatformKeys:
    """One attribute per file of the secrets folder; never printed."""

    postgres_password: str
    airflow_database_password: str
    airflow_password: str
    airflow_fernet_key: str
    airflow_jwt_secret: str
    airflow_session_secret: str
    s3_secret_key: str
    admin_token: str
    kafka_cluster_id: str
    users_secrets_key: str


def ensure_keys(folder: Path) -> PlatformKeys:
    """Read each key, generating the missing ones; raises OSError if the folder is not writable."""
    return PlatformKeys(
        **{field.name: _ensure(folder / field.name) for field in fields(PlatformKeys)}
    )


def _ensure(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        value = path.read_text().strip()
        assert value, (
            f"{path} is empty: delete it together with the data it protects (`fennel-core clean`)"
        )
        return value
    value = _generate(path.name)
    with os.fdopen(descriptor, "w") as file:
        file.write(value)
    return value


def _generate(name: str) -> str:
    match name:
        case "airflow_fernet_key" | "users_secrets_key":
            return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
        case "kafka_cluster_id":
            # A leading dash would read as an option on the command line of Kafka's own tools.
            return base64.urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).decode().rstrip("=")
        case "airflow_jwt_secret":
            return secrets.token_urlsafe(64)  # SHA-512 needs a key as long as its digest
        case "airflow_password":
            return secrets.token_urlsafe(12)  # people type this one
        case _:
            return secrets.token_urlsafe(32)
