"""The keys that a version of a Delta table puts, as hashes: which of its deletes are none.

Of each key two hashes of 64 bits are kept: the first is searched, the second must agree. Values are
brought to one type first, because files of a table may store one column in different ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from fennel_core.connections.delta_log import DataFile

Hashes = npt.NDArray[np.uint64]


class PutKeys:
    """Keys, by the columns `names`: `add` all of them, then ask after `ended`."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._parts: list[tuple[Hashes, Hashes]] = []
        self._count = 0
        self._first = self._second = np.zeros(0, dtype=np.uint64)

    def __len__(self) -> int:
        return self._count

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the keys of rows."""
        self._parts.append(_hashes(rows, self._names))
        self._count += rows.num_rows

    def ended(self) -> PutKeys:
        """Return the keys, ready to be asked."""
        if self._parts:
            first = np.concatenate([each for each, _ in self._parts])
            order = np.argsort(first, kind="stable")
            self._first = first[order]
            self._second = np.concatenate([each for _, each in self._parts])[order]
            self._parts = []
        return self

    def has(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return whether the key of each row was added."""
        if not len(self._first):
            return np.zeros(rows.num_rows, dtype=np.bool_)
        first, second = _hashes(rows, self._names)
        places = np.minimum(np.searchsorted(self._first, first), len(self._first) - 1)
        found = (self._first[places] == first) & (self._second[places] == second)
        return np.asarray(found, dtype=np.bool_)


def partitioned(rows: pa.RecordBatch, file: DataFile) -> pa.RecordBatch:
    """Return rows of a file with the columns that all of its rows share, as text; no views."""
    own = rows.schema.names
    rows = without_views(rows)
    given = [(name, value) for name, value in file.partition if name not in own]
    if not given:
        return rows
    shared = [pa.repeat(pa.scalar(value, pa.string()), rows.num_rows) for _, value in given]
    names = [*own, *(name for name, _ in given)]
    return pa.RecordBatch.from_arrays([*rows.columns, *shared], names=names)


def without_views(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without view types, which delta-rs writes and Arrow cannot filter."""
    kinds = [_without_view(field.type) for field in rows.schema]
    if kinds == rows.schema.types:
        return rows
    columns = [each.cast(kind) for each, kind in zip(rows.columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _without_view(kind: pa.DataType) -> pa.DataType:
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_view(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_view(kind.key_type), _without_view(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_without_view(kind.value_type))
    return kind


def _hashes(rows: pa.RecordBatch, names: tuple[str, ...]) -> tuple[Hashes, Hashes]:
    assert names, "rows without keys are not compared"
    columns = []
    for name in names:
        if name in rows.schema.names:
            columns.append(_canonical(pl.Series(name, pl.from_arrow(rows.column(name)))))
        else:  # a file that is older than the column
            columns.append(pl.Series(name, [None] * rows.num_rows, dtype=pl.String))
    frame = pl.DataFrame(columns)
    return frame.hash_rows(1).to_numpy(), frame.hash_rows(2).to_numpy()


def _canonical(column: pl.Series) -> pl.Series:
    """Return a column whose equal values are equal whatever type they were stored in."""
    if isinstance(column.dtype, pl.Datetime):
        return column.cast(pl.Datetime("us")).to_physical().cast(pl.String)
    if column.dtype == pl.Binary:
        return column.bin.encode("hex")
    if column.dtype.is_nested():
        return column.map_elements(str, return_dtype=pl.String)
    return column.cast(pl.String)
