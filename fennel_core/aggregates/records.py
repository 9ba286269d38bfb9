"""Records: the values that an aggregation keeps of each event, in a stored form that appends by
concatenation and loads without a loop.

Theory. State is written far more often than it is read in depth, so adding events to a key must not
decode the events that are there. A record is a fixed-size little-endian struct: event time, weight
(+1, -1 for a retraction, more where equal events were merged), one cell per kept column. Integers,
temporals and floats are in their cell; decimals take 16 bytes; everything else (and the position,
where order matters) is msgpack bytes in a heap after the structs, with its length in the cell. The
structs and heaps of two packs concatenate; NumPy reads the structs in place and Arrow the heap.

Example. Two events (time 5, name "ab") and (time 6, name "c") have two structs of 17 bytes, (5, 1,
3, true) and (6, 1, 2, true), where 3 and 2 are the lengths in the heap of `a2 61 62 a1 63`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import repeat
from struct import Struct
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from fennel_core.aggregates.exact import Ints
from fennel_core.vocab.dtypes import Date, Decimal, Dtype, Float, Int, Timestamp, base
from fennel_core.vocab.keys import physical

POSITION = "__pos"
Bools = npt.NDArray[np.bool_]
Cells = npt.NDArray[Any]
_encode = msgspec.msgpack.Encoder().encode
_DECIMAL_BYTES = 16


class ColumnKind(Enum):
    """The stored form of a kept column."""

    INT = "<i8"
    FLOAT = "<f8"
    DECIMAL = "V16"
    RAW = "<u4"
    """Length of the value's bytes in the heap: msgpack, or the position itself."""


def column_kind(dtype: Dtype) -> ColumnKind:
    """Return how a column of `dtype` is stored."""
    match base(dtype):
        case Int() | Timestamp() | Date():
            return ColumnKind.INT
        case Float():
            return ColumnKind.FLOAT
        case Decimal():
            return ColumnKind.DECIMAL
        case _:
            return ColumnKind.RAW


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """One column of some events. `data`: int64, float64, or objects (decimals as unscaled integers,
    msgpack bytes); `valid` None: no nulls.
    """

    data: Cells
    valid: Bools | None

    def gather(self, rows: Ints) -> ColumnValues:
        return ColumnValues(self.data[rows], None if self.valid is None else self.valid[rows])

    def elements(self) -> list[Any]:
        """Return the values as Python objects that compare and hash, None for null."""
        if self.valid is None:
            return list(self.data.tolist())
        out = self.data.astype(object)
        out[~self.valid] = None
        return list(out.tolist())


@dataclass(frozen=True)
class RecordLayout:
    """The columns that an aggregation job keeps, in order, and the stored form of each. `ordered`:
    the position is kept too.
    """

    columns: tuple[tuple[str, ColumnKind], ...]
    ordered: bool

    @cached_property
    def struct(self) -> np.dtype[Any]:
        cells = [("ts", "<i8"), ("weight", "<i4")]
        for i, (_, kind) in enumerate(self.stored):
            cells += [(f"c{i}", kind.value), (f"v{i}", "?")]
        return np.dtype(cells)

    @cached_property
    def packer(self) -> Struct:
        """The struct as `struct.Struct`; a decimal is read as bytes, a heaped cell as its
        length.
        """
        cells = {
            ColumnKind.INT: "q?",
            ColumnKind.FLOAT: "d?",
            ColumnKind.DECIMAL: "16s?",
            ColumnKind.RAW: "I?",
        }
        return Struct("<qi" + "".join(cells[kind] for _, kind in self.stored))

    @cached_property
    def stored(self) -> tuple[tuple[str, ColumnKind], ...]:
        return (*self.columns, (POSITION, ColumnKind.RAW)) if self.ordered else self.columns

    @cached_property
    def heaped(self) -> tuple[int, ...]:
        """Numbers of the columns whose bytes are in the heap."""
        return tuple(i for i, (_, kind) in enumerate(self.stored) if kind is ColumnKind.RAW)


class PackedRecords(NamedTuple):
    """Some records as stored: the structs one after the other, then their heap.

    A named tuple, because one is made for every key that a batch touches.
    """

    structs: bytes
    heap: bytes


