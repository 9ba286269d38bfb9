"""Check the options of sources of Delta tables, and that datasets agree on the keys of a table."""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.delta_keys import is_delta, key_columns
from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.problems import Problem
from fennel_core.wire import connectors as c
from fennel_core.wire.entities import Dataset


def check_delta_source(dataset: Dataset, source: c.Source, table: c.S3Table) -> Iterator[Problem]:
    """Yield one problem per option of a source that cannot be served."""
    title = f"Dataset `{dataset.name}` has a source of a Delta table in S3 bucket `{table.bucket}`"
    if source.cdc is not c.Cdc.NATIVE:
        text = (
            f"{title} with cdc `{source.cdc.value}`, but the table itself says what changed; use "
            "cdc `native`, with key fields or without"
        )
        yield Problem("cdc-not-served", dataset.name, text)
    without_effect = {
        "presorted": table.presorted,
        "spread": table.spread_us is not None,
        "cursor": source.cursor is not None,
        "timestamp_field": source.timestamp_field not in (None, dataset.schema.timestamp),
    }
    for option in (name for name, given in without_effect.items() if given):
        text = f"{title} with `{option}`, which this platform does not serve for Delta tables"
        yield Problem("source-option-not-served", dataset.name, f"{text}; remove the option")
    if table.suffix or not table.prefix.strip("/"):
        text = f"{title}, whose path is no folder: name that of the table, without wildcards"
        yield Problem("source-option-not-served", dataset.name, text)
    if key_columns(source, dataset.schema) is None:
        text = (
            f"{title}, and a key field that is computed; a delete names columns of the table, so "
            "use columns as key fields (a preproc of them may be `ref`)"
        )
        yield Problem("source-option-not-served", dataset.name, text)


def check_delta_keys(graph: Graph) -> Iterator[Problem]:
    """Yield a problem for each table that two datasets read by other keys: it has one reader."""
    first: dict[tuple[str, str, str], tuple[str, tuple[str, ...]]] = {}
    for dataset in graph.datasets:
        for source in graph.sources_of(dataset.name):
            table, keys = source.table, key_columns(source, dataset.schema)
            if not is_delta(source) or keys is None or not isinstance(table, c.S3Table):
                continue
            place = (table.db.name, table.bucket, table.prefix.strip("/"))
            other, theirs = first.setdefault(place, (dataset.name, keys))
            if theirs != keys:
                yield Problem(
                    "connector-redefined",
                    dataset.name,
                    f"Dataset `{dataset.name}` reads Delta table `{table.bucket}/{place[2]}` by "
                    f"{keys_title(keys)}, and dataset `{other}` reads it by {keys_title(theirs)}; "
                    "a table is read once, so give both the same keys, or connectors of two names",
                )


def keys_title(keys: tuple[str, ...]) -> str:
    """Return the key columns for people."""
    return f"the key columns {', '.join(f'`{key}`' for key in keys)}" if keys else "no keys"
