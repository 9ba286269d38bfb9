"""The newest rows of a table, as messages: to show what would become of them."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from fennel_core.connections.external_kafka import ExternalMessage
from fennel_core.connections.external_postgres import (
    ExternalPostgres,
    ExternalPostgresUnusable,
    cursor_kind,
    describe_table,
    served_columns,
    transaction_clock,
)
from fennel_core.sources.table_queries import newest_query
from fennel_core.sources.table_reads import TableRead
from fennel_core.wire.arrow_json import json_columns
from fennel_core.wire.errors import MalformedData


def newest_rows(
    database: ExternalPostgres, table: str, cursor: str, count: int
) -> list[ExternalMessage]:
    """Return the rows with the highest values of the cursor, highest first; blocks.

    Raises `ExternalPostgresUnusable`.
    """
    with database.connect() as connection:
        found = describe_table(database, connection, table)
        column = found.column(cursor)
        kind = None if column is None else cursor_kind(column)
        if column is None or kind is None:
            raise ExternalPostgresUnusable(
                f"connector `{database.name}`: table `{table}` has no column `{cursor}` of "
                "integers, dates or times, which is its cursor"
            )
        columns = served_columns(found)
        read = TableRead(found, column, kind, columns, transaction_clock(connection), 0)
        rows = connection.execute(newest_query(read, count)).fetchall()
    if not rows:
        return []
    names = [each.name for each in columns]
    values = dict(zip(names, zip(*rows, strict=True), strict=True))
    try:
        carried = json_columns(pa.RecordBatch.from_pydict({n: list(v) for n, v in values.items()}))
    except (MalformedData, pa.ArrowException) as wrong:
        raise ExternalPostgresUnusable(
            f"connector `{database.name}`: rows of table `{table}` cannot be shown: {wrong}"
        ) from wrong
    return [
        ExternalMessage(
            0, place, msgspec.json.encode({name: carried[name][place] for name in names})
        )
        for place in range(len(rows))
    ]
