"""The options of a table's changes as a source: what would have no effect is refused by name."""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.passes.tables import unusable_database
from fennel_core.vocab.problems import Problem
from fennel_core.wire import connectors as c
from fennel_core.wire.entities import Dataset


def check_changes(
    dataset: Dataset, source: c.Source, table: c.PostgresChanges | c.MySQLChanges
) -> Iterator[Problem]:
    """Yield one problem per option of a table's changes that cannot be served."""
    kind = "Postgres" if isinstance(table, c.PostgresChanges) else "MySQL"
    what = f"changes of {kind} table `{table.table}`"
    title = f"Dataset `{dataset.name}` has a source of {what}"
    hints = {
        "cursor": (bool(source.cursor), 'changes have an order of their own; write `cursor=""`'),
        "every": (
            source.every_us not in (None, c.DEFAULT_EVERY_US),
            "changes are read as they come; leave it out",
        ),
        "timestamp_field": (
            source.timestamp_field not in (None, dataset.schema.timestamp),
            "remove the option",
        ),
    }
    for option, (is_set, hint) in hints.items():
        if is_set:
            text = f"{title} with `{option}`, which has no effect: {hint}"
            yield Problem("source-option-not-served", dataset.name, text)
    if isinstance(table.db, c.NamedReference):
        return
    for why in unusable_database(table.db):
        text = f"Dataset `{dataset.name}`: connector `{table.db.name}` of {what} {why}"
        yield Problem("connector-not-served", dataset.name, text)
