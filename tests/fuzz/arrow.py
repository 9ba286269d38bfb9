"""Mutated Arrow messages: what hostile user code might return in place of a record batch."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Final

import pyarrow as pa

MOMENT: Final = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
COLUMNS: Final[dict[str, tuple[pa.DataType, list[object]]]] = {
    "i": (pa.int64(), [1, None, 3]),
    "f": (pa.float64(), [1.5, None, -0.0]),
    "s": (pa.large_string(), ["text", None, "ü"]),
    "b": (pa.bool_(), [True, None, False]),
    "y": (pa.large_binary(), [b"\0\1", None, b""]),
    "t": (pa.timestamp("us", tz="UTC"), [MOMENT, None, MOMENT]),
    "d": (pa.date32(), [MOMENT.date(), None, MOMENT.date()]),
    "m": (pa.decimal128(28, 2), [Decimal("1.00"), None, Decimal("-9.99")]),
    "l": (pa.large_list(pa.int64()), [[1, None], None, []]),
    "p": (
        pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.float64())])),
        [[{"key": "a", "value": 1.0}], None, []],
    ),
    "u": (
        pa.struct([("a", pa.int64()), ("b", pa.large_list(pa.large_string()))]),
        [{"a": 1, "b": ["x", None]}, None, {"a": None, "b": None}],
    ),
    "n": (pa.null(), [None, None, None]),
}
SCHEMA: Final = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
TABLE: Final = pa.table(
    [pa.array(values, kind) for kind, values in COLUMNS.values()], schema=SCHEMA
)
ODD_NUMBERS: Final = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0xFFFF,
    1 << 31,
    (1 << 31) - 1,
    1 << 40,
    (1 << 64) - 1,
)


def plain_batch(table: pa.Table = TABLE) -> bytes:
    """Return a table as one record batch message."""
    batches = table.combine_chunks().to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
    value: bytes = batch.serialize().to_pybytes()
    return value


def mutated(payload: bytes, numbers: random.Random) -> bytes:
    """Return `payload` with a few changes: bytes, words, missing and repeated parts."""
    changed = bytearray(payload)
    for _ in range(numbers.choice((1, 1, 2, 3, 8))):
        place = numbers.randrange(len(changed)) if changed else 0
        match numbers.randrange(6):
            case 0 | 1:
                if changed:
                    changed[place] = numbers.randrange(256)
            case 2 | 3:
                size = numbers.choice((2, 4, 8))
                word = numbers.choice(ODD_NUMBERS) & ((1 << 8 * size) - 1)
                start = place - place % size
                changed[start : start + size] = word.to_bytes(size, "little")
            case 4:
                del changed[place : place + numbers.choice((1, 4, 8, 64))]
            case _:
                changed[place:place] = changed[place : place + numbers.choice((1, 8, 64))]
    return bytes(changed)
