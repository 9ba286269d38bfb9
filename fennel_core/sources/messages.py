"""Decode the messages of a source partition into rows: those that are JSON objects, and the others.

Each message is decoded alone, strictly first. Only one that fails is decoded again, by the lenient
parser that `log` has, which accepts bare `NaN` and `Infinity`. The rows keep the text that they
arrived in: the raw request of a batch is the list of its messages, so a dataset that comes later
types exactly what was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

TRANSACTION_ROWS: Final = 10_000
"""Messages per transaction: enough to make its costs small, few enough for the memory of a task."""
TRANSACTION_BYTES: Final = 4 * 1024 * 1024
MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Longest message that becomes a row: its raw record must fit into one of the platform's topics."""
TABLE_CELLS: Final = 2_000_000
"""Rows times columns of a table: rows whose fields differ would fill the memory of a task."""
SHOWN_BYTES: Final = 64 * 1024
"""What the dead letter of a message that is no row has of it."""
EMPTY: Final = "the message has no value; cdc `append` and `upsert` have no deletes"
SHALLOW: Final = 400
"""Brackets of a message that no parser finds too deep."""
REQUEST_DEPTH: Final = 100
"""More than a request of `log` adds, and than the frames of callers in another process."""
_decode_row = msgspec.json.Decoder(dict[str, Any]).decode
_encode_text = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages of one source partition; `offsets` ascend, a value is None without a body."""

    offsets: npt.NDArray[np.int64]
    values: Sequence[bytes | None]

    def __post_init__(self) -> None:
        assert len(self.offsets) == len(self.values), "each message has an offset"
        assert (np.diff(self.offsets) > 0).all(), "messages come in the order of the partition"

    def __len__(self) -> int:
        return len(self.values)

    def since(self, offset: int) -> MessageBatch:
        """Return the messages at `offset` and behind it."""
        first = int(np.searchsorted(self.offsets, offset))
        return self if first == 0 else MessageBatch(self.offsets[first:], self.values[first:])

    def parts(
        self, rows: int = TRANSACTION_ROWS, size_bytes: int = TRANSACTION_BYTES
    ) -> Iterator[MessageBatch]:
        """Yield the batch in parts of at most `rows` and about `size_bytes`, in order."""
        start = size = 0
        for place, value in enumerate(self.values):
            size += len(value or b"")
            if place > start and (place - start >= rows or size > size_bytes):
                yield MessageBatch(self.offsets[start:place], self.values[start:place])
                start, size = place, len(value or b"")
        if start < len(self):
            yield MessageBatch(self.offsets[start:], self.values[start:])


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Messages that are no rows, for one reason; `numbers` are their places in the batch."""

    reason: str
    numbers: list[int]


@dataclass(frozen=True, slots=True)
class DecodedMessages:
    """`rows[i]` is message `numbers[i]` of the batch."""

    rows: list[dict[str, Any]]
    numbers: npt.NDArray[np.int64]
    unreadable: tuple[Unreadable, ...]

    def tables(self, cells: int = TABLE_CELLS) -> Iterator[slice]:
        """Yield the rows in parts, each a table of at most `cells` or one row."""
        names: set[str] = set()
        start = 0
        for place, row in enumerate(self.rows):
            names.update(row)
            if place > start and len(names) * (place + 1 - start) > cells:
                yield slice(start, place)
                start, names = place, set(row)
        if self.rows:
            yield slice(start, len(self.rows))


def decode_messages(values: Sequence[bytes | None]) -> DecodedMessages:
    """Return the rows of a batch of JSON messages; never raises."""
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    unreadable: dict[str, list[int]] = {}
    for number, value in enumerate(values):
        row = _row(value)
        if isinstance(row, str):
            unreadable.setdefault(row, []).append(number)
        else:
            rows.append(row)
            numbers.append(number)
    return DecodedMessages(
        rows,
        np.array(numbers, dtype=np.int64),
        tuple(Unreadable(reason, found) for reason, found in unreadable.items()),
    )


def raw_body(name: str, topic: str, values: Sequence[bytes | None]) -> bytes:
    """Return the request of `log` that has these messages as its rows."""
    rows = b",".join(value or b"" for value in values)
    return b'{"webhook":%s,"endpoint":%s,"data":[%s]}' % (
        _encode_text(name),
        _encode_text(topic),
        rows,
    )


def _row(value: bytes | None) -> dict[str, Any] | str:
    """Return the object in a message, or why there is none."""
    if value is None:
        return EMPTY
    if len(value) > MESSAGE_BYTES:
        return f"the message has more than {MESSAGE_BYTES // 1024**2} MiB"
    nested = value.count(b"[") + value.count(b"{") > SHALLOW
    if nested and not _fits_into_a_request(value):
        return "the message is nested too deeply"
    try:
        return _decode_row(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # no JSON object, or one that only the lenient parser accepts
    try:
        found = json.loads(value.decode(), parse_float=_finite)
        # Python accepts half of a surrogate pair, which is no text.
        _encode_text(found)
    except UnicodeDecodeError:
        return "the message is not UTF-8 text"
    except OverflowError:
        return "the message has a number that is out of range"
    except (ValueError, RecursionError):
        return "the message is not JSON"
    return found if isinstance(found, dict) else "the message is JSON, but not an object"


def _finite(digits: str) -> float:
    """Return the number; raises OverflowError for one that a request of `log` may not have.

    A request with such a number is refused as a whole, also when it is replayed.
    """
    number = float(digits)
    if isinf(number):
        raise OverflowError(digits)
    return number


def _fits_into_a_request(value: bytes) -> bool:
    """Return whether either parser reads the message when it is nested `REQUEST_DEPTH` deeper."""
    deeper = b"[" * REQUEST_DEPTH + value + b"]" * REQUEST_DEPTH
    try:
        json.loads(deeper)
        msgspec.json.decode(deeper)
    except RecursionError:
        return False
    except (ValueError, msgspec.MsgspecError):
        return True  # another defect, which the caller finds
    return True
