"""What sinks write to, by name.

A kind of sink that is written has a row in `place_of`; every other kind is refused at the commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from fennel_core.wire import connectors as c

SinkTable = c.KafkaTopic | c.HttpPath | c.S3Table
"""The kinds of tables that sinks write; on S3 those of Delta Lake only (`is_written`)."""


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

    @property
    def shared(self) -> SinkPlace:
        """What sinks have in common that write the same place.

        S3 is that of the installation, so tables of connectors with two names may be the same.
        """
        return SinkPlace(self.kind, "", self.name) if self.kind == "delta" else self

    def meets(self, other: SinkPlace) -> bool:
        """Return whether two sinks would write to the same place, or a table below another one.

        VACUUM of a table deletes the files of tables below it.
        """
        if self.kind != "delta" or other.kind != "delta":
            return self == other
        one, two = f"{self.name}/", f"{other.name}/"
        return one.startswith(two) or two.startswith(one)


def is_written(table: c.Table) -> TypeGuard[SinkTable]:
    """Return whether the platform writes to the external `table`."""
    return place_of(table) is not None


def place_of(table: c.Table) -> SinkPlace | None:
    """Return the place of a sink, None for a kind that is not written."""
    match table:
        case c.KafkaTopic():
            return SinkPlace("kafka", table.db.name, table.topic)
        case c.HttpPath():
            return SinkPlace("http", table.db.name, table.endpoint.lstrip("/"))
        case c.S3Table(format="delta"):
            return SinkPlace("delta", table.db.name, f"{table.bucket}/{table.prefix.strip('/')}")
        case _:
            return None
