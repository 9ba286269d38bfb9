"""Decode the messages of a source partition into rows: those that are JSON objects, and the others.

Each message is decoded alone, strictly first. Only one that fails is decoded again, by the lenient
parser that `log` has, which accepts bare `NaN` and `Infinity`. The rows keep the text that they
arrived in: the raw request of a batch is the list of its messages, so a dataset that comes later
types exactly what was read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from fennel_core.wire.connectors import Cdc, Source

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
"""With cdc `debezium` it follows a delete, so that the topic can be compacted; no dead letter."""
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
    texts: Sequence[bytes]
    """Each row as JSON: what the raw request has of it."""

    def tables(
        self, cells: int = TABLE_CELLS, size_bytes: int = TRANSACTION_BYTES
    ) -> Iterator[slice]:
        """Yield the rows in parts, each a table of at most `cells` and `size_bytes`, or one row.

        A raw record has to hold the part, and messages of other formats grow when they are JSON.
        """
        names: set[str] = set()
        start = size = 0
        for place, (row, text) in enumerate(zip(self.rows, self.texts, strict=True)):
            names.update(row)
            size += len(text) + 1
            too_much = size > size_bytes or len(names) * (place + 1 - start) > cells
            if place > start and too_much:
                yield slice(start, place)
                start, names, size = place, set(row), len(text) + 1
        if self.rows:
            yield slice(start, len(self.rows))


Decode = Callable[[Sequence[bytes | None]], DecodedMessages]
"""Returns the rows of a batch of messages. May block, and raise `SchemaRegistryUnusable`."""


def decode_messages(values: Sequence[bytes | None]) -> DecodedMessages:
    """Return the rows of a batch of JSON messages; never raises."""
    return decoded_messages([_row(value) for value in values], values)


def decoded_messages(
    rows: Sequence[dict[str, Any] | str], texts: Sequence[bytes | None]
) -> DecodedMessages:
    """Return the outcome of a batch; instead of a row there may be the reason why there is none."""
    unreadable: dict[str, list[int]] = {}
    numbers: list[int] = []
    for number, row in enumerate(rows):
        if isinstance(row, str):
            unreadable.setdefault(row, []).append(number)
        else:
            numbers.append(number)
    return DecodedMessages(
        [row for row in rows if not isinstance(row, str)],
        np.array(numbers, dtype=np.int64),
        tuple(Unreadable(reason, found) for reason, found in unreadable.items()),
        [texts[number] or b"" for number in numbers],
    )


def is_expected(reason: str, source: Source) -> bool:
    """Return whether a message that is no row is none of a dataset either: after a delete."""
    return reason == EMPTY and source.cdc is Cdc.DEBEZIUM


def shown(value: bytes | None) -> str:
    """Return what a dead letter has of a message that is no row: text, or else base64."""
    start = (value or b"")[:SHOWN_BYTES]
    framed = start[:1] == b"\0"
    return base64.b64encode(start).decode() if framed else start.decode(errors="replace")


def raw_body(name: str, topic: str, texts: Sequence[bytes]) -> bytes:
    """Return the request of `log` that has these JSON objects as its rows."""
    rows = b",".join(texts)
    return b'{"webhook":%s,"endpoint":%s,"data":[%s]}' % (
        _encode_text(name),
        _encode_text(topic),
        rows,
    )


def _row(value: bytes | None) -> dict[str, Any] | str:
    """Return the object in a message, or why there is none."""
    if value is None:
        return EMPTY
    if (reason := unfit(value)) is not None:
        return reason
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


def unfit(text: bytes) -> str | None:
    """Return why JSON text, parsed or not, cannot be part of a raw request; None if it can."""
    if len(text) > MESSAGE_BYTES:
        return f"the message has more than {MESSAGE_BYTES // 1024**2} MiB"
    nested = text.count(b"[") + text.count(b"{") > SHALLOW
    if nested and not _fits_into_a_request(text):
        return "the message is nested too deeply"
    return None


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
