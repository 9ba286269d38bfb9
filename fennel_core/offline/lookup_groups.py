"""Lookups that share their keys: one timeline answers all of them.

The lookups of one level of a program with the same key features are a *group*. Its requests are
made from the rows of the query, its timeline holds the versions of all datasets that the group
looks up, and its answers become registers, as the online path fills them
(`query.execution`): a row that is missing or erased is replaced by the absent row, and a null by
the default of the feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import polars as pl

from fennel_core.connections.erasures import ErasableKeys
from fennel_core.offline.asof_join import AsOfJoin
from fennel_core.offline.rows import (
    AT,
    ELEMENT,
    REASON,
    ROW,
    RowFailures,
    failed_rows,
    register,
    without,
)
from fennel_core.offline.scratch import ScratchStore
from fennel_core.offline.sources import (
    FOUND,
    AggregateSource,
    LookupSource,
    TableSource,
    column_at,
    source_of,
)
from fennel_core.offline.tile_lookups import TileLookups
from fennel_core.offline.timeline import (
    KEY,
    REQUEST,
    TIME,
    SeenVersions,
    TimelineChunk,
    version_rows,
)
from fennel_core.offline.window_lookups import WindowLookups
from fennel_core.operators.spec import StepSpec, has_validity
from fennel_core.query.columns import QueryColumn, logical_type
from fennel_core.query.erasures import ErasureRule
from fennel_core.query.program import BoundLevel, BoundLookup, BoundRead
from fennel_core.vocab.dtypes import Dtype, List, base
from fennel_core.vocab.ids import JobId
from fennel_core.vocab.keys import key_series

_decode_row = msgspec.msgpack.Decoder(list[object]).decode
_KEY_COLUMN: Final = "__key{}"
Erasures = Mapping[ErasableKeys, Sequence[ErasureRule]]
"""The erased keys of the datasets that lookups read."""


class Answerer(Protocol):
    """Answers the requests of a timeline from one dataset."""

    def answer(self, seen: SeenVersions) -> pl.DataFrame:
        """Return, per request of a chunk in order, the columns that are read and `FOUND`."""
        ...


@dataclass(frozen=True, slots=True)
class LookupGroup:
    """Lookups with the same keys. `sources` are the distinct jobs that serve them, in the order of
    their numbers in the timeline.
    """

    lookups: tuple[BoundLookup, ...]
    sources: tuple[tuple[JobId, LookupSource], ...]

    @property
    def listed(self) -> bool:
        return self.lookups[0].listed

    @property
    def keys(self) -> tuple[int, ...]:
        return self.lookups[0].keys

    @property
    def outputs(self) -> tuple[tuple[int, Dtype], ...]:
        """The registers that the group fills, with the types of one element."""
        return tuple(
            (read.out, element_type(read, listed=self.listed))
            for lookup in self.lookups
            for read in lookup.reads
        )


def lookup_groups(level: BoundLevel, steps: Mapping[JobId, StepSpec]) -> tuple[LookupGroup, ...]:
    """Return the lookups of a level, by the keys that they share. `steps`: those of the jobs."""
    by_group: dict[int, list[BoundLookup]] = {}
    for lookup in level.lookups:
        by_group.setdefault(lookup.group, []).append(lookup)
    return tuple(_group(lookups, steps) for lookups in by_group.values())


def _group(lookups: Sequence[BoundLookup], steps: Mapping[JobId, StepSpec]) -> LookupGroup:
    places: dict[JobId, list[int]] = {}
    for lookup in lookups:
        places.setdefault(lookup.job, []).extend(read.place for read in lookup.reads)
    sources = tuple((job, source_of(steps[job], read, job)) for job, read in places.items())
    return LookupGroup(tuple(lookups), sources)


def element_type(read: BoundRead, *, listed: bool) -> Dtype:
    """Return the type of what one row gives: that of the feature, or of an element of its list."""
    if not listed:
        return read.dtype
    dtype = base(read.dtype)
    assert isinstance(dtype, List), "the client gives list lookups a list type"
    return dtype.of


def group_versions(source: LookupSource, number: int, versions: pl.DataFrame) -> pl.DataFrame:
    """Return versions of a source as rows of the group's timeline."""
    return version_rows(versions, number, source.keys, source.time, source.version_columns)


def with_requests(frame: pl.DataFrame, group: LookupGroup) -> tuple[pl.DataFrame, RowFailures]:
    """Return the rows with `KEY` and `TIME`, one per element for a group of list lookups, and the
    rows whose lists cannot be looked up.

    Rows of a list lookup have only `ROW`, the number of the element, `KEY` and `TIME`.
    """
    time = pl.col(AT).cast(pl.Int64).alias(TIME)
    if not group.listed:
        rows, failures = _with_keys(frame, group, [register(place) for place in group.keys])
        return rows.with_columns(time), failures
    names = group.lookups[0].names
    lists = [register(place) for place in group.keys]
    lengths = [pl.col(column).list.len() for column in lists]
    checked = frame.select(ROW, AT, *lists).with_columns(
        _list_problem(lists, names, lengths).alias("__problem")
    )
    failures = failed_rows(checked.filter(pl.col("__problem").is_not_null()), "__problem")
    elements = (
        checked.filter(pl.col("__problem").is_null())
        .with_columns(pl.int_ranges(lengths[0].cast(pl.Int64)).alias(ELEMENT))
        .filter(lengths[0] > 0)
        .drop("__problem")
        .explode(*lists, ELEMENT)
    )
    keyed, unconvertible = _with_keys(elements, group, lists)
    return keyed.select(ROW, ELEMENT, KEY, time), pl.concat([failures, unconvertible])


