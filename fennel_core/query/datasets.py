"""Lookups of whole datasets: the public call, and the call of user code inside an extractor.

Both share `look_up`. A key is echoed, every other column comes from the row or is null (for an
aggregation: its value without rows, see `plans.missing`), and `found` reports which keys have a
row. Without timestamps the result is as of one clock reading and needs an online index; with them
each key has its own time and the index must be an offline one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl
import pyarrow as pa

from fennel_core.executors.client import LookupReply, LookupRequest
from fennel_core.executors.internal_errors import LookupRefused
from fennel_core.query.batch_thread import ROWS_IN_LOOP, off_loop
from fennel_core.query.columns import LOGICAL_TIME, QueryColumn, logical_type
from fennel_core.query.errors import LookupRejected, QueryError, UnknownField
from fennel_core.query.execution import KeyTrace, key_bytes, key_values
from fennel_core.query.lookups import EncodedRows, JobLookup, ReadOutcome, transpose
from fennel_core.query.program import ServedDataset
from fennel_core.vocab.dtypes import Field, Timestamp, optional
from fennel_core.vocab.ids import DatasetName
from fennel_core.vocab.schema import Schema


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Columns in the requested order, and whether each key has a row."""

    columns: tuple[tuple[Field, QueryColumn], ...]
    found: list[bool]


def chosen_fields(schema: Schema, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to read: `names`, or all of them; raises `UnknownField`."""
    unknown = next((name for name in names if name not in schema.names), None)
    if unknown is not None:
        raise UnknownField(unknown)
    return tuple(names) or schema.names


def serving_check(table: ServedDataset, *, as_of: bool) -> None:
    """Raise `LookupRejected` when the dataset lacks the index that this lookup needs."""
    if as_of:
        table.offline_job()
    else:
        table.online_job()


class RowReader(Protocol):
    """Reads rows by key, from slots (`Lookups`) or from elsewhere."""

    async def fetch(self, lookups: Sequence[JobLookup], outcome: ReadOutcome) -> list[EncodedRows]:
        """Return a row per key of each lookup, None where there is none."""
        ...


async def look_up(
    lookups: RowReader,
    table: ServedDataset,
    keys: Sequence[QueryColumn],
    names: tuple[str, ...],
    as_of: int | Sequence[int],
    outcome: ReadOutcome,
) -> LookupResult:
    """Return the rows of `table` under `keys` (columns in key order).

    `as_of` is one time or one per key (µs).
    """
    large = any(len(column) > ROWS_IN_LOOP for column in keys)
    values, encoded = await off_loop(large, lambda: _encoded_keys(keys, table.view.schema))
    [rows] = await lookups.fetch(
        [JobLookup(table.job(), table.partitions, encoded, as_of, table.erasable)],
        outcome,
    )
    return await off_loop(large, lambda: _result(table, values, rows, names))


def _encoded_keys(
    keys: Sequence[QueryColumn], schema: Schema
) -> tuple[list[Sequence[object]], list[bytes]]:
    """Return the values of each key column as the dataset stores them, and each key's bytes."""
    values = [
        key_values(column, field.dtype) for column, field in zip(keys, schema.keys, strict=True)
    ]
    return values, key_bytes(values)


def _result(
    table: ServedDataset,
    values: Sequence[Sequence[object]],
    rows: EncodedRows,
    names: tuple[str, ...],
) -> LookupResult:
    """Return the columns `names`: keys are echoed, all others come from `rows`."""
    schema = table.view.schema
    echoed = {
        field.name: (field, QueryColumn(field.dtype, column))
        for field, column in zip(schema.keys, values, strict=True)
    }
    read = transpose(rows, table.absent_row) if rows else [()] * (1 + len(schema.values))
    for field, column in zip(schema.values, read[1:], strict=True):
        echoed[field.name] = (
            Field(field.name, optional(field.dtype)),
            QueryColumn(optional(field.dtype), column),
        )
    moment = optional(Timestamp())
    echoed[schema.timestamp] = (Field(schema.timestamp, moment), QueryColumn(moment, read[0]))
    return LookupResult(tuple(echoed[name] for name in names), [row is not None for row in rows])


class AskedTimes(Protocol):
    """Determines the times of a lookup by user code."""

    def of(self, asked: LookupRequest) -> int | list[int]:
        """Return one time, or one per key (µs)."""
        ...


@dataclass(frozen=True, slots=True)
class NotLaterThan:
    """The requested times, none later than that of the query: future rows are invisible."""

    now_us: int

    def of(self, asked: LookupRequest) -> int | list[int]:
        """See `AskedTimes.of`."""
        micros = asked_micros(asked).fill_null(self.now_us).clip(upper_bound=self.now_us)
        if micros.is_empty() or micros.min() == self.now_us:
            return self.now_us
        return micros.to_list()


def asked_micros(asked: LookupRequest) -> pl.Series:
    """Return the requested times (µs), null for none."""
    at = pl.from_arrow(asked.at)
    assert isinstance(at, pl.Series), "an array becomes a series"
    return at.cast(LOGICAL_TIME).to_physical()


class ExtractorLookups:
    """Serves `Dataset.lookup` of user code during one query.

    `as_of`: the dataset needs an offline index, not an online one.
    """

    def __init__(
        self,
        lookups: RowReader,
        tables: Mapping[DatasetName, ServedDataset],
        times: AskedTimes,
        outcome: ReadOutcome,
        trace: KeyTrace | None = None,
        *,
        as_of: bool = False,
    ) -> None:
        self._trace = trace
        self._lookups = lookups
        self._tables = tables
        self._times = times
        self._outcome = outcome
        self._as_of = as_of

    async def __call__(self, asked: LookupRequest) -> LookupReply:
        """See `executors.client.Callbacks.lookup`; raises `LookupRefused` for an invalid
        request.
        """
        table = self._tables.get(DatasetName(asked.dataset))
        if table is None:
            raise LookupRefused(f"Dataset `{asked.dataset}` not found, please ensure it is synced.")
        try:
            serving_check(table, as_of=self._as_of)
            names = chosen_fields(table.view.schema, asked.fields)
            keys = _key_columns(asked, table.view.schema)
            moments = self._times.of(asked)
        except (QueryError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as refused:
            raise LookupRefused(str(refused)) from refused
        if self._trace is not None and table.view.erase_keys:
            self._trace.looked_up.append((table.view, keys))
            self._trace.looked_up_bytes += asked.keys.nbytes
        answer = await look_up(self._lookups, table, keys, names, moments, self._outcome)
        return await off_loop(len(answer.found) > ROWS_IN_LOOP, lambda: _reply(answer))


def _reply(answer: LookupResult) -> LookupReply:
    frame = pl.DataFrame([column.series.alias(field.name) for field, column in answer.columns])
    fields = tuple(field for field, _ in answer.columns)
    return LookupReply(
        frame.to_arrow(compat_level=pl.CompatLevel.oldest()),
        fields,
        pa.array(answer.found, pa.bool_()),
    )


def _key_columns(asked: LookupRequest, schema: Schema) -> list[QueryColumn]:
    if asked.keys.num_columns != len(schema.keys):
        raise LookupRejected(
            f"Dataset {asked.dataset} has {len(schema.keys)} key fields, but "
            f"{asked.keys.num_columns} key fields were provided."
        )
    frame = pl.from_arrow(asked.keys)
    assert isinstance(frame, pl.DataFrame), "a table becomes a frame"
    return [
        QueryColumn(field.dtype, series=series.cast(logical_type(field.dtype)))
        for series, field in zip(frame.get_columns(), schema.keys, strict=True)
    ]
