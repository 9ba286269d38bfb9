"""Delta tables of users on a local disk, written by delta-rs, for readers of changes."""

from __future__ import annotations

import datetime as dt
import io
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from fennel_core.connections.delta_log import FEED, table_files, table_head
from fennel_core.sources.delta_changes import DeltaStore

SCHEMA = pa.schema([("user", pa.string()), ("age", pa.int32()), ("at", pa.timestamp("us", "UTC"))])
LATER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
"""Times of rows: later than those of commits, so that a row may come back after a delete."""


def local_store(path: Path) -> DeltaStore:
    """Return the store of a table in a folder."""

    def commit(version: int) -> tuple[bytes, int] | None:
        file = path / "_delta_log" / f"{version:020}.json"
        return (file.read_bytes(), int(file.stat().st_mtime * 1e6)) if file.exists() else None

    def body(name: str) -> io.RawIOBase | None:
        return io.FileIO(path / name) if (path / name).exists() else None

    return DeltaStore(
        "Delta table `t`",
        lambda: table_head(DeltaTable(path)),
        lambda version: table_files(DeltaTable(path, version=version)),
        commit,
        body,
    )


@dataclass
class UserTable:
    """A table of users, and what its rows must be. Each change has a later time than the last."""

    path: Path
    partitioned: bool = False
    rows: dict[str, tuple[int, dt.datetime]] = field(default_factory=dict)
    changes: int = 0

    def __post_init__(self) -> None:
        write_deltalake(
            self.path,
            SCHEMA.empty_table(),
            partition_by=["user"] if self.partitioned else None,
            configuration={FEED: "true"},
        )

    @property
    def table_id(self) -> str:
        return str(DeltaTable(self.path).metadata().id)

    def store(self) -> DeltaStore:
        return local_store(self.path)

    def content(self) -> dict[str, int]:
        return {user: age for user, (age, _) in self.rows.items()}

    def put(self, users: set[str]) -> None:
        """Insert or update users by a merge."""
        source = self._new(users)
        (
            DeltaTable(self.path)
            .merge(source, "s.user = t.user", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    def append(self, users: set[str]) -> None:
        """Add users that are not there."""
        new = users - self.rows.keys()
        if new:
            write_deltalake(self.path, self._new(new), mode="append")

    def delete(self, users: set[str]) -> None:
        named = ", ".join(f"'{user}'" for user in sorted(users))
        DeltaTable(self.path).delete(f"user IN ({named})")
        self.rows = {user: row for user, row in self.rows.items() if user not in users}

    def overwrite(self, users: set[str], kept: set[str]) -> None:
        """Write the table again: with new rows, and those of `kept` as they were."""
        old = {user: row for user, row in self.rows.items() if user in kept - users}
        new = self._new(users)
        self.rows = {user: self.rows[user] for user in users} | old
        rows = pa.concat_tables([new, _table(old)])
        write_deltalake(self.path, rows, mode="overwrite")

    def optimize(self) -> None:
        DeltaTable(self.path).optimize.compact()

    def checkpoint(self) -> None:
        DeltaTable(self.path).create_checkpoint()

    def _new(self, users: set[str]) -> pa.Table:
        found = {}
        for user in sorted(users):
            self.changes += 1
            found[user] = (self.changes, LATER + dt.timedelta(seconds=self.changes))
        self.rows |= found
        return _table(found)


def _table(rows: dict[str, tuple[int, dt.datetime]]) -> pa.Table:
    return pa.table(
        [list(rows), [age for age, _ in rows.values()], [at for _, at in rows.values()]],
        schema=SCHEMA,
    )
