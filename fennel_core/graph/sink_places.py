"""What sinks write to, by name.

A kind of sink that is written has a row in `place_of`; every other kind is refused at the commit.
"""

from __future__ import annotations

from dataclasses import dataclass

from fennel_core.wire import connectors as c

SinkTable = c.KafkaTopic | c.HttpPath
"""The kinds of tables that sinks write."""


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """Where a sink writes. All three are part of its identity, so they never change their form."""

    kind: str
    connector: str
    name: str

    @property
    def title(self) -> str:
        """The place as people name it, without a credential."""
        return f"{self.connector}/{self.name}"


def place_of(table: c.Table) -> SinkPlace | None:
    """Return the place of a sink, None for a kind that is not written."""
    match table:
        case c.KafkaTopic():
            return SinkPlace("kafka", table.db.name, table.topic)
        case c.HttpPath():
            return SinkPlace("http", table.db.name, table.endpoint.lstrip("/"))
        case _:
            return None
