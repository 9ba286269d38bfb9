"""The columns of a Delta table that name a row, by the datasets that read it."""

from __future__ import annotations

from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import FromPayload, S3Table, Source

DELTA = "delta"


def is_delta(source: Source) -> bool:
    """Return whether a source reads a Delta table."""
    return isinstance(source.table, S3Table) and source.table.format == DELTA


def key_columns(source: Source, schema: Schema) -> tuple[str, ...] | None:
    """Return the columns that the key fields of a dataset are read from, in one order.

    None if one is no column: a constant, or computed. Empty for a dataset without keys, and for a
    source of another kind.
    """
    return columns_of_keys(source, schema) if is_delta(source) else ()


def columns_of_keys(source: Source, schema: Schema) -> tuple[str, ...] | None:
    """Return the columns that the key fields are read from; as `key_columns`, of any table."""
    steps, found = dict(source.preproc), list[str]()
    for name in schema.key_names:
        step = steps.get(name)
        if step is not None and not isinstance(step, FromPayload):
            return None
        found.append(name if step is None else step.path)
    return tuple(sorted(found))
