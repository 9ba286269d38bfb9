"""The error of a connector that is only named where its address is needed."""

from __future__ import annotations

from shlex import quote
from typing import ClassVar, TypeVar

from fennel_core.connections.errors import ConnectionsError
from fennel_core.wire.connectors import Database, NamedReference

D = TypeVar("D", bound=Database)


class ConnectorNotStored(ConnectionsError):
    """A definition names a connector that the platform does not store any more."""

    code: ClassVar[str] = "connector-not-stored"


def required(kind: type[D], database: D | NamedReference) -> D:
    """Return a connector with its address. Raises `ConnectorNotStored`.

    A commit is refused unless the platform stores what it names, and what is in use is not removed;
    a restored database may still lack it.
    """
    if isinstance(database, kind):
        return database
    title = database.kind if isinstance(database, NamedReference) else "KIND"
    raise ConnectorNotStored(
        f"connector `{database.name}` is not stored on this platform any more; add it again: "
        f"fennel-core connector add {quote(database.name)} {title} --set …"
    )
