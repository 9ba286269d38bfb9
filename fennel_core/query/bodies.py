"""Parse the JSON bodies of the read path.

The structure is checked by C code while it is parsed. Python's own JSON parser is the second
choice, because the client writes bare `NaN` tokens, which strict JSON does not have. Values inside
are not checked here but by their declared types (`values.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import msgspec

from fennel_core.query.columns import QueryColumn
from fennel_core.query.errors import (
    LookupRejected,
    RequestMalformed,
    TooManyRows,
    ValueNotConvertible,
)
from fennel_core.query.values import input_column
from fennel_core.vocab.dtypes import Field, Timestamp


class QueryBody(msgspec.Struct, frozen=True, gc=False):
    """The body of `/query`. `data` is columnar and may have columns that no feature needs."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    data: dict[str, list[Any]]
    workflow: str | None = None

    @property
    def rows(self) -> int:
        return len(next(iter(self.data.values()), ()))


class LookupBody(msgspec.Struct, frozen=True, gc=False):
    """The body of `/dataset/{name}/lookup`.

    No `fields`: all of them. No `timestamps`: as of now.
    """

    keys: list[dict[str, Any]]
    fields: list[str] | None = None
    timestamps: list[Any] | None = None


class BarrierBody(msgspec.Struct, frozen=True, gc=False):
    timeout_s: float | None = None


Body = TypeVar("Body", QueryBody, LookupBody, BarrierBody)
_decoders: dict[type[Any], Callable[[bytes], Any]] = {
    body: msgspec.json.Decoder(body).decode for body in (QueryBody, LookupBody, BarrierBody)
}
dump = msgspec.json.Encoder().encode
SURROGATE = b"\\ud"
"""The start of the escape of a surrogate in JSON text."""


def parse(body: bytes, kind: type[Body]) -> Body:
    """Parse `body`; bare `NaN` and `Infinity` are accepted. Raises `RequestMalformed`."""
    try:
        found: Body = _decoders[kind](body)
    except msgspec.ValidationError as error:
        raise RequestMalformed(f"malformed body: {error}") from error
    except msgspec.DecodeError:
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


def query_body(body: bytes, limit_rows: int) -> QueryBody:
    """The body of `/query`. BadRequest names the part that is wrong; TooManyRows above the
    limit.
    """
    found = parse(body, QueryBody)
    lengths = set(map(len, found.data.values()))
    if len(lengths) > 1:
        raise RequestMalformed(
            "the columns of `data` must be of one length, but have "
            f"{', '.join(map(str, sorted(lengths)))} values"
        )
    if found.rows > limit_rows:
        raise TooManyRows(found.rows, limit_rows)
    return found


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
