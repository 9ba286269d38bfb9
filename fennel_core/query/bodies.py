"""Parse the JSON bodies of the read path.

The structure is checked by C code while it is parsed; a field that a body does not have is refused
by name, because it would have no effect. Python's own JSON parser is the second choice, because the
client writes bare `NaN` tokens, which strict JSON does not have. Values inside are not checked here
but by their declared types (`values.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

import msgspec

from fennel_core.query.batch_thread import SLICE_ROWS, slices
from fennel_core.query.columns import QueryColumn
from fennel_core.query.errors import (
    LookupRejected,
    RequestMalformed,
    TooManyRows,
    ValueNotConvertible,
)
from fennel_core.query.log_blocks import LogOptions
from fennel_core.query.values import input_column
from fennel_core.vocab.dtypes import Field, Timestamp
from fennel_core.wire.errors import MalformedData
from fennel_core.wire.json_data import JsonData, json_table


class QueryBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The body of `/query`. `data` may have columns that no feature needs."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    data: JsonData
    log: bool = False
    workflow: str | None = None
    sampling_rate: float | None = None


@dataclass(frozen=True, slots=True)
class FeatureQuery:
    """A parsed query: its columns by full feature name, and the orientation of the response."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    columns: Mapping[str, Sequence[Any]]
    rows: int
    by_row: bool
    workflow: str | None
    log: LogOptions | None
    """None: the query is not logged."""

    def column(self, name: str) -> Sequence[Any] | None:
        """Return the values of an input, None without a column; no rows have every column."""
        empty = () if self.by_row and not self.rows else None
        return self.columns.get(name, empty)


class LookupBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The body of `/dataset/{name}/lookup`.

    No `fields`: all of them. No `timestamps`: as of now.
    """

    keys: list[dict[str, Any]]
    fields: list[str] | None = None
    timestamps: list[Any] | None = None


class BarrierBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    timeout_s: float | None = None


Body = TypeVar("Body", QueryBody, LookupBody, BarrierBody)
_decoders: dict[type[Any], Callable[[bytes], Any]] = {
    body: msgspec.json.Decoder(body).decode for body in (QueryBody, LookupBody, BarrierBody)
}
dump = msgspec.json.Encoder().encode
LONGEST_BARRIER_S = 3600
DEFAULT_WORKFLOW = "default"
WORKFLOW_CHARS = 200
SURROGATE = b"\\ud"
"""The start of the escape of a surrogate in JSON text."""


def parse(body: bytes, kind: type[Body]) -> Body:
    """Parse `body`; bare `NaN` and `Infinity` are accepted. Raises `RequestMalformed`."""
    try:
        found: Body = _decoders[kind](body)
    except msgspec.ValidationError as error:
        raise RequestMalformed(f"malformed body: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_slowly(body, kind)
    return found


def _parse_slowly(body: bytes, kind: type[Body]) -> Body:
    try:
        found = json.loads(body)
        if SURROGATE in body.lower():
            # Python parses half of a surrogate pair as text, which cannot be encoded again.
            dump(found)
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise RequestMalformed(f"malformed body: {error}") from error
    except (ValueError, RecursionError) as error:
        raise RequestMalformed(f"the body is not JSON: {error}") from error


def query_body(body: bytes, limit_rows: int) -> FeatureQuery:
    """Parse the body of `/query`.

    Raises `RequestMalformed`, which names the part that is wrong, and `TooManyRows` above the
    limit.
    """
    found = parse(body, QueryBody)
    options = _log_options(found)
    try:
        table = json_table(found.data)
    except MalformedData as wrong:
        raise RequestMalformed(f"malformed body: {wrong}") from wrong
    if table.rows > limit_rows:
        raise TooManyRows(table.rows, limit_rows)
    return FeatureQuery(
        found.inputs,
        found.outputs,
        table.columns,
        table.rows,
        table.by_row,
        found.workflow,
        options,
    )


def _log_options(body: QueryBody) -> LogOptions | None:
    rate = body.sampling_rate
    if not body.log:
        if rate is not None:
            raise RequestMalformed("`sampling_rate` has no effect without `log`; set `log` to true")
        return None
    if rate is not None and not 0 <= rate <= 1:
        raise RequestMalformed(f"`sampling_rate` must be a number from 0 to 1: it is {rate}")
    workflow = body.workflow or DEFAULT_WORKFLOW
    if len(workflow) > WORKFLOW_CHARS:
        raise RequestMalformed(
            f"`workflow` of a logged query must have at most {WORKFLOW_CHARS} characters: it has "
            f"{len(workflow)}"
        )
    return LogOptions(workflow, 1.0 if rate is None else rate)


def lookup_body(body: bytes, limit_rows: int) -> LookupBody:
    """Parse the body of `/dataset/{name}/lookup`; raises as `query_body`."""
    found = parse(body, LookupBody)
    if len(found.keys) > limit_rows:
        raise TooManyRows(len(found.keys), limit_rows)
    if found.timestamps and len(found.timestamps) != len(found.keys):
        raise RequestMalformed(
            "`timestamps` must be a list as long as `keys`: it has "
            f"{len(found.timestamps)} for {len(found.keys)}"
        )
    return found


def barrier_timeout(body: bytes) -> float | None:
    """Return the `timeout_s` of the body of `/barrier`, None if it has none; it may be empty.

    Raises `RequestMalformed`, also for a value outside of 0 to `LONGEST_BARRIER_S`.
    """
    timeout_s = parse(body, BarrierBody).timeout_s if body else None
    if timeout_s is not None and not 0 <= timeout_s <= LONGEST_BARRIER_S:
        raise RequestMalformed(
            f"`timeout_s` must be a number from 0 to {LONGEST_BARRIER_S}: it is {timeout_s}"
        )
    return timeout_s


def key_columns(
    keys: list[dict[str, Any]], fields: Sequence[Field], dataset: str
) -> list[QueryColumn]:
    """Return the key columns of a lookup in the dataset's order.

    Raises `LookupRejected` when a key object has other fields than the dataset's key.
    """
    sizes = set(map(len, keys)) - {len(fields)}
    if sizes:
        raise LookupRejected(
            f"Dataset {dataset} has {len(fields)} key fields, but {sizes.pop()} key "
            "fields were provided."
        )
    try:
        return [
            input_column(list(map(itemgetter(field.name), keys)), field.dtype, field.name)
            for field in fields
        ]
    except KeyError as missing:
        raise LookupRejected(
            f"Missing key {missing.args[0]} in the lookup call for dataset `{dataset}`"
        ) from missing


def timestamp_column(values: list[Any]) -> Sequence[int]:
    """Return the timestamps of a lookup (strings or epoch numbers) in microseconds."""
    micros = input_column(values, Timestamp(), "timestamps").values
    if None in micros:
        raise ValueNotConvertible("`timestamps` must not hold nulls")
    return micros  # type: ignore[return-value]  # physical timestamps are integers


def dump_columns(columns: Iterable[tuple[str, Sequence[object]]]) -> bytes:
    """Encode columns as an object of lists, one column per C call."""
    return b"{" + b",".join(dump(name) + b":" + dump(values) for name, values in columns) + b"}"


def dump_rows(columns: Mapping[str, Sequence[object]], rows: int) -> bytes:
    """Encode columns of `rows` values as a list with an object per row."""
    if rows <= SLICE_ROWS:
        return dump(as_rows(columns, range(rows)))
    parts = (dump(as_rows(columns, range(some.start, some.stop))) for some in slices(rows))
    return b"[" + b",".join(part[1:-1] for part in parts) + b"]"


def as_rows(columns: Mapping[str, Sequence[object]], rows: range) -> list[dict[str, object]]:
    """Return the values of `rows` as one object per row."""
    return [{name: values[row] for name, values in columns.items()} for row in rows]
