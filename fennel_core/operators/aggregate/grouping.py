"""Group a batch of rows into records per key, the first thing that every aggregation does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from fennel_core.aggregates.aggregation import Aggregator
from fennel_core.aggregates.exact import Ints
from fennel_core.aggregates.records import (
    POSITION,
    RecordLayout,
    Records,
    column_kind,
    records_of_frame,
)
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import POS, SIGN

_ROW = "\0row"
_FIRST: Ints = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class GroupedRecords:
    """Records sorted by key: those of `keys[i]` begin at `starts[i]`."""

    keys: list[bytes]
    records: Records
    starts: Ints


class Grouping:
    """Groups rows of `schema` by `keys` and keeps the columns that `aggregators` need.

    `along`: the column whose time counts in place of the timestamp, if any.
    """

    def __init__(
        self,
        schema: Schema,
        keys: tuple[str, ...],
        along: str | None,
        aggregators: Sequence[Aggregator[Any]],
    ) -> None:
        assert not schema.keyed, "a keyed input reaches an aggregation with validity intervals"
        self._keys = keys
        self._timestamp = schema.timestamp
        self._time = along or schema.timestamp
        self.layout = record_layout(schema, aggregators)

    def group(self, batch: pl.DataFrame) -> GroupedRecords:
        """Return the records of a batch, sorted by key; within a key in the order of the batch."""
        if batch.height == 1:
            return GroupedRecords(key_bytes(batch, self._keys), self._records(batch), _FIRST)
        groups = (
            batch.select(self._keys)
            .with_row_index(_ROW)
            .group_by(self._keys, maintain_order=True)
            .agg(_ROW)
        )
        rows = groups[_ROW].explode(empty_as_null=False).to_numpy().astype(np.int64)
        lengths = groups[_ROW].list.len().to_numpy().astype(np.int64)
        return GroupedRecords(
            key_bytes(groups, self._keys),
            self._records(batch).take(rows),
            np.cumsum(lengths) - lengths,
        )

    def largest_event_time(self, batch: pl.DataFrame) -> Micros | None:
        """Return the largest timestamp of the rows that a batch adds, None if it adds none.

        Not of the column that counts in its place: the watermark that other partitions send is one
        of timestamps, and results must not depend on the partition of a row.
        """
        largest = batch.filter(pl.col(SIGN) > 0)[self._timestamp].cast(pl.Int64).max()
        return Micros(largest) if isinstance(largest, int) else None

    def _records(self, batch: pl.DataFrame) -> Records:
        return records_of_frame(
            self.layout, batch, batch[self._time].cast(pl.Int64), batch[SIGN], batch[POS]
        )


def record_layout(schema: Schema, aggregators: Sequence[Aggregator[Any]]) -> RecordLayout:
    """Return the columns of rows of `schema` that `aggregators` need, as records keep them."""
    prepared = [aggregator.prepare() for aggregator in aggregators]
    names = sorted({name for columns in prepared for name in columns} - {POSITION})
    fields = [schema.field(name) for name in names]
    columns = tuple((field.name, column_kind(field.dtype)) for field in fields if field is not None)
    return RecordLayout(columns, ordered=any(POSITION in columns for columns in prepared))
