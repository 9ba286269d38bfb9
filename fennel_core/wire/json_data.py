"""The field `data` of a `log` or `query` body: rows in one of the forms that the protocol allows.

The public client sends columns, `{"uid": [1, 2]}`. Other programs may send rows, `[{"uid": 1},
{"uid": 2}]`, or the JSON text of either. A field that a row lacks is null in that row, as in a
DataFrame made from these rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fennel_core.wire.errors import MalformedData

JsonData = dict[str, list[Any]] | list[dict[str, Any]] | str
"""What a body may hold in `data`."""

_Table = dict[str, list[Any]] | list[dict[str, Any]]
_SURROGATE = "\\ud"
"""The start of the escape of a surrogate in JSON text."""
_decode_table = msgspec.json.Decoder(_Table).decode


@dataclass(frozen=True, slots=True)
class JsonTable:
    """Columns of equal length. `by_row`: they were sent as rows."""

    columns: Mapping[str, Sequence[Any]]
    rows: int
    by_row: bool


def json_table(data: JsonData) -> JsonTable:
    """Return the columns of `data`; raises `MalformedData`."""
    table = _parsed(data) if isinstance(data, str) else data
    if isinstance(table, list):
        names = dict.fromkeys(name for row in table for name in row)
        columns = {name: [row.get(name) for row in table] for name in names}
        return JsonTable(columns, len(table), by_row=True)
    lengths = {name: len(values) for name, values in table.items()}
    if len(set(lengths.values())) > 1:
        raise MalformedData(
            f"the columns of `data` must be of one length, but have {lengths} values"
        )
    return JsonTable(table, next(iter(lengths.values()), 0), by_row=False)


def _parsed(text: str) -> _Table:
    try:
        table: _Table = _decode_table(text.encode())
    except msgspec.ValidationError as wrong:
        raise MalformedData(f"the JSON text in `data` is malformed: {wrong}") from wrong
    except (UnicodeEncodeError, msgspec.DecodeError):
        # Bare `NaN` and `Infinity`, which pandas writes, are not JSON.
        try:
            found = json.loads(text)
            if _SURROGATE in text.lower():
                # Python parses half of a surrogate pair as text, which cannot be encoded again.
                msgspec.json.encode(found)
            table = msgspec.convert(found, _Table)
        except (ValueError, RecursionError, msgspec.ValidationError) as wrong:
            raise MalformedData(f"the text in `data` is not JSON: {wrong}") from wrong
    return table
