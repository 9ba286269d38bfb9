"""Changes as rows of a Delta table: one row for each event, in the columns of the dataset.

A row has the dataset's fields, which are those of `after`, or of `before` for a `d`, and the
columns of `vocab.change_columns`.

The old row of a `u` is not repeated: it is an earlier row of the table, that of the withdrawn
version. The current row of a key follows by the rule of `debezium.py`, in the order of `_event`.

Rows of erased keys are deleted from the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from fennel_core.operators.rows import columns_of, decode_rows
from fennel_core.sinks.changes import OFFSET, PART
from fennel_core.vocab.change_columns import change_columns
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import POS


@dataclass(frozen=True, slots=True)
class AddedRows:
    """Rows to append, with the columns of `change_columns`."""

    rows: pa.Table


@dataclass(frozen=True, slots=True)
class DeletedKeys:
    """The keys whose rows are to be deleted, with the key columns of the dataset."""

    keys: pa.Table


DeltaBatch = AddedRows | DeletedKeys


@dataclass(frozen=True, slots=True)
class DeltaForm:
    """See `store.SinkForm`."""

    schema: Schema

    def changes(self, versions: pl.DataFrame, events: pl.DataFrame, written: int) -> AddedRows:
        schema = self.schema
        about = events.select(pl.coalesce("added", "retracted")).to_series()
        shown = events.select(pl.coalesce("after", "before")).to_series()
        withdrawn = events["retracted"]
        time, position = versions[schema.timestamp], versions[POS].bin.encode("hex")
        frame = versions.select(schema.names)[shown].with_columns(
            events["op"].alias("_op"),
            time.gather(about).alias("_ts"),
            position.gather(about).alias("_position"),
            time.gather(withdrawn).alias("_withdrawn_ts"),
            position.gather(withdrawn).alias("_withdrawn_position"),
            events["added"].is_null().alias("_retraction"),
            versions[PART].gather(about).alias("_partition"),
            versions[OFFSET].gather(about).alias("_offset"),
            pl.int_range(written, written + events.height, dtype=pl.Int64, eager=True).alias(
                "_event"
            ),
        )
        return AddedRows(_arrow(frame).cast(change_columns(schema)))

    def deletes(self, keys: Sequence[bytes]) -> DeletedKeys:
        names = self.schema.key_names
        frame = decode_rows(list(keys), columns_of(self.schema, names))
        fields = [each for each in self.schema.arrow() if each.name in names]
        return DeletedKeys(_arrow(frame.select(names)).cast(pa.schema(fields)))


def _arrow(frame: pl.DataFrame) -> pa.Table:
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())
