"""Apply the numbered SQL files of the database schema, once each, in order.

`migrations/NNNN_name.sql` are the history of the schema and are never edited after a release. Each
applied file is recorded with its checksum, and a file that differs from the applied one stops the
start-up, so that two installations never have different schemas under one number. Each file runs in
one transaction together with its record, so a crash never applies part of a file, and an advisory
lock lets any number of processes that start together apply it once. Why SQL and not Alembic's
Python: `docs/decisions/0005-migrations-are-numbered-sql.md`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import psycopg

from fennel_core.connections.errors import ConnectionsError

FOLDER: Final = Path(__file__).parent / "migrations"
LOCK_KEY: Final = 0x66656E6E656C
"""`fennel` in ASCII: the number of the advisory lock, the same in every process."""
_NAME: Final = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")
_BOOKKEEPING: Final = """
CREATE TABLE IF NOT EXISTS migration (
    number      integer PRIMARY KEY,
    name        text NOT NULL,
    sha256      text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
)"""


class MigrationMismatch(ConnectionsError):
    """The migration files and the database disagree; the text names the file and the remedy."""

    code: ClassVar[str] = "migration-mismatch"


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration file."""

    number: int
    name: str
    statements: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.statements.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Applied:
    """One row of the table `migration`."""

    number: int
    name: str
    sha256: str


def read(folder: Path = FOLDER) -> tuple[Migration, ...]:
    """Return the files of `folder` by number.

    Raises `MigrationMismatch` for a malformed name, or a number used twice or skipped.
    """
    found = []
    for path in sorted(folder.glob("*.sql")):
        match = _NAME.match(path.name)
        if match is None:
            raise MigrationMismatch(f"{path.name} is not a migration; rename it to NNNN_name.sql")
        found.append(Migration(int(match[1]), match[2], path.read_text(encoding="utf-8")))
    for expected, migration in enumerate(found, start=1):
        if migration.number != expected:
            raise MigrationMismatch(
                f"migration {migration.number:04d}_{migration.name} should have the number "
                f"{expected:04d}: numbers start at 1 without gaps"
            )
    return tuple(found)


def pending(files: Sequence[Migration], applied: Sequence[Applied]) -> tuple[Migration, ...]:
    """Return the files that the database lacks, in order.

    Raises `MigrationMismatch` when the applied files are not a prefix of `files`.
    """
    for row in applied:
        if row.number > len(files):
            raise MigrationMismatch(
                f"the database has migration {row.number:04d}_{row.name}, which this release "
                "does not know; run the newer release"
            )
        if files[row.number - 1].sha256 != row.sha256:
            raise MigrationMismatch(
                f"the database was created by another, unreleased version (migration "
                f"{row.number:04d}_{row.name} differs): run `make clean` to delete its data and "
                "start again"
            )
    if [row.number for row in applied] != list(range(1, len(applied) + 1)):
        raise MigrationMismatch(
            "the table `migration` has a gap; restore the row of the missing number"
        )
    return tuple(files[len(applied) :])


def apply(
    connection: psycopg.Connection[tuple[object, ...]], files: Sequence[Migration]
) -> tuple[Migration, ...]:
    """Apply the missing migrations over an autocommit connection and return them.

    Waits for other processes that are applying. Raises `MigrationMismatch`, or the error of the
    database; files before the failed one stay applied.
    """
    connection.execute("SET statement_timeout = 0")
    connection.execute("SET lock_timeout = 0")
    connection.execute("SELECT pg_advisory_lock(%s)", (LOCK_KEY,))
    try:
        connection.execute(_BOOKKEEPING)
        rows = connection.execute(
            "SELECT number, name, sha256 FROM migration ORDER BY number"
        ).fetchall()
        missing = pending(
            files,
            [Applied(int(str(number)), str(name), str(sha256)) for number, name, sha256 in rows],
        )
        for migration in missing:
            with connection.transaction():
                connection.execute(migration.statements.encode())
                connection.execute(
                    "INSERT INTO migration (number, name, sha256) VALUES (%s, %s, %s)",
                    (migration.number, migration.name, migration.sha256),
                )
        return missing
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (LOCK_KEY,))
