"""How batches of an offline query look inside Spark: their columns, and the way to Arrow and back.

Theory. A shuffle moves every column of every row, also those that a row does not have: eight bytes
each. A timeline has rows of several kinds, requests and versions of each dataset, so the columns
of one kind are one struct, which is null in rows of the others:

    __key, __time, __source, __pos, __sign, __tombstone, rows, v0, v1, …

A dot in the name of a column would be the field of a struct to Spark, so the inputs and outputs of
a query have another separator there (`SparkLayout.names`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from fennel_core.offline.lookup_groups import LookupGroup
from fennel_core.offline.query_steps import Registers, ShuffleByKey, ShuffleByRow
from fennel_core.offline.rows import AT, ELEMENT, REASON, ROW, register
from fennel_core.offline.timeline import KEY, SOURCE, TIME, version_column
from fennel_core.operators.rows import frame_columns
from fennel_core.query.columns import LOGICAL_TIME, logical_type
from fennel_core.vocab.dtypes import Dtype
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN

ROWS_PART: Final = "rows"
"""The struct of what travels with a request."""
_SORTED_BY: Final[Mapping[str, pl.DataType]] = {
    KEY: pl.Binary(),
    TIME: pl.Int64(),
    SOURCE: pl.Int8(),
    POS: pl.Binary(),
    SIGN: pl.Int8(),
    IS_TOMBSTONE: pl.Boolean(),
}


def versions_part(source: int) -> str:
    """Return the name of the struct of the versions of dataset number `source`."""
    return f"v{source}"


@dataclass(frozen=True, slots=True)
class SparkLayout:
    """Columns by name. `parts`: the structs among them whose fields are columns of a batch."""

    columns: Mapping[str, pl.DataType]
    parts: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the columns inside Spark."""
        return [name.replace(".", "/") for name in self.columns]

    @property
    def spark(self) -> StructType:
        """The layout as a schema of Spark."""
        empty = pl.DataFrame(schema=self.columns).to_arrow(compat_level=pl.CompatLevel.oldest())
        found: StructType = from_arrow_schema(empty.rename_columns(self.names).schema)
        return found

    def encode(self, batches: Iterator[pl.DataFrame], part: str) -> Iterator[pa.RecordBatch]:
        """Yield batches for Spark; `part`: the struct that their columns belong to, if it has
        structs.
        """
        schema = to_arrow_schema(self.spark, timezone="UTC")
        for frame in batches:
            if not frame.is_empty():
                made = self._folded(frame, part).to_arrow(compat_level=pl.CompatLevel.oldest())
                yield from made.rename_columns(self.names).cast(schema).to_batches()

    def decode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
        """Yield batches as steps read them."""
        for batch in batches:
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame), "a batch becomes a frame"
            frame.columns = list(self.columns)
            # Spark sends times in the time zone of its session.
            typed = frame.select(pl.col(name).cast(kind) for name, kind in self.columns.items())
            yield typed.unnest(self.parts) if self.parts else typed

    def _folded(self, frame: pl.DataFrame, part: str) -> pl.DataFrame:
        return frame.select(
            (
                _struct(frame, kind, filled=name == part)
                if name in self.parts and isinstance(kind, pl.Struct)
                else _column(frame, name, kind)
            ).alias(name)
            for name, kind in self.columns.items()
        )


def _struct(frame: pl.DataFrame, kind: pl.Struct, *, filled: bool) -> pl.Expr:
    if not filled:
        return pl.lit(None, dtype=kind)
    return pl.struct(
        _column(frame, field.name, field.dtype).alias(field.name)  # type: ignore[arg-type]  # types of a schema are instances
        for field in kind.fields
    )


def _column(frame: pl.DataFrame, name: str, kind: pl.DataType) -> pl.Expr:
    return pl.col(name).cast(kind) if name in frame.columns else pl.lit(None, dtype=kind)


def given_layout(inputs: Mapping[str, Dtype]) -> SparkLayout:
    """Return the layout of the rows of a query: `ROW`, `AT` and its inputs by name."""
    types = {name: logical_type(dtype) for name, dtype in inputs.items()}
    return SparkLayout({ROW: pl.Int64(), AT: LOGICAL_TIME, **types})


def shuffle_layout(
    step: ShuffleByKey | ShuffleByRow, live: Registers, types: Mapping[int, Dtype]
) -> SparkLayout:
    """Return the layout of the rows of a shuffle, behind which the registers `live` are read."""
    group = step.group
    known = dict(types)
    if isinstance(step, ShuffleByRow):
        known.update(group.outputs)  # elements of the lists, not the lists
    rows: dict[str, pl.DataType] = {ROW: pl.Int64(), AT: LOGICAL_TIME, REASON: pl.String()}
    if group.listed:
        rows[ELEMENT] = pl.Int64()
    rows.update((register(place), logical_type(known[place])) for place in sorted(live))
    if isinstance(step, ShuffleByRow):
        return SparkLayout(rows)
    parts = {ROWS_PART: pl.Struct(rows), **_version_parts(group)}
    return SparkLayout({**_SORTED_BY, **parts}, tuple(parts))


def _version_parts(group: LookupGroup) -> dict[str, pl.Struct]:
    return {
        versions_part(number): pl.Struct(
            {
                version_column(number, name): frame_columns(source.schema)[name]
                for name in source.version_columns
            }
        )
        for number, (_, source) in enumerate(group.sources)
    }
