"""Check the tables that a commit reads: reach them, and compare their columns with the datasets.

A column must be of a kind whose values fit the field, else every row would become a dead letter;
single values may still not fit. Fields that preproc makes are not compared. A table is read once
for all its sources, so they agree on the address and on the cursor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from psycopg import sql

from fennel_core.blueprints.spec import Catalog
from fennel_core.connections import external_mysql, secrets
from fennel_core.connections.external_kafka import OpenSecret
from fennel_core.connections.external_mysql import ExternalMySQLUnusable
from fennel_core.connections.external_postgres import (
    OWN_PREFIX,
    CursorKind,
    ExternalColumn,
    ExternalPostgresUnusable,
    ExternalTable,
    cursor_kind,
    describe_table,
    opened,
    served_columns,
    transaction_clock,
    without_index,
)
from fennel_core.connections.secrets import Sealer
from fennel_core.connections.spark import mysql_jars
from fennel_core.definition.errors import SecretsNotConfigured
from fennel_core.definition.external_checks import REACHED_S, answers
from fennel_core.graph.entity_graph import Graph
from fennel_core.settings.model import Settings
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype
from fennel_core.vocab.ids import BranchName, WorkspaceId
from fennel_core.vocab.problems import Problem
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import (
    MySQL,
    MySQLTable,
    Postgres,
    PostgresTable,
    SealedSecret,
    Source,
)

DatabaseTable = PostgresTable | MySQLTable


@dataclass(frozen=True, slots=True)
class AddedTable:
    """A source of a table that a commit adds or changes, and the schema of its dataset.

    `beside`: all sources of the same table in the branch, this one too.
    """

    source: Source
    table: DatabaseTable
    schema: Schema
    beside: tuple[Source, ...]


def added_tables(graph: Graph, before: Sequence[Source]) -> list[AddedTable]:
    """Return the tables of a valid `graph` that are not in `before`, the branch's version."""
    found = []
    for source in graph.sources:
        table, dataset = source.table, graph.dataset(source.dataset)
        if source in before or not isinstance(table, DatabaseTable):
            continue
        assert dataset is not None, "a valid source has a dataset"
        beside = tuple(each for each in graph.sources if _same(each, table))
        found.append(AddedTable(source, table, dataset.schema, beside))
    return found


async def table_problems(
    added: Sequence[AddedTable],
    others: Mapping[BranchName, Catalog],
    workspace: WorkspaceId,
    sealer: Sealer | None,
    settings: Settings | None = None,
) -> tuple[Problem, ...]:
    """Return a problem for each table that cannot be read, or not into its dataset.

    `others`: the catalogs of the workspace's other branches.
    """
    found = [problem for each in added for problem in _disagreements(each, others)]
    places: dict[object, list[AddedTable]] = {}
    for each in added:
        places.setdefault(each.table.db, []).append(each)
    asked = [partial(_unreadable_of, each, workspace, sealer, settings) for each in places.values()]
    for tables, problems in zip(places.values(), await answers(asked), strict=True):
        found += [_not_answered(each) for each in tables] if problems is None else problems
    return tuple(found)


def _not_answered(added: AddedTable) -> Problem:
    text = (
        f"Dataset `{added.source.dataset}`: table `{added.table.table}` of connector "
        f"`{added.table.db.name}` was not checked in {REACHED_S:.0f} s; check the address of the "
        "connector, and commit again"
    )
    return Problem("source-unreachable", added.source.dataset, text)


def _unreadable_of(
    tables: Sequence[AddedTable],
    workspace: WorkspaceId,
    sealer: Sealer | None,
    settings: Settings | None,
) -> list[Problem]:
    """Return the problems of the tables of one database, which are asked one after the other."""
    return [
        problem for each in tables for problem in _unreadable(each, workspace, sealer, settings)
    ]


def _same(source: Source, table: DatabaseTable) -> bool:
    other = source.table
    return (
        isinstance(other, type(table))
        and other.db.name == table.db.name
        and other.table == table.table
    )


def _disagreements(added: AddedTable, others: Mapping[BranchName, Catalog]) -> Iterator[Problem]:
    uses = [("this commit", source) for source in added.beside]
    for branch, catalog in others.items():
        uses += [
            (f"branch `{branch}`", each.source)
            for each in catalog.sources
            if _same(each.source, added.table)
        ]
    own = _place(added.source)
    for where, use in uses:
        if _place(use) != own:
            text = (
                f"Dataset `{added.source.dataset}`: table `{added.table.table}` of connector "
                f"`{added.table.db.name}` is read at {own}, and in {where} at {_place(use)}; it is "
                "read once for all, so give it the same address and cursor, or another name"
            )
            yield Problem("connector-redefined", added.source.dataset, text)
            return


def _place(source: Source) -> str:
    table = source.table
    assert isinstance(table, DatabaseTable), "tables only"
    assert isinstance(table.db, Postgres | MySQL), "names are resolved before"
    db = table.db
    return f"{db.host}:{db.port}/{db.database} by `{source.cursor}`"


