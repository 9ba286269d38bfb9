"""The database in a backup: every table as `COPY` text, and the sequences.

Theory. Only data are saved. The schema is that of the migrations that the database had: a restore
applies the same ones, fills the tables, and the next start applies later ones, as an upgrade does.
Everything is read in one transaction and written in one, which is the moment at which a restore
takes effect. Nothing depends on the version of Postgres or of its client programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from graphlib import TopologicalSorter
from typing import Final, LiteralString, cast

import psycopg
from psycopg import sql

from fennel_core.apps.backup.manifest import BackupManifest, SavedSequence, SavedTable
from fennel_core.apps.errors import BackupFailed, RestoreFailed
from fennel_core.connections import migrate
from fennel_core.connections.migrate import Applied
from fennel_core.vocab.ids import InstallationId

Connection = psycopg.Connection[tuple[object, ...]]
BOOKKEEPING: Final = "migration"
"""Written by the migrations themselves."""
PART: Final = "postgres"
READERS: Final = ("fennel-read", "fennel-airflow-page", "fennel-backup", "audit")
"""Sessions of programs that only read. Not query servers: they log queries and audit events."""
_TABLES: Final = """
    SELECT c.relname::text, array_agg(a.attname::text ORDER BY a.attnum)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0
        AND NOT a.attisdropped AND a.attgenerated = ''
    GROUP BY c.relname ORDER BY c.relname
"""
_REFERENCES: Final = """
    SELECT conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint
    WHERE contype = 'f' AND connamespace = 'public'::regnamespace AND conrelid <> confrelid
"""
_SEQUENCES: Final = """
    SELECT c.relname::text, s.seqmin, s.seqmax, s.seqstart FROM pg_sequence s
    JOIN pg_class c ON c.oid = s.seqrelid
    WHERE c.relnamespace = 'public'::regnamespace ORDER BY c.relname
"""
_WRITERS: Final = """
    SELECT DISTINCT application_name FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND (application_name LIKE 'fennel-%%' OR application_name LIKE 'slot-%%'
             OR application_name = ANY(%s))
    ORDER BY 1
