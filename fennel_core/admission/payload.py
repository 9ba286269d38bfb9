"""Parse the body of a `log` request: the endpoint, and columns (or rows) of JSON values.

The body is parsed strictly first. Only a body that fails is parsed again by Python's `json`, which
accepts the bare tokens `NaN` and `Infinity` that pandas writes and JSON does not have. The number
of a row within its request is its identity from here on: filters leave the numbers of other rows
alone, and positions are derived from them.
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

from fennel_core.admission.errors import LogBodyMalformed, RowLimitExceeded
from fennel_core.wire.errors import MalformedData
from fennel_core.wire.json_data import JsonData, json_table

_PATH_PART = re.compile(r"\[([^\[\]]*)\]")


class LogBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON body of `log`; any other field would have no effect, so it is refused by name."""

    webhook: str
    endpoint: str
    data: JsonData


_decode = msgspec.json.Decoder(LogBody).decode


@dataclass(frozen=True, slots=True)
class Payload:
    """Columns of equal length; `numbers` are the row numbers within the request, ascending."""

    columns: Mapping[str, Sequence[Any]]
    numbers: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, keep: npt.NDArray[np.int64]) -> Payload:
        """Return the rows at the indexes `keep`."""
        places = keep.tolist()
        return Payload(
            {name: [values[i] for i in places] for name, values in self.columns.items()},
            self.numbers[keep],
        )

    def having(self, column: str, values: Sequence[Any]) -> Payload:
        """Return a copy with `column` added or replaced."""
        assert len(values) == len(self), "a column has a value for every row"
        return Payload({**self.columns, column: values}, self.numbers)


def parse_log_body(body: bytes, rows_limit: int) -> tuple[LogBody, Payload]:
    """Parse the body of `log`; raises `LogBodyMalformed` and `RowLimitExceeded`."""
    try:
        request = _decode(body)
    except msgspec.ValidationError as wrong:
        raise _malformed(str(wrong)) from wrong
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        request = _parse_leniently(body, wrong)
    try:
        table = json_table(request.data)
    except MalformedData as wrong:
        raise _malformed(str(wrong)) from wrong
    if table.rows > rows_limit:
        raise RowLimitExceeded(
            f"the request has {table.rows} rows, more than the limit of {rows_limit}; split it"
        )
    return request, Payload(table.columns, np.arange(table.rows, dtype=np.int64))


def _parse_leniently(body: bytes, strict_error: Exception) -> LogBody:
    try:
        return msgspec.convert(json.loads(body), LogBody)
    except msgspec.ValidationError as wrong:
        raise _malformed(str(wrong)) from wrong
    except (ValueError, RecursionError) as wrong:
        raise _malformed(str(strict_error)) from wrong


def _malformed(reason: str) -> LogBodyMalformed:
    wanted = 'send {"webhook": text, "endpoint": text, "data": {column: [value]} or rows} as JSON'
    return LogBodyMalformed(f"the body of log is malformed: {reason}; {wanted}")


def descend(payload: Payload, path: str) -> list[Any] | None:
    """Return the values at the path `A` or `A[B][C]`; None when there is no column `A`.

    A value is null where an object on the path is missing.
    """
    column = root_of(payload, path)
    if column not in payload.columns:
        return None
    if column == path:
        return list(payload.columns[path])
    steps = _PATH_PART.findall(path)
    return [_descend_value(value, steps) for value in payload.columns[column]]


def root_of(payload: Payload, path: str) -> str:
    """Return the column that a path begins with: the path itself if there is such a column."""
    return path if path in payload.columns else path.partition("[")[0]


def _descend_value(value: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value