def _unreadable(
    added: AddedTable, workspace: WorkspaceId, sealer: Sealer | None, settings: Settings | None
) -> list[Problem]:
    dataset = added.source.dataset

    def open_secret(secret: SealedSecret) -> str:
        if sealer is None:
            raise SecretsNotConfigured
        return sealer.open(workspace, secrets.CREDENTIAL, secret.token.encode("ascii"))

    try:
        match added.table:
            case PostgresTable():
                table = _described(added.table, open_secret)
            case MySQLTable():
                table = _described_by_mysql(added.table, open_secret, settings)
            case unreachable:
                assert_never(unreachable)
    except (ExternalPostgresUnusable, ExternalMySQLUnusable) as unusable:
        text = f"Dataset `{dataset}`: {unusable}"
        return [Problem("source-unreachable", dataset, text)]
    return [
        Problem("source-table-unfit", dataset, f"Dataset `{dataset}`: {text}")
        for text in unfit(table, added.source, added.schema)
    ]


def _described(table: PostgresTable, open_secret: OpenSecret) -> ExternalTable:
    assert isinstance(table.db, Postgres), "names are resolved before"
    database = opened(table.db, open_secret)
    with database.connect() as connection:
        found = describe_table(database, connection, table.table)
        transaction_clock(connection)
        # The rights of the user, on the rows and on their transactions.
        query = sql.SQL("SELECT t.*, t.xmin, t.ctid FROM {} t LIMIT 0")
        connection.execute(query.format(found.identifier))
        return found


def _described_by_mysql(
    table: MySQLTable, open_secret: OpenSecret, settings: Settings | None
) -> ExternalTable:
    assert isinstance(table.db, MySQL), "names are resolved before"
    if settings is not None and not mysql_jars(settings):
        raise ExternalMySQLUnusable(
            f"connector `{table.db.name}`: tables of MySQL and MariaDB need their JDBC driver, "
            "which is not installed on this platform; its operator runs `make jars-mysql`, or "
            "builds the containers with FENNEL_EXTRAS=mysql"
        )
    database = external_mysql.opened(table.db, open_secret)
    with database.connect() as connection:
        found = external_mysql.describe_table(database, connection, table.table)
        external_mysql.time_clock(database, connection)
        external_mysql.require_readable(connection, found)
        return found


def unfit(table: ExternalTable, source: Source, schema: Schema) -> Iterator[str]:
    """Yield why rows of `table` do not fit the dataset, as sentences."""
    mysql = isinstance(source.table, MySQLTable)
    title = f"{'MySQL' if mysql else 'Postgres'} table `{table.schema}.{table.name}`"
    cursor = table.column(source.cursor or "")
    if cursor is None:
        yield f"{title} has no column `{source.cursor}`, which is its cursor"
    elif cursor_kind(cursor) is None:
        kinds = ", ".join(kind.value for kind in CursorKind)
        yield f"{title} has the cursor `{cursor.name}` of type {cursor.type}; use one of {kinds}"
    elif mysql and cursor_kind(cursor) is not CursorKind.TIME:
        yield (
            f"{title} has the cursor `{cursor.name}` of type {cursor.declared}; use a TIMESTAMP "
            "that the server sets, as `TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6)`: only its times "
            "say which rows are there"
        )
    else:
        slow = without_index(table, cursor.name)
        if slow is not None:
            yield f"{title} {slow}"
    taken = [each.name for each in table.columns if each.name.startswith(OWN_PREFIX)]
    if taken:
        yield f"{title} has the column `{taken[0]}`, and names with {OWN_PREFIX} are the platform's"
    yield from unfit_columns(title, table, source, schema)


def unfit_columns(
    title: str, table: ExternalTable, source: Source, schema: Schema
) -> Iterator[str]:
    """Yield why columns do not fit the fields of a dataset. `title`: of the table."""
    made = {name for name, _ in source.preproc}
    served = {each.name: each for each in served_columns(table)}
    for field in schema.fields:
        if field.name in made:
            continue
        column = table.column(field.name)
        if column is None:
            if not dtypes.is_optional(field.dtype):
                yield f"{title} has no column `{field.name}`; add it, or make it with preproc"
        elif field.name not in served:
            yield (
                f"{title} has column `{field.name}` of type {column.declared}, which is not "
                "served; encode it as text in a generated column"
            )
        elif not fits(column, dtypes.base(field.dtype)):
            yield (
                f"{title} has column `{field.name}` of type {column.declared}, and the field is "
                f"{dtypes.show(field.dtype)}; change the field, or make it with preproc"
            )


def fits(column: ExternalColumn, dtype: Dtype) -> bool:
    """Return whether values of a column can be values of a type; text may hold any scalar."""
    match dtype:
        case dtypes.Between(of=of) | dtypes.OneOf(of=of):
            return fits(column, of)
        case dtypes.List() | dtypes.Embedding():
            return column.category == "A"
        case dtypes.Map() | dtypes.Struct() | dtypes.Null():
            return False  # json arrives as text
        case _ if column.category == "A":
            return False
        case dtypes.Int():
            return column.category in "NS"
        case dtypes.Float() | dtypes.Decimal():
            return column.category in "NS"
        case dtypes.Bool():
            return column.category in "BS"
        case dtypes.Timestamp():
            return column.category in "DS" and not column.type.startswith(("time ", "interval"))
        case dtypes.Date():
            return column.category in "DS" and not column.type.startswith(("time ", "interval"))
        case _:  # text of any kind: what has no type of its own is carried as text
            native = ("smallint", "integer", "bigint", "boolean", "real", "double precision")
            times = ("timestamp with time zone", "timestamp without time zone")
            return column.type not in (*native, *times)