@dataclass(frozen=True)
class Records:
    """Some events: the structs (`fixed`) and, where the layout has heaped columns, one blob per
    record, which is its heaped cells in column order.
    """

    layout: RecordLayout
    fixed: Cells
    blobs: pa.LargeBinaryArray | None

    def __len__(self) -> int:
        return len(self.fixed)

    @property
    def ts(self) -> Ints:
        return np.ascontiguousarray(self.fixed["ts"])

    @property
    def weight(self) -> Ints:
        return self.fixed["weight"].astype(np.int64)

    def take(self, rows: Ints) -> Records:
        return Records(
            self.layout,
            self.fixed[rows],
            None if self.blobs is None else self.blobs.take(pa.array(rows)),
        )

    def column(self, name: str) -> ColumnValues:
        """Return the values of a kept column."""
        i = next(i for i, (stored, _) in enumerate(self.layout.stored) if stored == name)
        valid = self.fixed[f"v{i}"]
        mask = None if valid.all() else np.ascontiguousarray(valid)
        match self.layout.stored[i][1]:
            case ColumnKind.RAW:
                return ColumnValues(_objects(self._heap_column(i).to_pylist()), mask)
            case ColumnKind.DECIMAL:
                return ColumnValues(_unscaled(self.fixed[f"c{i}"]), mask)
            case ColumnKind.INT | ColumnKind.FLOAT:
                return ColumnValues(np.ascontiguousarray(self.fixed[f"c{i}"]), mask)

    def _heap_column(self, i: int) -> pa.LargeBinaryArray:
        assert self.blobs is not None, "a heaped column needs a heap"
        heaped = self.layout.heaped
        if len(heaped) == 1:
            return self.blobs
        lengths = np.stack([self.fixed[f"c{j}"] for j in heaped], axis=1).ravel()
        cells = _binary(lengths, _heap(self.blobs))
        return cells.take(pa.array(np.arange(heaped.index(i), len(lengths), len(heaped))))

    def slices(self, starts: Sequence[int], stops: Sequence[int]) -> list[PackedRecords]:
        """Return records [start, stop) packed, for each pair of `starts` and `stops`."""
        size = self.fixed.dtype.itemsize
        fixed = self.fixed.tobytes()
        structs = [fixed[a * size : b * size] for a, b in zip(starts, stops, strict=True)]
        if self.blobs is None:
            return list(map(PackedRecords, structs, repeat(b"")))
        ends = np.frombuffer(
            self.blobs.buffers()[1],
            dtype=np.int64,
            count=len(self) + 1,
            offset=8 * self.blobs.offset,
        ).tolist()
        heap = memoryview(_heap(self.blobs))
        first = ends[0]
        parts = [
            bytes(heap[ends[a] - first : ends[b] - first])
            for a, b in zip(starts, stops, strict=True)
        ]
        return list(map(PackedRecords, structs, parts))

    def merged_within(self, owners: Ints) -> tuple[Records, Ints]:
        """Return the same multiset of events per owner, with equal events merged into one record
        and events that cancel out removed, and the owner of each record.
        """
        names = [name for name in self.fixed.dtype.names or () if name != "weight"]
        same = np.empty(
            len(self), dtype=np.dtype([(name, self.fixed.dtype[name]) for name in names])
        )
        for name in names:
            same[name] = self.fixed[name]
        frame = pl.DataFrame(
            {
                "owner": owners,
                "fixed": same.view(f"V{same.dtype.itemsize}").tolist(),
                "blob": [b""] * len(self) if self.blobs is None else self.blobs.to_pylist(),
                "weight": self.weight,
            },
            schema_overrides={"fixed": pl.Binary, "blob": pl.Binary},
        ).with_row_index("row")
        net = frame.group_by("owner", "fixed", "blob", maintain_order=True).agg(
            pl.col("row").first(), pl.col("weight").sum()
        )
        net = net.filter(pl.col("weight") != 0)
        out = self.take(net["row"].to_numpy().astype(np.int64))
        out.fixed["weight"] = net["weight"].to_numpy()
        return out, net["owner"].to_numpy().astype(np.int64)


