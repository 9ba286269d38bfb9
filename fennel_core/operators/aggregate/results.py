"""Versions of result rows: computed before and after a batch, and emitted where they differ.

Theory. A result row is identified by its key, its time and, for `groupby(window=...)`, its window;
its values are aggregations over ranges of its key's events. The values as of the state before and
after a batch determine which versions to retract and which to add. A version's position is a
function of its key alone: there is one version per key and time, and different keys never share a
position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import polars as pl

from fennel_core.operators.aggregate.assemble import Assembler, TimeRange
from fennel_core.operators.gradual import finished
from fennel_core.operators.rows import columns_of, decode_rows, encode, output_names
from fennel_core.operators.step import OutputBatch, StateReader
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import IS_TOMBSTONE, POS, SIGN


@dataclass(frozen=True, slots=True)
class ResultRow:
    """Identifies a row of the result.

    `ranges`: one per value, where values are assembled from ranges; else empty.
    `window`: begin and end (microseconds) where the window is part of the key.
    """

    key: bytes
    time: int
    ranges: tuple[TimeRange, ...]
    window: TimeRange | None = None


ValuesOf = Callable[[StateReader, Sequence[ResultRow]], list[list[object]]]
"""Returns the values of result rows as of a state."""


def assembled(assembler: Assembler) -> ValuesOf:
    """Return a function that assembles values over the ranges of each row."""
    return lambda reads, rows: finished(
        assembler.values(
            reads, [r.key for r in rows], [r.ranges for r in rows], [r.time for r in rows]
        )
    )


class ResultEmitter:
    """Turns result rows into batches of versions.

    `names`: the output columns of the values that `values` returns, in their order.
    `window_field`: the key column that holds the window, if any.
    """

    def __init__(
        self,
        values: ValuesOf,
        names: Sequence[str],
        keys: tuple[str, ...],
        output: Schema,
        window_field: str | None,
    ) -> None:
        self._values_of = values
        self._order = [list(names).index(name) for name in output.value_names]
        self._window_field = window_field
        self._keys = columns_of(output, keys)
        self._values = columns_of(
            output,
            (output.timestamp, *([window_field] if window_field else []), *output.value_names),
        )
        self._names = output_names(output)

    def difference(
        self,
        before: StateReader,
        old: Sequence[ResultRow],
        after: StateReader,
        new: Sequence[ResultRow],
    ) -> list[pl.DataFrame]:
        """Return frames that retract `old` as of `before` and add `new` as of `after`, without the
        rows that are the same in both.
        """
        was = dict(zip(old, self._rows(before, old), strict=True))
        becomes = dict(zip(new, self._rows(after, new), strict=True))
        removed = [(row, data) for row, data in was.items() if becomes.get(row) != data]
        added = [(row, data) for row, data in becomes.items() if was.get(row) != data]
        return [self._frame(rows, sign) for rows, sign in ((removed, -1), (added, 1)) if rows]

    def _rows(self, reads: StateReader, rows: Sequence[ResultRow]) -> list[bytes]:
        found = self._values_of(reads, rows)
        return [
            encode([row.time, *_window(row, self._window_field), *(values[i] for i in self._order)])
            for row, values in zip(rows, found, strict=True)
        ]

    def _frame(self, rows: Sequence[tuple[ResultRow, bytes]], sign: int) -> pl.DataFrame:
        keys = [row.key for row, _ in rows]
        frame = pl.concat(
            [decode_rows(keys, self._keys), decode_rows([data for _, data in rows], self._values)],
            how="horizontal",
        )
        positions = pl.Series(POS, [_position(row) for row, _ in rows], dtype=pl.Binary)
        return frame.with_columns(
            positions, pl.lit(sign, pl.Int8).alias(SIGN), pl.lit(value=False).alias(IS_TOMBSTONE)
        ).select(self._names)


def to_outputs(*parts: list[pl.DataFrame]) -> tuple[OutputBatch, ...]:
    """Return all frames as one batch for output 0."""
    frames = [frame for part in parts for frame in part]
    return (OutputBatch(0, pl.concat(frames)),) if frames else ()


def _window(row: ResultRow, field: str | None) -> list[dict[str, int]]:
    if field is None:
        return []
    assert row.window is not None, "a result keyed by windows has a window"
    return [{"begin": row.window[0], "end": row.window[1]}]


def _position(row: ResultRow) -> bytes:
    """Return a position of the usual length, after every one that starts with a zero byte."""
    return b"\x01" + blake2b(row.key + repr(row.window).encode(), digest_size=13).digest()
