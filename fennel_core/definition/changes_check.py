"""Check the tables whose changes a commit reads: the rights, the log, the key and the columns.

The changes of a table are read once for all its datasets, so they agree on the address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeGuard, assert_never

from fennel_core.admission.changes import read_columns
from fennel_core.blueprints.spec import Catalog
from fennel_core.blueprints.streams import Changes, stream_of
from fennel_core.connections import external_binlog, external_mysql, external_postgres
from fennel_core.connections.change_engine import BINLOG_JARS, change_jars
from fennel_core.connections.errors import ConnectionsError
from fennel_core.connections.external_binlog import BinlogTable
from fennel_core.connections.external_changes import (
    MARKED_ARRAYS,
    SENT,
    LoggedTable,
    logged_table,
    require_log,
)
from fennel_core.connections.external_kafka import OpenSecret
from fennel_core.connections.external_mysql import ExternalMySQLUnusable
from fennel_core.connections.external_postgres import served_columns
from fennel_core.connections.secrets import Sealer
from fennel_core.connectors.references import address_of
from fennel_core.definition.external_checks import REACHED_S, answers
from fennel_core.definition.source_check import secret_opener
from fennel_core.definition.table_check import unfit_columns
from fennel_core.graph.delta_keys import columns_of_keys
from fennel_core.graph.entity_graph import Graph
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import BranchName, WorkspaceId
from fennel_core.vocab.problems import Problem
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import (
    MySQL,
    MySQLChanges,
    NamedReference,
    Postgres,
    PostgresChanges,
    Source,
    Table,
)


@dataclass(frozen=True, slots=True)
class AddedChanges:
    """A source of changes that a commit adds or alters, and the schema of its dataset.

    `is_read`: the branch reads the changes already, so the server keeps its log for them.
    """

    source: Source
    table: Changes
    schema: Schema
    is_read: bool = False


def added_changes(graph: Graph, before: Sequence[Source]) -> list[AddedChanges]:
    """Return the changes that `graph` reads, and the version of the branch before does not."""
    found = []
    for source in graph.sources:
        table, dataset = source.table, graph.dataset(source.dataset)
        if source not in before and isinstance(table, Changes):
            assert dataset is not None, "a valid source has a dataset"
            is_read = any(_same(each.table, table) for each in before)
            found.append(AddedChanges(source, table, dataset.schema, is_read))
    return found


async def changes_problems(
    added: Sequence[AddedChanges],
    others: Mapping[BranchName, Catalog],
    workspace: WorkspaceId,
    sealer: Sealer | None,
    settings: Settings | None = None,
) -> tuple[Problem, ...]:
    """Return a problem for each table whose changes cannot be read, or not into its dataset.

    `others`: the catalogs of the workspace's other branches. `settings` None: of a program without
    an installation.
    """
    found = [problem for each in added for problem in _disagreements(each, others)]
    read = [binding.source.table for catalog in others.values() for binding in catalog.sources]
    asked = [
        partial(
            _unreadable,
            replace(each, is_read=each.is_read or any(_same(t, each.table) for t in read)),
            *(workspace, sealer, settings),
        )
        for each in added
    ]
    for each, problems in zip(added, await answers(asked), strict=True):
        dataset = each.source.dataset
        late = (
            f"Dataset `{dataset}`: {stream_of(each.table).title} were not reached in "
            f"{REACHED_S:.0f} s; check the address, and commit again"
        )
        found += [Problem("source-unreachable", dataset, late)] if problems is None else problems
    return tuple(found)


def _same(one: Table, other: Changes) -> TypeGuard[Changes]:
    """Return whether two are the changes of one table."""
    return (
        isinstance(one, type(other))
        and stream_of(one) == stream_of(other)
        and one.db.name == other.db.name
    )


def _disagreements(added: AddedChanges, others: Mapping[BranchName, Catalog]) -> Iterator[Problem]:
    own = _address(added.table)
    for branch, catalog in others.items():
        for binding in catalog.sources:
            table = binding.source.table
            if _same(table, added.table) and _address(table) != own:
                text = (
                    f"Dataset `{added.source.dataset}`: connector `{table.db.name}` of "
                    f"{stream_of(table).title} leads to `{own}`, and in branch `{branch}` to "
                    f"`{_address(table)}`; branches share what they read, so give it the same "
                    "address, or another name"
                )
                yield Problem("connector-redefined", added.source.dataset, text)
                return


def _address(table: Changes) -> str:
    assert not isinstance(table.db, NamedReference), "names are resolved before"
    return address_of(table.db)


def _unreadable(
    added: AddedChanges, workspace: WorkspaceId, sealer: Sealer | None, settings: Settings | None
) -> list[Problem]:
    dataset, open_secret = added.source.dataset, secret_opener(workspace, sealer)
    try:
        match added.table:
            case PostgresChanges() as table:
                texts = list(unfit(_described(table, open_secret, is_read=added.is_read), added))
            case MySQLChanges() as table:
                texts = list(
                    unfit_of_mysql(_described_by_mysql(table, open_secret, settings), added)
                )
            case unreachable:
                assert_never(unreachable)
    except ConnectionsError as unusable:
        return [Problem("source-unreachable", dataset, f"Dataset `{dataset}`: {unusable}")]
    return [
        Problem("source-table-unfit", dataset, f"Dataset `{dataset}`: {text}") for text in texts
    ]


def _described(table: PostgresChanges, open_secret: OpenSecret, *, is_read: bool) -> LoggedTable:
    assert isinstance(table.db, Postgres), "names are resolved before"
    database = external_postgres.opened(table.db, open_secret)
    with database.connect() as connection:
        found = logged_table(database, connection, table.table)
        require_log(database, connection, found, has_slot=is_read)
        return found


def _described_by_mysql(
    table: MySQLChanges, open_secret: OpenSecret, settings: Settings | None
) -> BinlogTable:
    assert isinstance(table.db, MySQL), "names are resolved before"
    if settings is not None and not change_jars(settings, BINLOG_JARS):
        raise ExternalMySQLUnusable(
            f"connector `{table.db.name}`: changes of MySQL and MariaDB need Debezium's connectors "
            "for them, which are not installed on this platform; its operator runs "
            "`make jars-mysql`, or builds the containers with FENNEL_EXTRAS=mysql"
        )
    database = external_mysql.opened(table.db, open_secret)
    with database.connect() as connection:
        found = external_binlog.logged_table(database, connection, table.table)
        external_binlog.require_log(database, connection, found)
        return found


def unfit_of_mysql(table: BinlogTable, added: AddedChanges) -> Iterator[str]:
    """Yield why the changes of `table` do not fit the dataset, as sentences."""
    yield from unfit_columns(f"MySQL table `{table.name}`", table.table, added.source, added.schema)


def unfit(table: LoggedTable, added: AddedChanges) -> Iterator[str]:
    """Yield why the changes of `table` do not fit the dataset, as sentences."""
    title = f"Postgres table `{table.name}`"
    keys = columns_of_keys(added.source, added.schema)
    primary = {column.name for column in table.key}
    if not table.whole and (keys is None or not primary.issuperset(keys)):
        yield (
            f"{title} has the primary key `{', '.join(sorted(primary))}`, which is all that a "
            "delete has of a row, and it does not have the keys of the dataset; make the keys of "
            f"it, or run `ALTER TABLE {table.name} REPLICA IDENTITY FULL`"
        )
    made = {name for name, _ in added.source.preproc}
    for name in sorted(table.generated & {f.name for f in added.schema.fields} - made):
        yield (
            f"{title} has the generated column `{name}`, which changes do not have; compute the "
            "field with preproc"
        )
    yield from _unsent(title, table, added)
    yield from unfit_columns(title, table.table, added.source, added.schema)


def _unsent(title: str, table: LoggedTable, added: AddedChanges) -> Iterator[str]:
    """Yield a sentence for each column whose values changes do not have, or not always."""
    read = read_columns(added.source, added.schema)
    for column in served_columns(table.table):
        what = f"{title} has column `{column.name}` of type {column.declared}"
        if column.name not in read or column.category == "E":
            continue
        if column.category == "A":
            if not table.whole and column.type not in MARKED_ARRAYS:
                yield (
                    f"{what}, and an update that does not change a large array would have null "
                    f"instead; run `ALTER TABLE {table.name} REPLICA IDENTITY FULL`"
                )
        elif column.type.rpartition(".")[2] not in SENT:
            yield f"{what}, which changes do not have; store it as text in another column"
