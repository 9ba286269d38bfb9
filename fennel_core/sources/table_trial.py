"""The newest rows of a table, as messages: to show what would become of them."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from fennel_core.connections.external_kafka import ExternalMessage
from fennel_core.sources.errors import SourceError
from fennel_core.sources.table_databases import TableDatabase
from fennel_core.sources.table_pages import short_floats
from fennel_core.wire.arrow_json import json_columns
from fennel_core.wire.errors import MalformedData


def newest_rows(
    database: TableDatabase, table: str, cursor: str, count: int
) -> list[ExternalMessage]:
    """Return the rows with the highest values of the cursor, highest first; blocks.

    Raises `SourceError`, and one of `TableUnusable`.
    """
    with database.connect() as connection:
        read = database.begun(connection, table, cursor, 0)
        rows = database.newest(connection, read, count)
    if not rows:
        return []
    names = [each.name for each in read.columns]
    values = dict(zip(names, zip(*rows, strict=True), strict=True))
    try:
        shown = pa.RecordBatch.from_pydict({name: list(each) for name, each in values.items()})
        carried = json_columns(short_floats(shown, read.columns))
    except (MalformedData, pa.ArrowException) as wrong:
        raise SourceError(
            f"connector `{database.name}`: rows of table `{table}` cannot be shown: {wrong}"
        ) from wrong
    return [
        ExternalMessage(
            0, place, msgspec.json.encode({name: carried[name][place] for name in names})
        )
        for place in range(len(rows))
    ]
