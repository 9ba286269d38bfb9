"""What connectors of databases have in common: parameters in `jdbc_params`, and texts of errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fennel_core.connections.external_kafka import OpenSecret, secret_text
from fennel_core.wire.connectors import MySQL, Postgres


class OpenedDatabase(Protocol):
    """A database with opened credentials. `name`: of the connector."""

    @property
    def name(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def database(self) -> str: ...


def parameters_of(connector: Postgres | MySQL, open_secret: OpenSecret) -> dict[str, str]:
    """Return the parameters of a connector, as `sslmode=require&…`. Raises `SecretUnreadable`."""
    given = secret_text(connector.jdbc_params, open_secret).lstrip("?").split("&")
    return dict(part.partition("=")[::2] for part in given if part)


def unused_parameter(connector: Postgres | MySQL, name: str, values: Sequence[str]) -> str:
    """Return the error of a parameter that is not used; `name` and `values`: of the one that is."""
    return (
        f"connector `{connector.name}` has a parameter in `jdbc_params` that this platform does "
        f"not use; it uses {name}={'|'.join(values)}"
    )


def first_line(failed: BaseException) -> str:
    """Return the first line of an error's text, or its name if it has none."""
    return next(iter(str(failed).strip().splitlines()), type(failed).__name__)


def unreadable(at: OpenedDatabase, failed: BaseException) -> str:
    """Return the error of a database that cannot be reached or read, with its own first line."""
    return (
        f"connector `{at.name}`: database `{at.database}` at {at.host}:{at.port} cannot be read: "
        f"{first_line(failed)}; check address, user, password and the rights of the user"
    )