def load_records(layout: RecordLayout, packs: Sequence[PackedRecords]) -> Records:
    """Return the records of some packs, one after the other."""
    fixed = np.frombuffer(b"".join(structs for structs, _ in packs), dtype=layout.struct)
    if not layout.heaped:
        return Records(layout, fixed, None)
    lengths = sum(
        (fixed[f"c{i}"].astype(np.int64) for i in layout.heaped), np.zeros(len(fixed), np.int64)
    )
    return Records(layout, fixed, _binary(lengths, b"".join(heap for _, heap in packs)))


def records_of_frame(
    layout: RecordLayout, frame: pl.DataFrame, ts: pl.Series, sign: pl.Series, positions: pl.Series
) -> Records:
    """Return the records of a batch, one per row. `ts` are physical microseconds."""
    fixed = np.zeros(frame.height, dtype=layout.struct)
    fixed["ts"], fixed["weight"] = ts.to_numpy(), sign.to_numpy()
    heaps: list[list[bytes]] = []
    for i, (name, kind) in enumerate(layout.stored):
        series = positions if name == POSITION else frame[name]
        fixed[f"v{i}"] = series.is_not_null().to_numpy() if series.null_count() else True
        match kind:
            case ColumnKind.INT:
                whole = series.cast(pl.Int64)
                fixed[f"c{i}"] = (whole.fill_null(0) if series.null_count() else whole).to_numpy()
            case ColumnKind.FLOAT:
                # Polars turns null into NaN here, and NaN counts as null in aggregations.
                floats = series.to_numpy()
                fixed[f"v{i}"] = valid = ~np.isnan(floats)
                # Adding 0.0 turns -0.0 into 0.0: equal values must have equal bytes.
                fixed[f"c{i}"] = np.where(valid, floats, 0.0) + 0.0
            case ColumnKind.DECIMAL:
                fixed[f"c{i}"] = _decimal_cells(series)
            case ColumnKind.RAW:
                cells = series.to_list() if name == POSITION else _raw(series)
                fixed[f"c{i}"] = np.fromiter(map(len, cells), dtype=np.uint32, count=len(cells))
                heaps.append(cells)
    if not heaps:
        return Records(layout, fixed, None)
    return Records(
        layout, fixed, pa.array(list(map(b"".join, zip(*heaps, strict=True))), pa.large_binary())
    )


def _raw(series: pl.Series) -> list[bytes]:
    """Return the msgpack bytes of each value. Equal values have equal bytes (maps: if their entries
    are in the same order).
    """
    return list(map(_encode, physical(series.to_frame()).to_series().to_list()))


def _decimal_cells(series: pl.Series) -> Cells:
    array = series.fill_null(0).to_arrow()
    return np.frombuffer(
        array.buffers()[1], dtype="V16", count=len(array), offset=_DECIMAL_BYTES * array.offset
    )


def _unscaled(cells: Cells) -> Cells:
    """Return 16-byte two's complement integers as int64, as objects if one is too large."""
    halves = np.ascontiguousarray(cells).view(np.dtype([("low", "<u8"), ("high", "<i8")]))
    low = halves["low"].view(np.int64)
    if np.array_equal(halves["high"], low >> 63):
        return np.ascontiguousarray(low)
    return np.array(
        [int.from_bytes(cell, "little", signed=True) for cell in cells.tolist()], dtype=object
    )


def _objects(items: list[bytes]) -> Cells:
    out = np.empty(len(items), dtype=object)
    out[:] = items
    return out


def _binary(lengths: Cells, heap: bytes) -> pa.LargeBinaryArray:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    assert offsets[-1] == len(heap), "the heap holds exactly the bytes its records name"
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lengths), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(heap)]
    )


def _heap(blobs: pa.LargeBinaryArray) -> bytes:
    ends = np.frombuffer(
        blobs.buffers()[1], dtype=np.int64, count=len(blobs) + 1, offset=8 * blobs.offset
    )
    data = blobs.buffers()[2]
    return b"" if data is None else memoryview(data)[int(ends[0]) : int(ends[-1])].tobytes()
