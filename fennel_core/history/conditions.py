"""Conditions on columns that readers of files and topics apply before anything else.

Theory. Files are immutable and know the smallest and largest value of each column per row group, so
a condition leaves out whole row groups, then rows. Values are physical: times are microseconds,
dates are days. A null satisfies no condition.

Example. `ValueRange("at", low=7)` and `AnyOf("__group", (3, 90))` read, of each file, only the row
groups that may have a row of group 3 or 90 at 7 or later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

import polars as pl
import pyarrow.parquet as pq

from fennel_core.history.parquet import GROUP, key_groups, statistics_of
from fennel_core.vocab.keys import key_bytes, key_group

Value = int | str | bool
MOST_KEYS: Final = 10_000
"""Keys whose groups are computed; more of them are in every group anyway."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """The column has one of the values, which are of one type."""

    column: str
    values: tuple[Value, ...]

    def keeps(self) -> pl.Expr:
        """Return which rows satisfy it."""
        wanted = pl.Series(self.values, dtype=None if self.values else pl.Int64)
        if not self.values:
            return pl.lit(value=False)
        return _physical(self.column, self.values[0]).is_in(wanted.implode())

    def may_be_within(self, smallest: Value, largest: Value) -> bool:
        """Return whether a value of a range, ends included, may satisfy it."""
        return any(smallest <= value <= largest for value in self.values)  # type: ignore[operator]  # of one type


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The column is at least `low` and at most `high`; None: without an end."""

    column: str
    low: int | None = None
    high: int | None = None

    def keeps(self) -> pl.Expr:
        """Return which rows satisfy it."""
        column, found = _physical(self.column, 0), pl.col(self.column).is_not_null()
        if self.low is not None:
            found &= column >= self.low
        if self.high is not None:
            found &= column <= self.high
        return found

    def may_be_within(self, smallest: Value, largest: Value) -> bool:
        """Return whether a value of a range, ends included, may satisfy it."""
        assert isinstance(smallest, int), "ranges are of numbers"
        assert isinstance(largest, int), "ranges are of numbers"
        return (self.low is None or largest >= self.low) and (
            self.high is None or smallest <= self.high
        )


Condition = AnyOf | ValueRange


@dataclass(frozen=True, slots=True)
class Conditions:
    """Selects the rows that satisfy all of `every`.

    `keys`: the columns whose bytes decide the key group of a row that comes from a topic.
    """

    every: tuple[Condition, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read to decide."""
        return tuple(dict.fromkeys(each.column for each in self.every))

    def kept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the selected rows."""
        if GROUP in self.names and GROUP not in rows.columns:
            rows = rows.with_columns(key_groups(rows, self.keys))
        return rows.filter(*(each.keeps() for each in self.every)) if self.every else rows

    def may_keep(self, group: pq.RowGroupMetaData) -> bool:
        """Return whether a row group may have a selected row, by its statistics."""
        return all(_may_keep(each, group) for each in self.every)

    def also(self, *more: Condition) -> Conditions:
        """Return the conditions with others added."""
        return Conditions((*self.every, *more), self.keys)

    def span(self, column: str) -> tuple[int | None, int | None]:
        """Return the smallest and largest value that a selected row may have; None: any."""
        lows, highs = [], []
        for each in self.every:
            if each.column != column:
                continue
            match each:
                case ValueRange(_, low, high):
                    lows.append(low)
                    highs.append(high)
                case AnyOf(_, values):
                    numbers = [value for value in values if isinstance(value, int)]
                    lows.append(min(numbers, default=None))
                    highs.append(max(numbers, default=None))
        known_lows = [low for low in lows if low is not None]
        known_highs = [high for high in highs if high is not None]
        return max(known_lows, default=None), min(known_highs, default=None)


def groups_of_keys(
    conditions: Sequence[Condition], keys: Sequence[str], types: Mapping[str, pl.DataType]
) -> frozenset[int] | None:
    """Return the key groups of the rows that satisfy `conditions`; None: any.

    `keys`: the columns of the key in order; `types`: those of columns.
    """
    if not keys:
        return None
    values: dict[str, set[Value]] = {}
    for each in conditions:
        if isinstance(each, AnyOf) and each.column in keys:
            values[each.column] = values.get(each.column, set(each.values)) & set(each.values)
    if set(values) != set(keys):
        return None
    if prod(map(len, values.values())) > MOST_KEYS:
        return None
    combined = list(product(*(sorted(values[name]) for name in keys)))
    columns = zip(*combined, strict=True) if combined else ([] for _ in keys)
    frame = pl.DataFrame(
        [
            pl.Series(name, list(column), dtype=_physical_type(types[name])).cast(types[name])
            for name, column in zip(keys, columns, strict=True)
        ]
    )
    return frozenset(map(key_group, key_bytes(frame, keys)))


def _may_keep(condition: Condition, group: pq.RowGroupMetaData) -> bool:
    found = statistics_of(group, condition.column)
    if found is None or not found.has_min_max:
        return True
    for smallest, largest in ((found.min, found.max), (found.min_raw, found.max_raw)):
        if isinstance(smallest, str) and isinstance(largest, str):
            return condition.may_be_within(smallest, largest)
        if isinstance(smallest, int) and isinstance(largest, int):
            return condition.may_be_within(smallest, largest)
    return True


def _physical(column: str, value: Value) -> pl.Expr:
    found = pl.col(column).to_physical()
    return found if isinstance(value, bool | str) else found.cast(pl.Int64)


def _physical_type(dtype: pl.DataType) -> pl.DataType:
    if isinstance(dtype, pl.Boolean | pl.String):
        return dtype
    return pl.Int32() if isinstance(dtype, pl.Date) else pl.Int64()
