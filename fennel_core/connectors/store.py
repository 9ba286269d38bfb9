"""The stored connectors: the interface, and its in-memory implementation.

A connector belongs to one workspace: tokens of another cannot name it, and its secrets, sealed
under the workspace's name, do not open there. Each change names the number of the row that it was
made from, so two changes at once do not mix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

from fennel_core.connectors.references import Access
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.decode_connectors import decode_database
from fennel_core.wire.gen import connector_pb2

EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class StoredConnector:
    """One connector as it is stored.

    `message`: an ExtDatabase of the protocol, its secrets sealed.
    """

    workspace: WorkspaceId
    name: str
    message: bytes = field(repr=False)
    number: int
    """Of its changes, from 1."""
    changed_at: datetime
    changed_by: str

    @property
    def database(self) -> Access:
        """The connector as definitions have it."""
        found = decode_database(connector_pb2.ExtDatabase.FromString(self.message))
        assert isinstance(found, Access), "only these kinds are stored"
        return found


class ConnectorStore(Protocol):
    """Stored connectors. Every method raises `SystemUnavailable`."""

    async def all(self) -> Sequence[StoredConnector]:
        """Return those of every workspace."""
        ...

    async def of(self, workspace: WorkspaceId) -> Mapping[str, StoredConnector]:
        """Return those of a workspace by name."""
        ...

    async def put(
        self, workspace: WorkspaceId, name: str, message: bytes, by: str, before: int
    ) -> bool:
        """Store a connector; return False if it has not the number `before` (0: is not there)."""
        ...

    async def remove(self, workspace: WorkspaceId, name: str, before: int) -> bool:
        """Remove a connector; return False if it has not the number `before`."""
        ...


def connectors_of(stored: Mapping[str, StoredConnector]) -> dict[str, Access]:
    """Return stored connectors as definitions have them."""
    return {name: each.database for name, each in stored.items()}


@dataclass(slots=True)
class MemoryConnectorStore:
    """In-memory `ConnectorStore`; `now` is its clock, which stands still by default."""

    now: Callable[[], datetime] = lambda: EPOCH
    rows: dict[tuple[WorkspaceId, str], StoredConnector] = field(default_factory=dict)

    async def all(self) -> Sequence[StoredConnector]:
        return [self.rows[key] for key in sorted(self.rows)]

    async def of(self, workspace: WorkspaceId) -> Mapping[str, StoredConnector]:
        return {each.name: each for each in await self.all() if each.workspace == workspace}

    async def put(
        self, workspace: WorkspaceId, name: str, message: bytes, by: str, before: int
    ) -> bool:
        row = self.rows.get((workspace, name))
        if (0 if row is None else row.number) != before:
            return False
        new = StoredConnector(workspace, name, message, before + 1, self.now(), by)
        self.rows[workspace, name] = new
        return True

    async def remove(self, workspace: WorkspaceId, name: str, before: int) -> bool:
        row = self.rows.get((workspace, name))
        if row is None or row.number != before:
            return False
        del self.rows[workspace, name]
        return True