def _list_problem(
    lists: Sequence[str], names: Sequence[str], lengths: Sequence[pl.Expr]
) -> pl.Expr:
    """Return the message of the online path for lists that are null or differ in length."""
    problem = pl.lit(None, dtype=pl.String)
    for name, length in zip(reversed(names), reversed(lengths), strict=True):
        text = pl.format(
            "All input features must have the same length, found {} for feature "
            f"{name} and {{}} for feature {names[0]}",
            length,
            lengths[0],
        )
        problem = pl.when(length != lengths[0]).then(text).otherwise(problem)
    for column, name in zip(reversed(lists), reversed(names), strict=True):
        null_text = (
            f"Input feature `{name}` is not of type list,found `None` of type `{type(None)}`"
        )
        problem = pl.when(pl.col(column).is_null()).then(pl.lit(null_text)).otherwise(problem)
    return problem


def _with_keys(
    frame: pl.DataFrame, group: LookupGroup, columns: Sequence[str]
) -> tuple[pl.DataFrame, RowFailures]:
    """Return the frame with the key bytes of requests, without rows of which a key is not a value
    of the type that its field has, and these rows.
    """
    names = [_KEY_COLUMN.format(number) for number in range(len(columns))]
    key_types = group.lookups[0].key_types
    typed = frame.with_columns(
        pl.col(column).cast(logical_type(dtype), strict=False).alias(name)
        for column, name, dtype in zip(columns, names, key_types, strict=True)
    )
    reason = pl.lit(None, dtype=pl.String)
    for column, name, dtype in zip(columns, names, key_types, strict=True):
        lost = pl.col(name).is_null() & pl.col(column).is_not_null()
        text = f"a key of type {frame.schema[column]} cannot be looked up as {dtype}"
        reason = pl.when(lost).then(pl.lit(text)).otherwise(reason)
    refused = typed.filter(reason.is_not_null()).select(ROW, reason.alias(REASON))
    failures = failed_rows(refused.unique(ROW, maintain_order=True))
    kept = without(typed, failures)
    return kept.drop(names).with_columns(key_series(kept, names).alias(KEY)), failures


class GroupAnswers:
    """Answers the requests of one timeline of a group, chunk by chunk.

    `open_scratch` opens an empty store for the state of a terminal aggregation.
    """

    def __init__(
        self, group: LookupGroup, erasures: Erasures, open_scratch: Callable[[], ScratchStore]
    ) -> None:
        self._group, self._erasures = group, erasures
        self._answerers = {
            job: answerer(source, number, open_scratch)
            for number, (job, source) in enumerate(group.sources)
        }
        self._sources = dict(group.sources)

    def answer(self, chunk: TimelineChunk) -> pl.DataFrame:
        """Return the requests of a chunk in order, with the registers of the group."""
        numbers = {job: number for number, (job, _) in enumerate(self._group.sources)}
        found = {
            job: one.answer(chunk.seen_by(numbers[job])) for job, one in self._answerers.items()
        }
        keys, requests = chunk.rows_of(REQUEST)
        return requests.with_columns(
            column
            for lookup in self._group.lookups
            for column in self._filled(lookup, found[lookup.job], keys)
        )

    def _filled(
        self, lookup: BoundLookup, rows: pl.DataFrame, keys: pl.Series
    ) -> Iterator[pl.Series]:
        found = rows[FOUND] & ~erased(self._erasures.get(lookup.erasable, ()), keys)
        all_found, absent = found.all(), _decode_row(lookup.absent)
        source = self._sources[lookup.job]
        schema = source.schema if isinstance(source, TableSource) else source.spec.output
        for read in lookup.reads:
            dtype = element_type(read, listed=lookup.listed)
            series = rows[column_at(schema, read.place)].cast(logical_type(dtype))
            if not all_found:
                missing = _constant(absent[read.place], dtype, len(series))
                series = series.zip_with(found, missing)
            if read.fill is not None and series.null_count():
                fill = _constant(read.fill, dtype, len(series))
                series = series.zip_with(series.is_not_null(), fill)
            yield series.alias(register(read.out))


def erased(rules: Sequence[ErasureRule], keys: pl.Series) -> pl.Series:
    """Return whether keys are hidden by erasures."""
    if not rules:
        return pl.repeat(value=False, n=len(keys), dtype=pl.Boolean, eager=True)
    distinct = keys.unique()
    hidden = [key for key in distinct if any(rule.hides(key) for rule in rules)]
    return keys.is_in(pl.Series(hidden, dtype=pl.Binary).implode())


def answerer(
    source: LookupSource, number: int, open_scratch: Callable[[], ScratchStore]
) -> Answerer:
    """Return what answers the requests of a timeline from dataset number `number`."""
    match source:
        case TableSource():
            return AsOfJoin(source, number)
        case AggregateSource() if has_validity(source.spec.input):
            return TileLookups(source, number, open_scratch())
        case AggregateSource():
            return WindowLookups(source, number, open_scratch())


def _constant(value: object, dtype: Dtype, rows: int) -> pl.Series:
    return QueryColumn(dtype, [value]).series.new_from_index(0, rows)


def packed(frame: pl.DataFrame, answers: pl.DataFrame, group: LookupGroup) -> pl.DataFrame:
    """Return the rows with the answers of a group of list lookups, packed back into lists."""
    outputs = [register(out) for out, _ in group.outputs]
    lists = (
        answers.sort(ROW, ELEMENT)
        .group_by(ROW, maintain_order=True)
        .agg(pl.col(name) for name in outputs)
    )
    empty = pl.lit([], dtype=pl.List(pl.Null))
    return frame.join(lists, on=ROW, how="left", maintain_order="left").with_columns(
        pl.col(register(out)).fill_null(empty.cast(pl.List(logical_type(dtype))))
        for out, dtype in group.outputs
    )
