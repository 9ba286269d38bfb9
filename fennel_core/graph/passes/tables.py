"""The options of tables of databases as sources: what would have no effect is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from fennel_core.vocab.problems import Problem
from fennel_core.wire import connectors as c
from fennel_core.wire.entities import Dataset

HOST: Final = re.compile(r"[A-Za-z0-9._-]+")
"""One name or address: clients read more out of other characters."""


def check_table(
    dataset: Dataset, source: c.Source, table: c.PostgresTable | c.MySQLTable
) -> Iterator[Problem]:
    """Yield one problem per option of a table that cannot be served."""
    postgres = isinstance(table, c.PostgresTable)
    what = f"{'Postgres' if postgres else 'MySQL'} table `{table.table}`"
    title = f"Dataset `{dataset.name}` has a source of {what}"
    if source.cdc not in (c.Cdc.APPEND, c.Cdc.UPSERT):
        text = (
            f"{title} with cdc `{source.cdc.value}`, which this platform does not read from it. "
            "Use cdc `append` without key fields, or `upsert` with key fields, or `debezium` for "
            "its changes."
        )
        yield Problem("cdc-not-served", dataset.name, text)
    if not source.cursor:
        text = (
            f"{title} without a cursor, by which rows are read in order; name a column that grows, "
            "as `updated_at`"
        )
        yield Problem("source-option-not-served", dataset.name, text)
    if source.every_us is not None and source.every_us <= 0:
        text = f"{title} with `every` of {source.every_us} µs; give a time between two reads"
        yield Problem("source-option-not-served", dataset.name, text)
    without_effect = {
        "timestamp_field": source.timestamp_field not in (None, dataset.schema.timestamp),
        "slot_name": isinstance(table, c.PostgresTable) and table.slot_name is not None,
    }
    for option, is_set in without_effect.items():
        if is_set:
            text = f"{title} with `{option}`, which this platform does not serve for tables"
            yield Problem("source-option-not-served", dataset.name, f"{text}; remove the option")
    if isinstance(table.db, c.NamedReference):
        return
    for why in unusable_database(table.db):
        text = f"Dataset `{dataset.name}`: connector `{table.db.name}` of {what} {why}"
        yield Problem("connector-not-served", dataset.name, text)


def unusable_database(db: c.Postgres | c.MySQL) -> Iterator[str]:
    """Yield what about a connector cannot be served, as the end of a sentence about it."""
    if not HOST.fullmatch(db.host):
        yield f"has the host `{db.host}`; give one name or IPv4 address, and the port apart"
    if any(isinstance(each, c.SecretRef) for each in (db.login.user, db.login.password)):
        yield (
            "refers to a secret of another store, which this platform does not read yet; give "
            "user name and password as text, which is encrypted on arrival"
        )
    if db.login.user is None:
        yield "needs a user name"
