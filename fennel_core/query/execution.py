"""Execute a program: the levels of a plan, one after the other, over columns.

A query reads the clock once and all its lookups are as of that time, so rows stamped in the future
are invisible and all features of a response belong to one moment of event time. A row that is
accepted while a query runs may be seen by one level and not by an earlier one, but the row of a key
is read once per query: two features from one row never disagree. The lookups of a level are sent
together (one frame per owner slot), concurrently with its extractors; the first failure cancels the
others. The common request of one row never creates a frame: its row is decoded into a list, whose
items are the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat

import msgspec
import polars as pl
import pyarrow as pa

from fennel_core.blueprints.spec import DatasetView
from fennel_core.executors.client import Callbacks, Executors
from fennel_core.executors.errors import CallFailed, ExecutorUnavailable
from fennel_core.executors.protocol import TS
from fennel_core.executors.results import frame_of
from fennel_core.query.batch_thread import ROWS_IN_LOOP, SLICE_ROWS, off_loop, slices
from fennel_core.query.bound_expressions import BoundExpressions
from fennel_core.query.columns import LOGICAL_TIME, QueryColumn, logical_type
from fennel_core.query.concurrently import gather_or_cancel
from fennel_core.query.errors import (
    ExtractorFailed,
    ExtractorUnavailable,
    JobParked,
    ValueNotConvertible,
)
from fennel_core.query.lookups import EncodedRows, JobLookup, Lookups, ReadOutcome, transpose
from fennel_core.query.program import (
    BoundAlias,
    BoundExtractor,
    BoundLevel,
    BoundLocal,
    BoundLookup,
    QueryProgram,
    Registers,
)
from fennel_core.vocab.dtypes import Dtype, base
from fennel_core.vocab.ids import JobId

_encode_key = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(list[object]).decode


@dataclass(slots=True)
class KeyTrace:
    """The keys in datasets with erase keys that a query looked up, for the query log.

    `registers`: the columns that `QueryProgram.erasable` names. `looked_up`: the key columns of
    lookups by user code, in key order, of each dataset, which came in `looked_up_bytes`.
    """

    registers: dict[int, QueryColumn] = field(default_factory=dict)
    looked_up: list[tuple[DatasetView, list[QueryColumn]]] = field(default_factory=list)
    looked_up_bytes: int = 0


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """One query: its columns by full feature name, its number of rows, its clock reading."""

    given: dict[str, QueryColumn]
    rows: int
    now_us: int
    large: bool = False
    """Whether its work is done off the event loop (`batch_thread`)."""
    outcome: ReadOutcome = field(default_factory=ReadOutcome)
    seen: dict[tuple[JobId, bytes], bytes | None] = field(default_factory=dict)
    """The rows of jobs that more than one level looks up, by key."""
    trace: KeyTrace | None = None
    """Of a query that is logged."""


class ProgramRunner:
    """Runs programs against slots and executors."""

    def __init__(self, lookups: Lookups, executors: Executors) -> None:
        self._lookups = lookups
        self._executors = executors

    async def run(
        self, program: QueryProgram, request: QueryRequest, callbacks: Callbacks
    ) -> list[QueryColumn]:
        """Return the columns of `program.outputs`, each with `request.rows` values.

        Raises `QueryError`.
        """
        registers: list[QueryColumn | None] = [None] * program.registers
        for name, _, place in program.inputs:
            registers[place] = request.given[name]
        filled: Registers = registers  # type: ignore[assignment]  # the planner computes every register before it is read
        for level in program.levels:
            await self._level(level, program.repeated, filled, request, callbacks)
        outputs = [filled[place] for _, _, place in program.outputs]
        if request.trace is not None:
            request.trace.registers = {
                place: filled[place] for lookup in program.erasable for place in lookup.keys
            }
        await off_loop(request.large, registers.clear)
        return outputs

    async def _level(
        self,
        level: BoundLevel,
        repeated: frozenset[JobId],
        registers: Registers,
        request: QueryRequest,
        callbacks: Callbacks,
    ) -> None:
        if level.local:
            await off_loop(request.large, lambda: _compute(level.local, registers, request))
        work = [self._extract(step, registers, request, callbacks) for step in level.extractors]
        if level.lookups:
            work.append(self._look_up(level.lookups, repeated, registers, request))
        if len(work) == 1:
            await work[0]
        elif work:
            await gather_or_cancel(work)

    async def _look_up(
        self,
        steps: tuple[BoundLookup, ...],
        repeated: frozenset[JobId],
        registers: Registers,
        request: QueryRequest,
    ) -> None:
        asked = await off_loop(request.large, lambda: _distinct_keys(steps, registers))
        large = request.large or any(len(each.keys) > ROWS_IN_LOOP for each in asked)
        job_lookups = [
            JobLookup(step.job, step.partitions, each.keys, request.now_us, step.erasable)
            for step, each in zip(steps, asked, strict=True)
        ]
        try:
            found = (
                await self._fetch_once(job_lookups, repeated, request, large=large)
                if repeated
                else await self._lookups.fetch(job_lookups, request.outcome)
            )
        except JobParked as parked:
            raise parked.needed_by(_features_of(steps, str(parked))) from parked

        def fill() -> None:
            for step, each, rows in zip(steps, asked, found, strict=True):
                each.fill_registers(step, rows, registers)
            # Freed here, because that takes long, too.
            found.clear()

        await off_loop(large, fill)

    async def _fetch_once(
        self,
        job_lookups: list[JobLookup],
        repeated: frozenset[JobId],
        request: QueryRequest,
        *,
        large: bool,
    ) -> list[EncodedRows]:
        """Fetch rows; rows of `repeated` jobs that an earlier level has fetched are used again."""
        seen = request.seen

        def unseen() -> list[JobLookup]:
            return [
                replace(each, keys=[key for key in each.keys if (each.job, key) not in seen])
                if each.job in repeated
                else each
                for each in job_lookups
            ]

        missing = await off_loop(large, unseen)
        fetched = await self._lookups.fetch(missing, request.outcome)

        def merged() -> list[EncodedRows]:
            for each, rows in zip(missing, fetched, strict=True):
                if each.job in repeated:
                    for key, row in zip(each.keys, rows, strict=True):
                        # Two steps of one level may look the same key up.
                        seen.setdefault((each.job, key), row)
            return [
                [seen[each.job, key] for key in each.keys] if each.job in repeated else rows
                for each, rows in zip(job_lookups, fetched, strict=True)
            ]

        return await off_loop(large, merged)

    async def _extract(
        self,
        step: BoundExtractor,
        registers: Registers,
        request: QueryRequest,
        callbacks: Callbacks,
    ) -> None:
        rows = await off_loop(request.large, lambda: _input_rows(step, registers, request))
        try:
            table = await self._executors.run(step.call, rows, callbacks=callbacks)
            frame = frame_of(step.call, table)
        except ExecutorUnavailable as busy:
            raise ExtractorUnavailable(str(busy)) from busy
        except CallFailed as failed:
            raise ExtractorFailed(str(failed)) from failed
        assert frame.height == request.rows, "an extractor returns a row per input row"
        for place, out in step.keep:
            field = step.call.outputs[place]
            registers[out] = QueryColumn(field.dtype, series=frame[field.name])


def _compute(local: Sequence[BoundLocal], registers: Registers, request: QueryRequest) -> None:
    for step in local:
        match step:
            case BoundAlias(source, out, dtype, fill):
                registers[out] = registers[source].filled(fill, dtype)
            case BoundExpressions():
                step.run(registers, request.rows, request.now_us)


def _input_rows(step: BoundExtractor, registers: Registers, request: QueryRequest) -> pa.Table:
    now = (
        pl.Series([request.now_us], dtype=pl.Int64)
        .cast(LOGICAL_TIME)
        .new_from_index(0, request.rows)
    )
    columns = [now, *(registers[i].series for i in step.inputs)]
    arrays = [column.to_arrow(compat_level=pl.CompatLevel.oldest()) for column in columns]
    # Not a dict: an input may occur twice.
    return pa.Table.from_arrays(arrays, [TS, *(field.name for field in step.call.inputs)])


def _features_of(steps: tuple[BoundLookup, ...], text: str) -> list[str]:
    """Return the features of the job that `text` names.

    A slot refuses the request of a level as a whole, and only its text has the job.
    """
    concerned = [step for step in steps if step.job in text] or steps
    return [name for step in concerned for name in step.features]


@dataclass(frozen=True, slots=True)
class _DistinctKeys:
    """The distinct keys of one lookup.

    `places` is the index of the key of each row (or list element), None when they are the keys in
    order; `lengths` are those of listed rows.
    """

    keys: list[bytes]
    places: list[int] | None
    lengths: list[int] | None

    @classmethod
    def of(cls, step: BoundLookup, registers: Registers) -> _DistinctKeys:
        if step.listed:
            columns, lengths = _flatten(step, registers)
        else:
            lengths = None
            columns = [
                key_values(registers[i], dtype)
                for i, dtype in zip(step.keys, step.key_types, strict=True)
            ]
        keys = key_bytes(columns)
        distinct = dict.fromkeys(keys)
        if len(distinct) == len(keys):
            return cls(keys, None, lengths)
        numbers = dict(zip(distinct, range(len(distinct)), strict=True))
        return cls(list(distinct), list(map(numbers.__getitem__, keys)), lengths)

    def fill_registers(self, step: BoundLookup, rows: EncodedRows, registers: Registers) -> None:
        """Write the values of the rows to the registers of the step."""
        if self.lengths is None and len(rows) == 1 and self.places is None:
            values = _decode_row(rows[0] if rows[0] is not None else step.absent)
            for read in step.reads:
                value = values[read.place]
                registers[read.out] = QueryColumn(
                    read.dtype, (read.fill if value is None else value,)
                )
            return
        columns = transpose(rows, step.absent) if rows else None
        for read in step.reads:
            found: Sequence[object] = [] if columns is None else columns[read.place]
            if read.fill is not None and None in found:
                found = [read.fill if value is None else value for value in found]
            if self.places is not None:
                found = list(map(found.__getitem__, self.places))
            if self.lengths is not None:
                found = list(map(list, map(islice, repeat(iter(found)), self.lengths)))
            registers[read.out] = QueryColumn(read.dtype, found)


def _distinct_keys(steps: Sequence[BoundLookup], registers: Registers) -> list[_DistinctKeys]:
    """Return the keys of each step; steps of a group share them."""
    of_group: dict[int, _DistinctKeys] = {}
    for step in steps:
        if step.group not in of_group:
            of_group[step.group] = _DistinctKeys.of(step, registers)
    return [of_group[step.group] for step in steps]


def key_values(column: QueryColumn, dtype: Dtype) -> Sequence[object]:
    """Return a key column's physical values as the key field `dtype` stores them.

    Key bytes must agree with those that ingest wrote.
    """
    if column.dtype == dtype or base(column.dtype) == base(dtype):
        return column.values
    try:
        return QueryColumn(dtype, series=column.series.cast(logical_type(dtype))).values
    except pl.exceptions.PolarsError as error:
        raise ValueNotConvertible(
            f"a key of type {column.dtype} cannot be looked up as {dtype}: {error}"
        ) from error


def key_bytes(columns: Sequence[Sequence[object]]) -> list[bytes]:
    """Return the key bytes of rows given as physical columns in key order (as
    `vocab.keys.key_bytes`).
    """
    if len(columns[0]) <= SLICE_ROWS:
        return list(map(_encode_key, zip(*columns, strict=True)))
    keys: list[bytes] = []
    for some in slices(len(columns[0])):
        keys += map(_encode_key, zip(*(column[some] for column in columns), strict=True))
    return keys


def _flatten(step: BoundLookup, registers: Registers) -> tuple[list[Sequence[object]], list[int]]:
    """Return the elements of the key lists, in row order, and the length of each row's list."""
    lists = [registers[i].values for i in step.keys]
    for name, column in zip(step.names, lists, strict=True):
        if None in column:
            raise ValueNotConvertible(
                f"Input feature `{name}` is not of type list,found `None` of type `{type(None)}`"
            )
    lengths: list[list[int]] = [list(map(len, column)) for column in lists]  # type: ignore[arg-type]  # lists, by the check above
    for name, other in zip(step.names, lengths, strict=True):
        if other != lengths[0]:
            row = next(i for i, (a, b) in enumerate(zip(other, lengths[0], strict=True)) if a != b)
            raise ValueNotConvertible(
                f"All input features must have the same length, found {other[row]} "
                f"for feature {name} "
                f"and {lengths[0][row]} for feature {step.names[0]}"
            )
    return [list(chain.from_iterable(column)) for column in lists], lengths[0]  # type: ignore[arg-type]  # as above
