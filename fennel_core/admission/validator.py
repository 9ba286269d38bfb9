"""Turn JSON columns into typed rows of one source dataset, or reject them by column, row and value.

The steps are preproc, where, cast, in this order, before anything is acknowledged; then `since` and
`until`, the sample and erased keys. Expressions run here, user code in the executors. Values that
preproc computes pass the same cast as logged values. The branch that logs gets all or nothing
(`validate`). For other branches that have a source on the endpoint, bad rows are dead-lettered and
the rest is accepted (`validate_or_dead_letter`): a pipeline in a colleague's branch never makes
your request fail. The same holds for requests that are older than the dataset (`source_replay`).

Rows with cdc `debezium` are change events (`changes.py`), and those with cdc `native` rows of a
change data feed (`native_changes.py`): a row that one puts is validated as any other. Of a delete
only the key is typed, because `before` may have no more, so `where` and the sample (unless it is
one of keys) do not apply: a delete of a row that was left out has no effect.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import operator
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache, partial, reduce
from typing import Any, Protocol, assert_never

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from fennel_core.admission.changes import DELETED_US, Changes, changes_of
from fennel_core.admission.errors import (
    AdmissionError,
    RowsRejected,
    SourceCodeFailed,
    SourceCodeUnavailable,
)
from fennel_core.admission.native_changes import native_changes
from fennel_core.admission.payload import Payload, descend, root_of
from fennel_core.admission.refusals import (
    bad_kind,
    bad_places,
    cause_kind,
    preproc_refusal,
    refusal,
    split_refused,
)
from fennel_core.admission.selection import not_erased, sampled, within_bounds
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.executors.calls import AssignCall, ExecutorCall, FilterCall
from fennel_core.executors.client import Callbacks
from fennel_core.executors.errors import CallFailed, ExecutorUnavailable, UserCodeFailed
from fennel_core.executors.protocol import ROW
from fennel_core.expressions.errors import EvaluationFailed, InvalidExpression
from fennel_core.expressions.evaluate import compile_columns
from fennel_core.expressions.infer import infer
from fennel_core.expressions.references import references
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype, Field, is_optional
from fennel_core.vocab.ids import DatasetName
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import (
    Cdc,
    Constant,
    EvalCode,
    EvalExpr,
    FromPayload,
    PreProc,
    Source,
)
from fennel_core.wire.errors import (
    BadColumn,
    RejectedRows,
)
from fennel_core.wire.expr import Expr
from fennel_core.wire.json_decode import decode_column, decode_table
from fennel_core.wire.json_encode import encode_column

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
ATTEMPTS = 64
"""Validations of one request for another branch; after these its remaining rows are dead-lettered
without looking for the bad ones.
"""
_json = msgspec.json.Encoder().encode
CHANGES = (Cdc.DEBEZIUM, Cdc.NATIVE)
"""Rows of these are changes: some delete a key."""
ROWS_IN_LOOP = 2_000
"""Larger requests are cast in a thread, so that they do not delay small ones."""
_VALUE = "value"


class SourceDefinition(Protocol):
    """The part of `SourceBinding` and `SourceReplaySpec` that validation uses."""

    @property
    def dataset(self) -> DatasetName: ...

    @property
    def source(self) -> Source: ...

    @property
    def schema(self) -> Schema: ...


class CodeRunner(Protocol):
    """The part of `executors.client.Executors` that validation uses."""

    async def run(
        self,
        call: ExecutorCall,
        rows: pa.Table | pl.DataFrame | None,
        *,
        callbacks: Callbacks,
        timeout_ms: int | None = None,
    ) -> pa.Table: ...


class RowKind(Enum):
    """What typed rows are. Rows of a snapshot and deletes are never late."""

    EVENT = "event"
    SNAPSHOT = "snapshot"
    DELETE = "delete"
    """Tombstones: fields that are neither keys nor the timestamp are null, whatever their type."""


@dataclass(frozen=True, slots=True)
class TypedRows:
    """Typed rows with the schema's column order, and their row numbers within the request."""

    frame: pl.DataFrame
    numbers: npt.NDArray[np.int64]
    kind: RowKind = RowKind.EVENT

    def filter(self, keep: pl.Series) -> TypedRows:
        """Return the rows where the mask `keep` is true."""
        return replace(self, frame=self.frame.filter(keep), numbers=self.numbers[keep.to_numpy()])


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Rejected rows as they were logged, with the reason; `kind` is the reason without values."""

    reason: str
    payload: Payload
    kind: str


class Validator:
    """Validates payloads for sources; `callbacks` are the calls that user code may make."""

    def __init__(self, executors: CodeRunner, callbacks: Callbacks) -> None:
        self._executors = executors
        self._callbacks = callbacks

    async def validate(
        self, binding: SourceDefinition, payload: Payload, erased: tuple[ErasedKeys, ...] = ()
    ) -> TypedRows:
        """Return the rows of `payload` that the source accepts; raises `RowsRejected`.

        Rows of change events have several kinds: see `validate_or_dead_letter`.
        """
        assert binding.source.cdc not in CHANGES, "no client logs change events"
        return await self._rows(binding, payload, erased)

    async def _rows(
        self, binding: SourceDefinition, payload: Payload, erased: tuple[ErasedKeys, ...]
    ) -> TypedRows:
        for field, step in binding.source.preproc:
            payload = payload.having(field, await self._preprocessed(binding, payload, field, step))
        if binding.source.where is not None:
            payload = payload.take(await self._kept(binding, payload, binding.source.where))
        if len(payload) > ROWS_IN_LOOP:
            frame = await asyncio.to_thread(_decoded, binding, payload, binding.schema)
        else:
            frame = _decoded(binding, payload, binding.schema)
        return _selected(TypedRows(frame, payload.numbers), binding, erased)

    async def validate_or_dead_letter(
        self,
        binding: SourceDefinition,
        payload: Payload,
        erased: tuple[ErasedKeys, ...] = (),
        *,
        attempts: int | None = ATTEMPTS,
    ) -> tuple[list[TypedRows], list[DeadLetter]]:
        """Return the accepted rows and the rejected ones.

        An optional field that the whole request lacks is null: its sender may not know of it.
        `attempts`: see `ATTEMPTS`; None: look for every bad row, and raise `SourceCodeFailed` when
        user code could not be run, as for rows that no client waits for.
        """
        if binding.source.cdc in CHANGES:
            changes = (
                changes_of(payload, binding.source, binding.schema)
                if binding.source.cdc is Cdc.DEBEZIUM
                else native_changes(payload, binding.schema)
            )
            return await self._changed(binding, payload, changes, erased, attempts)
        return await _sorted_out(
            lambda part: self._rows(binding, part, erased),
            _with_optional_columns(binding, payload),
            attempts,
        )

    async def _changed(
        self,
        binding: SourceDefinition,
        payload: Payload,
        changes: Changes,
        erased: tuple[ErasedKeys, ...],
        attempts: int | None,
    ) -> tuple[list[TypedRows], list[DeadLetter]]:
        """Return the rows and deletes of change events; dead letters have the events."""
        good: list[TypedRows] = []
        dead = [
            DeadLetter(each.reason, payload.take(each.places), each.reason)
            for each in changes.refused
        ]
        put, delete = (partial(method, binding) for method in (self._rows, self._deletes))
        for kind, part, admit in (
            (RowKind.EVENT, changes.put, put),
            (RowKind.SNAPSHOT, changes.read, put),
            (RowKind.DELETE, changes.deleted, delete),
        ):
            if not len(part):
                continue
            if kind is not RowKind.DELETE:
                part = _with_optional_columns(binding, part)
            rows, letters = await _sorted_out(partial(admit, erased=erased), part, attempts)
            good += [replace(each, kind=kind) for each in rows]
            for letter in letters:
                places = np.flatnonzero(np.isin(payload.numbers, letter.payload.numbers))
                dead.append(replace(letter, payload=payload.take(places)))
        return good, dead

    async def _deletes(
        self, binding: SourceDefinition, payload: Payload, erased: tuple[ErasedKeys, ...]
    ) -> TypedRows:
        """Return tombstones of the keys in `payload`; raises `RowsRejected`."""
        schema = binding.schema
        times_us = _delete_times(binding, payload)
        for field, step in binding.source.preproc:
            if field in schema.key_names:
                payload = payload.having(
                    field, await self._preprocessed(binding, payload, field, step)
                )
        keys = Schema(schema.keys, (), schema.timestamp)
        texts = times_us.cast(pl.Datetime("us")).dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_list()
        frame = _decoded(binding, payload.having(schema.timestamp, texts), keys)
        rows = _selected(TypedRows(frame, payload.numbers), binding, erased)
        absent = pl.from_arrow(schema.arrow().empty_table())
        assert isinstance(absent, pl.DataFrame), "a table becomes a frame"
        whole = pl.concat([absent, rows.frame], how="diagonal")
        return replace(rows, frame=whole.select(schema.names))

    async def _preprocessed(
        self, binding: SourceDefinition, payload: Payload, field: str, step: PreProc
    ) -> list[Any]:
        """Return the JSON values that preproc computes for `field`."""
        match step:
            case FromPayload(path):
                values = descend(payload, path)
                if values is None:
                    raise preproc_refusal(
                        binding.dataset, payload, f"Referenced column {path} not found in dataframe"
                    )
                return values
            case Constant(value, dtype):
                # As text: the cast would have to guess the unit of a number.
                exact = (
                    (EPOCH + dt.timedelta(microseconds=int(value))).isoformat()
                    if isinstance(dtype, dtypes.Timestamp)
                    else value
                )
                return [exact] * len(payload)
            case EvalExpr(expr, extra):
                schema = _preproc_schema(binding, extra)
                made, inferred = self._evaluated(
                    binding, payload, expr, schema, f"Error in assign preproc for field `{field}`"
                )
                return _json_values(made, inferred)
            case EvalCode(pycode, extra):
                declared = binding.schema.field(field)
                assert declared is not None, "the compiler has checked that preproc fields exist"
                frame, given, raw = _code_inputs(binding, payload, _preproc_schema(binding, extra))
                call = AssignCall(pycode, binding.dataset, given, declared, raw, checked=False)
                answer = await self._run(
                    binding, payload, call, frame, f"Error in assign preproc for field `{field}`"
                )
                return _json_values(answer.column(field), declared.dtype)
            case unreachable:
                assert_never(unreachable)

    async def _kept(
        self, binding: SourceDefinition, payload: Payload, where: EvalExpr | EvalCode
    ) -> npt.NDArray[np.int64]:
        """Return the indexes of the rows that `where` keeps."""
        schema = {f.name: f.dtype for f in (*binding.schema.fields, *where.schema)}
        match where:
            case EvalExpr(expr, _):
                mask, _ = self._evaluated(binding, payload, expr, schema, "Error using where")
                return np.flatnonzero(mask.fill_null(value=False).to_numpy())
            case EvalCode(pycode, _):
                frame, given, raw = _code_inputs(binding, payload, schema)
                answer = await self._run(
                    binding,
                    payload,
                    FilterCall(pycode, binding.dataset, given, raw),
                    frame,
                    "Error using where",
                )
                return np.sort(answer.column(ROW).to_numpy())
            case unreachable:
                assert_never(unreachable)

    def _evaluated(
        self,
        binding: SourceDefinition,
        payload: Payload,
        expr: Expr,
        schema: Mapping[str, Dtype],
        what: str,
    ) -> tuple[pl.Series, Dtype]:
        wanted = {name: dtype for name, dtype in schema.items() if name in references(expr)}
        frame, fields = _typed(binding, payload, wanted)
        known = tuple((f.name, f.dtype) for f in fields)
        try:
            program, dtype = _program(expr, known)
            return program.evaluate(
                frame if frame.width else pl.DataFrame({"": payload.numbers})
            ).get_column(_VALUE), dtype
        except InvalidExpression as wrong:
            text = f"{what} for dataset `{binding.dataset}`: {wrong}"
            raise refusal(binding.dataset, payload, text, kind=text) from wrong
        except EvaluationFailed as failed:
            places = failed.failed.arg_true().to_list()
            text = f"{what} for dataset `{binding.dataset}`: {failed}"
            kind = f"{what}: rows failed with `{failed.failure.code}`"
            raise refusal(binding.dataset, payload, text, places, kind=kind) from failed

    async def _run(
        self,
        binding: SourceDefinition,
        payload: Payload,
        call: ExecutorCall,
        frame: pl.DataFrame,
        what: str,
    ) -> pa.Table:
        try:
            return await self._executors.run(call, frame, callbacks=self._callbacks)
        except UserCodeFailed as raised:
            text = f"{what} for dataset `{binding.dataset}`: {raised.message}"
            raise refusal(
                binding.dataset, payload, text, kind=f"{what}: user code raised an exception"
            ) from raised
        except ExecutorUnavailable as lost:
            raise SourceCodeUnavailable(
                f"nothing was logged: {lost}; try again", lost.code
            ) from lost
        except CallFailed as failed:
            raise SourceCodeFailed(
                f"{what} for dataset `{binding.dataset}`: {failed}", failed.code
            ) from failed


async def _sorted_out(
    admit: Callable[[Payload], Awaitable[TypedRows]], payload: Payload, attempts: int | None
) -> tuple[list[TypedRows], list[DeadLetter]]:
    """Return the rows that `admit` accepts and the others, which it names by `RowsRejected`."""
    good: list[TypedRows] = []
    dead: list[DeadLetter] = []
    waiting, tried = [payload], 0
    while waiting:
        part = waiting.pop()
        tried += 1
        try:
            good.append(await admit(part))
        except RowsRejected as refused:
            bad = split_refused(part, refused)
            if bad is None or (attempts is not None and tried >= attempts):
                dead.append(DeadLetter(refused.text, part, refused.kind))
            elif refused.numbers is not None:
                dead.append(DeadLetter(refused.text, bad[0], refused.kind))
                waiting.append(bad[1])
            else:
                waiting.extend(reversed(bad))
        except SourceCodeUnavailable:
            raise  # This says nothing about the rows, so no rows are dead-lettered.
        except AdmissionError as failed:
            if attempts is None:
                raise
            dead.append(DeadLetter(failed.text, part, failed.code))
    return good, dead


def _decoded(binding: SourceDefinition, payload: Payload, schema: Schema) -> pl.DataFrame:
    """Return the rows of `payload`, cast to `schema`; raises `RowsRejected`."""
    try:
        table = decode_table(payload.columns, schema, binding.dataset)
    except RejectedRows as rejected:
        raise RowsRejected(
            str(rejected),
            payload.numbers[bad_places(rejected, payload)],
            "; ".join(cause_kind(cause, schema) for cause in rejected.causes)
            or "columns of different lengths",
        ) from rejected
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame), "a table becomes a frame"
    return frame


def _delete_times(binding: SourceDefinition, payload: Payload) -> pl.Series:
    """Return the event times of deletes in µs: see `changes.py`.

    The time of the deleted row counts if `before` has it; not if code computes it.
    """
    made = pl.Series(payload.columns[DELETED_US], dtype=pl.Int64)
    name = binding.schema.timestamp
    step = dict(binding.source.preproc).get(name)
    if step is None:
        values = payload.columns.get(name)
    else:
        values = descend(payload, step.path) if isinstance(step, FromPayload) else None
    if values is None:
        return made
    try:
        times = decode_column(values, dtypes.Optional(dtypes.Timestamp()), name)
    except BadColumn as bad:
        places = [b.row for b in bad.bad]
        kind = bad_kind(bad, dtypes.Timestamp())
        raise refusal(binding.dataset, payload, str(bad), places, kind=kind) from bad
    row = pl.Series(times).to_physical()
    return pl.select(pl.max_horizontal(made, row)).to_series()


@lru_cache(maxsize=1024)
def _program(expr: Expr, schema: tuple[tuple[str, Dtype], ...]) -> tuple[Any, Dtype]:
    columns = dict(schema)
    dtype = infer(expr, columns)
    return compile_columns({_VALUE: (expr, dtype)}, columns), dtype


def _preproc_schema(binding: SourceDefinition, extra: tuple[Field, ...]) -> dict[str, Dtype]:
    """Return the types of payload columns that a preproc reads.

    These are the dataset's fields without a preproc of their own, and the declared extra columns.
    """
    made = {name for name, _ in binding.source.preproc}
    return {f.name: f.dtype for f in binding.schema.fields if f.name not in made} | {
        f.name: f.dtype for f in extra
    }


def _typed(
    binding: SourceDefinition, payload: Payload, wanted: Mapping[str, Dtype]
) -> tuple[pl.DataFrame, tuple[Field, ...]]:
    """Return the wanted columns, cast. A column with nulls is Optional whatever its declaration:
    `where` and preproc may handle nulls before the cast forbids them.
    """
    columns: dict[str, pa.Array] = {}
    fields = []
    for name, dtype in wanted.items():
        if name not in payload.columns:
            raise preproc_refusal(
                binding.dataset,
                payload,
                f"Field `{name}` is read by the source's code, but not found in dataframe.",
            )
        try:
            array = decode_column(payload.columns[name], dtypes.Optional(dtypes.base(dtype)), name)
        except BadColumn as bad:
            places = [b.row for b in bad.bad]
            raise refusal(
                binding.dataset, payload, str(bad), places, kind=bad_kind(bad, dtype)
            ) from bad
        columns[name] = array
        fields.append(Field(name, dtypes.optional(dtype) if array.null_count else dtype))
    frame = pl.from_arrow(pa.table(columns))
    assert isinstance(frame, pl.DataFrame), "a table becomes a frame"
    return frame, tuple(fields)


def _with_optional_columns(binding: SourceDefinition, payload: Payload) -> Payload:
    """Return the payload with a column of nulls for each optional field that it lacks.

    These are fields of the dataset, columns that preproc and `where` declare as optional, and
    those from which preproc copies an optional field.
    """
    source, optional = binding.source, set[str]()
    made = {name for name, _ in source.preproc}
    for field in binding.schema.fields:
        if is_optional(field.dtype) and field.name not in made:
            optional.add(field.name)
    for name, step in source.preproc:
        target = binding.schema.field(name)
        if isinstance(step, EvalExpr | EvalCode):
            optional |= _optional_names(step)
        elif isinstance(step, FromPayload) and target is not None and is_optional(target.dtype):
            optional.add(root_of(payload, step.path))
    if source.where is not None:
        optional |= _optional_names(source.where)
    for name in sorted(optional - payload.columns.keys()):
        payload = payload.having(name, [None] * len(payload))
    return payload


def _optional_names(step: EvalExpr | EvalCode) -> set[str]:
    return {field.name for field in step.schema if is_optional(field.dtype)}


def _code_inputs(
    binding: SourceDefinition, payload: Payload, schema: Mapping[str, Dtype]
) -> tuple[pl.DataFrame, tuple[Field, ...], tuple[str, ...]]:
    """Return the whole payload for user code: declared columns cast, others as JSON text."""
    frame, fields = _typed(
        binding, payload, {name: dtype for name, dtype in schema.items() if name in payload.columns}
    )
    raw = tuple(name for name in payload.columns if name not in schema)
    texts = [
        pl.Series(name, [_json(value).decode() for value in payload.columns[name]], dtype=pl.String)
        for name in raw
    ]
    return frame.with_columns(texts) if frame.width else pl.DataFrame(texts), fields, raw


def _json_values(values: pl.Series | pa.ChunkedArray, dtype: Dtype) -> list[Any]:
    """Return typed values in the form in which a client logs them."""
    if isinstance(dtypes.base(dtype), dtypes.Bytes):
        raw: list[bytes | None] = (
            values.to_list() if isinstance(values, pl.Series) else values.to_pylist()
        )
        return [None if v is None else v.decode() for v in raw]
    return encode_column(values, dtype)


def _selected(
    rows: TypedRows, binding: SourceDefinition, erased: tuple[ErasedKeys, ...]
) -> TypedRows:
    """Drop the rows outside `since` and `until`, outside the sample, or with an erased key."""
    source = binding.source
    if (
        source.since_us is None
        and source.until_us is None
        and source.sampling is None
        and not erased
    ):
        return rows
    times = rows.frame.get_column(binding.schema.timestamp).to_physical()
    sampling = source.sampling
    if sampling is not None and not set(sampling.columns) <= set(rows.frame.columns):
        sampling = None  # of deletes only the keys are known
    selections = (
        within_bounds(times, source),
        sampled(rows.frame, sampling),
        not_erased(rows.frame, erased),
    )
    masks = [m for m in selections if m is not None]
    if not masks:
        return rows
    keep = reduce(operator.and_, masks)
    return rows.filter(keep)
