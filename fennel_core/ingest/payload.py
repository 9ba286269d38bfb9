"""The body of a `log` request: which endpoint, and columns of JSON values.

Theory. The body is read once, strictly; the bare tokens `NaN` and `Infinity`, which pandas can
write and JSON does not have, are understood in a second reading, so that only a body that has them
pays for it. A row's number within the request is its identity from here on: rows that are filtered
out leave the others' numbers alone, and positions are made from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fennel_core.vocab.errors import ApiError

_PATH_PART = re.compile(r"\[([^\[\]]*)\]")


class LogBody(msgspec.Struct):
    """What the client sends."""

    webhook: str
    endpoint: str
    data: dict[str, list[Any]]


_decode = msgspec.json.Decoder(LogBody).decode


@dataclass(frozen=True, slots=True)
class Payload:
    """Columns of equal length; `numbers` are the rows' numbers within the request, ascending."""

    columns: Mapping[str, Sequence[Any]]
    numbers: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, keep: npt.NDArray[np.int64]) -> Payload:
        """The rows at the places `keep`."""
        places = keep.tolist()
        return Payload(
            {name: [values[i] for i in places] for name, values in self.columns.items()},
            self.numbers[keep],
        )

    def having(self, column: str, values: Sequence[Any]) -> Payload:
        """With `column` added or replaced."""
        assert len(values) == len(self), "a column has a value for every row"
        return Payload({**self.columns, column: values}, self.numbers)


def parse_log_body(body: bytes, rows_limit: int) -> tuple[LogBody, Payload]:
    """The request in `body`. ApiError 400 when it is malformed, 413 when it has more than
    `rows_limit` rows.
    """
    try:
        request = _decode(body)
    except msgspec.ValidationError as wrong:
        raise _malformed(str(wrong)) from wrong
    except msgspec.DecodeError as wrong:
        request = _read_leniently(body, wrong)
    lengths = {name: len(values) for name, values in request.data.items()}
    if len(set(lengths.values())) > 1:
        raise _malformed(f"the columns of `data` must be equally long, but have {lengths} values")
    rows = next(iter(lengths.values()), 0)
    if rows > rows_limit:
        raise ApiError(
            413,
            "too-many-rows",
            f"a log request may carry {rows_limit} rows, this one has {rows}: split it",
        )
    return request, Payload(request.data, np.arange(rows, dtype=np.int64))


def _read_leniently(body: bytes, strictly: Exception) -> LogBody:
    try:
        return msgspec.convert(json.loads(body), LogBody)
    except (ValueError, RecursionError, msgspec.ValidationError) as wrong:
        raise _malformed(str(strictly)) from wrong


def _malformed(reason: str) -> ApiError:
    wanted = 'send {"webhook": text, "endpoint": text, "data": {column: [values]}} as JSON'
    return ApiError(400, "log-malformed", f"the body of log is malformed: {reason}; {wanted}")


def descend(payload: Payload, path: str) -> list[Any] | None:
    """The values at `A` or `A[B][C]`, null where an object is missing on the way; None when there
    is no column `A`.
    """
    if path in payload.columns:
        return list(payload.columns[path])
    column, bracket, _ = path.partition("[")
    if not bracket or column not in payload.columns:
        return None
    steps = _PATH_PART.findall(path)
    return [_inside(value, steps) for value in payload.columns[column]]


def _inside(value: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value
