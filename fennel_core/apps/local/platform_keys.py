"""Passwords and keys of the local platform, generated once into files with mode 0600.

They are random and never shipped, so two installations share no key. Losing a file means losing
access to the data it protects, which is why `clean` deletes both together. In a container the
folder has only what its service needs (`grant_keys`).
"""

import base64
import hashlib
import os
import secrets
from collections.abc import Set
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True, repr=False)
class PlatformKeys:
    """One attribute per file of the secrets folder; never printed.

    A key that was not granted to this container is empty. `admin_token_sha256`: set only in such a
    container, in place of the administrator's token.
    """

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
    admin_token_sha256: str = ""


KEY_NAMES: Final = frozenset(
    field.name for field in fields(PlatformKeys) if field.default is MISSING
)
_ADMIN_DIGEST: Final = "admin_token_sha256"
_GRANTED: Final = "granted"
"""The file that marks a folder with the keys of one service; it lists them."""


def load_keys(folder: Path) -> PlatformKeys:
    """Return all keys, generating the missing ones, or those that were granted to this container.

    Raises OSError if a key is missing and the folder is not writable.
    """
    marker = folder / _GRANTED
    if not marker.exists():
        return ensure_keys(folder)
    granted = dict.fromkeys(KEY_NAMES, "") | {
        name: _read(folder / name) for name in marker.read_text().split()
    }
    return PlatformKeys(**granted)


def ensure_keys(folder: Path) -> PlatformKeys:
    """Read each key, generating the missing ones; raises OSError if the folder is not writable."""
    return PlatformKeys(**{name: _ensure(folder / name) for name in KEY_NAMES})


def grant_keys(secrets_folder: Path, names: Set[str], folder: Path) -> None:
    """Make `folder` contain the named keys, the digest of the administrator's token, nothing else.

    Copies the files, because an operator may have added lines, as for a change of a key. The marker
    comes first: a folder without it would be read as one to generate keys in.
    """
    contents = {name: (secrets_folder / name).read_text() for name in names & KEY_NAMES}
    token = _read(secrets_folder / "admin_token")
    contents[_ADMIN_DIGEST] = hashlib.sha256(token.encode()).hexdigest()
    _replace(folder / _GRANTED, "\n".join(sorted(contents)))
    for name, content in contents.items():
        _replace(folder / name, content)
    for path in folder.iterdir():
        if path.name not in {_GRANTED, *contents}:
            path.unlink()


def _replace(path: Path, content: str) -> None:
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    new.replace(path)


def _read(path: Path) -> str:
    value = path.read_text().strip()
    assert value, (
        f"{path} is empty: delete it together with the data it protects (`fennel-core clean`)"
    )
    return value


def _ensure(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(path)
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
