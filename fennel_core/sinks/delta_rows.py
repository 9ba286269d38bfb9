"""Changes as rows of a Delta table: one row for each event, in the columns of the dataset.

A row has the dataset's fields, which are those of `after`, or of `before` for a `d`, and the
columns of `vocab.change_columns`.

The old row of a `u` is not repeated: it is an earlier row of the table, that of the withdrawn
version. The current row of a key follows by the rule of `debezium.py`, in the order of `_event`.

Rows of erased keys are deleted from the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from fennel_core.sinks.changes import OFFSET, PART
from fennel_core.vocab.change_columns import (
    EVENT,
    MESSAGE_OFFSET,
    MESSAGE_PART,
    change_columns,
)
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import POS


@dataclass(frozen=True, slots=True)
class AddedRows:
    """Rows to append, with the columns of `change_columns`."""

    rows: pa.Table


@dataclass(frozen=True, slots=True)
class DeletedKeys:
    """The keys whose rows are to be deleted, as key bytes (`vocab.keys`) of the columns."""

    columns: pa.Schema
    keys: frozenset[bytes]

    def events(self, rows: pa.Table) -> list[int]:
        """Return the numbers of the events among `rows` that are about one of the keys."""
        frame = pl.from_arrow(rows.select(self.columns.names).cast(self.columns))
        assert isinstance(frame, pl.DataFrame), "an Arrow table is read as a frame"
        wanted = [key in self.keys for key in key_bytes(frame, self.columns.names)]
        found: list[int] = rows[EVENT].filter(pa.array(wanted, pa.bool_())).to_pylist()
        return found


@dataclass(frozen=True, slots=True)
class DeletedMessages:
    """The rows of each partition's messages from an offset on, which are to be deleted."""

    following: Mapping[int, int]

    @property
    def predicate(self) -> str:
        """Return which rows these are, as SQL; it is made of numbers only."""
        return " OR ".join(
            f"({MESSAGE_PART} = {int(part)} AND {MESSAGE_OFFSET} >= {int(offset)})"
            for part, offset in sorted(self.following.items())
        )


DeltaBatch = AddedRows | DeletedKeys | DeletedMessages


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
            pl.int_range(written, written + events.height, dtype=pl.Int64, eager=True).alias(EVENT),
        )
        return AddedRows(_arrow(frame).cast(change_columns(schema)))

    def deletes(self, keys: Sequence[bytes]) -> DeletedKeys:
        names, own = self.schema.key_names, self.schema.arrow()
        return DeletedKeys(pa.schema([own.field(name) for name in names]), frozenset(keys))

    def rewound(self, following: Mapping[int, int]) -> DeletedMessages:
        return DeletedMessages(following)


def _arrow(frame: pl.DataFrame) -> pa.Table:
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())