"""
_PROGRAMS: Final = (
    *("engine", "history", "snapshots", "drills", "drill", "retention", "integrity"),
)
EMPTY_TABLES: Final = (
    *("workspace", "token", "commit", "branch", "asset", "job", "secret", "snapshot"),
    *("history_file", "backfill", "erasure", "audit_event"),
)
"""Tables without rows in an installation that nothing was done with."""


def require_no_writers(connection: Connection) -> None:
    """Check that no server writes; raises BackupFailed, which names their sessions."""
    # Within a transaction, Postgres shows the sessions of the first look at every later one.
    connection.execute("SELECT pg_stat_clear_snapshot()")
    names = [
        str(name)
        for (name,) in connection.execute(_WRITERS, (list(_PROGRAMS),)).fetchall()
        if not str(name).startswith(READERS)
    ]
    if names:
        raise BackupFailed(
            f"servers are connected to the database ({', '.join(names)}): a backup needs stores "
            "that do not change; stop all but Postgres, Kafka and S3 (`fennel-core down`, then "
            "`fennel-core up --only postgres,kafka,s3`)"
        )


def require_current_schema(connection: Connection) -> None:
    """Check that this version has migrated the database; raises BackupFailed."""
    there = connection.execute("SELECT to_regclass('public.migration')").fetchone()
    applied = () if there is None or there[0] is None else applied_migrations(connection)
    if migrate.pending(migrate.read(), applied):
        raise BackupFailed(
            "the database has the schema of an earlier version: start this version once "
            "(`fennel-core up`), or take the backup with that version"
        )


def installation_id(connection: Connection) -> InstallationId:
    """Return the id of the installation that the database belongs to."""
    row = connection.execute("SELECT id FROM installation").fetchone()
    assert row is not None, "the migration inserts the only row"
    return InstallationId(str(row[0]))


def applied_migrations(connection: Connection) -> tuple[Applied, ...]:
    """Return the migrations that the database has."""
    rows = connection.execute("SELECT number, name, sha256 FROM migration ORDER BY number")
    return tuple(Applied(cast(int, n), str(name), str(sha)) for n, name, sha in rows.fetchall())


def save_tables(
    connection: Connection, add_stream: Callable[[str, Iterator[bytes]], None]
) -> tuple[SavedTable, ...]:
    """Save the rows of every table, in an order in which they can be inserted."""
    columns = {
        str(name): tuple(cast(list[str], listed))
        for name, listed in connection.execute(_TABLES).fetchall()
        if name != BOOKKEEPING
    }
    references: dict[str, set[str]] = {name: set() for name in columns}
    for source, target in connection.execute(_REFERENCES).fetchall():
        references[str(source)].add(str(target))
    saved = []
    for name in TopologicalSorter(references).static_order():
        count = connection.execute(
            sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name))
        ).fetchone()
        assert count is not None, "an aggregate returns one row"
        add_stream(f"{PART}/{name}", _copy_out(connection, name, columns[name]))
        saved.append(SavedTable(name, columns[name], cast(int, count[0])))
    return tuple(saved)


def _copy_out(connection: Connection, table: str, columns: Sequence[str]) -> Iterator[bytes]:
    statement = sql.SQL("COPY {} ({}) TO STDOUT").format(sql.Identifier(table), _listed(columns))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for block in copy:
            yield bytes(block)


def save_sequences(connection: Connection) -> tuple[SavedSequence, ...]:
    """Return every sequence."""
    saved = []
    for name, minimum, maximum, start in connection.execute(_SEQUENCES).fetchall():
        row = connection.execute(
            sql.SQL("SELECT last_value, is_called FROM {}").format(sql.Identifier(str(name)))
        ).fetchone()
        assert row is not None, "a sequence has one row"
        numbers = cast(tuple[int, int, int], (minimum, maximum, start))
        saved.append(SavedSequence(str(name), *numbers, cast(int, row[0]), cast(bool, row[1])))
    return tuple(saved)


def require_empty(connection: Connection) -> None:
    """Check that nothing was done with this installation; raises RestoreFailed."""
    there = {str(name) for name, _ in connection.execute(_TABLES).fetchall()}
    used = [
        name
        for name in EMPTY_TABLES
        if name in there
        and connection.execute(
            sql.SQL("SELECT 1 FROM {} LIMIT 1").format(sql.Identifier(name))
        ).fetchone()
    ]
    foreign = sorted(there - {BOOKKEEPING}) if BOOKKEEPING not in there else []
    if used or foreign:
        raise RestoreFailed(
            f"the database is not empty (rows in {', '.join(used or foreign)}): restore into a "
            "new installation; `fennel-core clean` deletes a local one"
        )


def load(
    connection: Connection,
    manifest: BackupManifest,
    stream: Callable[[SavedTable], Iterator[bytes]],
) -> None:
    """Replace the schema of an empty installation by the saved one with its rows, and upgrade it.

    The caller holds a transaction, so a failure changes nothing. Raises RestoreFailed.
    """
    # Migrations change rows, too, so the saved rows need the schema that they were saved from.
    connection.execute("DROP SCHEMA public CASCADE")
    connection.execute("CREATE SCHEMA public")
    migrate.apply(connection, migrate.read()[: len(manifest.migrations)])
    tables = manifest.tables
    for table in reversed(tables):
        # Rows that migrations insert. Never the audit log, which is empty and refuses deletions.
        if table.name not in EMPTY_TABLES:
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table.name)))
    for table in tables:
        _copy_in(connection, table, stream(table))
    for sequence in manifest.sequences:
        _set_sequence(connection, sequence)
    migrate.apply(connection, migrate.read())
    # The topic of the audit log is not restored: the definition server writes it again from here.
    connection.execute("UPDATE audit_export SET exported = 0")


def _copy_in(connection: Connection, table: SavedTable, content: Iterable[bytes]) -> None:
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table.name), _listed(table.columns)
    )
    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for chunk in content:
                copy.write(chunk)
        if cursor.rowcount != table.rows:
            raise RestoreFailed(
                f"table `{table.name}` has {cursor.rowcount} rows in the files of the backup and "
                f"{table.rows} in its manifest: use another copy of the backup"
            )


def _set_sequence(connection: Connection, sequence: SavedSequence) -> None:
    # The minimum of `asset_incarnation` is the time of installation, that of the new one later.
    connection.execute(
        sql.SQL("ALTER SEQUENCE {} MINVALUE {} MAXVALUE {} START WITH {} RESTART WITH {}").format(
            sql.Identifier(sequence.name),
            sql.Literal(sequence.minimum),
            sql.Literal(sequence.maximum),
            sql.Literal(sequence.start),
            sql.Literal(sequence.last_value),
        )
    )
    text: LiteralString = "SELECT setval(%s::regclass, %s, %s)"
    connection.execute(text, (f'public."{sequence.name}"', sequence.last_value, sequence.is_called))


def _listed(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
