"""Rows that a source has read, before they are typed: what a batch of any kind of source holds.

A batch is a chain of *parts*, each a raw request of its own: rows of a table (`ArrowRows`),
messages that are JSON objects (`MessageRows`), or what is no row at all (`UnreadableRows`). The
writer (`writer.py`) does not know where they come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fennel_core.admission.payload import Payload
from fennel_core.ingest.batches import SourceRows
from fennel_core.ingest.store import ProducerRecord
from fennel_core.sources.messages import (
    MESSAGE_BYTES,
    SHOWN_BYTES,
    Decode,
    MessageBatch,
    decode_messages,
    raw_body,
    shown,
)
from fennel_core.vocab.errors import ANY_FAILURE
from fennel_core.wire.arrow_json import SchemaNotServed, json_columns, served_names
from fennel_core.wire.arrow_sizes import decoded_sizes
from fennel_core.wire.errors import MalformedData
from fennel_core.wire.json_data import json_table

VALUE: Final = "value"
"""The column with what is no row, in its dead letter."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A place in a stream: the ordinal of the next row, and what its source needs to continue."""

    next: int = 0
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Typed columns. `title` names what they were read from, `places` their places in it."""

    title: str
    rows: pa.RecordBatch
    places: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        assert len(self.places) == self.rows.num_rows, "each row has a place"


@dataclass(frozen=True, slots=True)
class MessageRows:
    """Messages, or lines, that are one row each; `names` as those of `SourceRows`."""

    title: str
    messages: MessageBatch
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class UnreadableRows:
    """What could not be read as rows, for one reason: a text of each, and its place.

    `names` as those of `SourceRows`.
    """

    title: str
    reason: str
    texts: Sequence[str]
    places: npt.NDArray[np.int64]
    names: Sequence[str] = ()


ReadPart = ArrowRows | MessageRows | UnreadableRows


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows between two places of a stream: written in one transaction, or not at all.

    At most `messages.TRANSACTION_ROWS` and about `messages.TRANSACTION_BYTES`: the reader cuts its
    batches. A cursor differs wherever what was read before it differs. `remembered` are records of
    the source's own that are written with the rows. `never_late`: the rows are of the first full
    read of a table or of files, which have no order to be late by.
    """

    after: StreamPlace
    end: StreamPlace
    parts: tuple[ReadPart, ...]
    remembered: tuple[ProducerRecord, ...] = ()
    never_late: bool = False

    def __post_init__(self) -> None:
        assert self.after != self.end, "a batch has an end of its own"
        assert self.after.next <= self.end.next, "ordinals ascend"


@dataclass(frozen=True, slots=True)
class RowRequest:
    """A raw request of rows that can be typed."""

    body: bytes
    payload: Payload
    source: SourceRows


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows without a raw request: they are dead letters for every dataset of the source."""

    reason: str
    payload: Payload
    source: SourceRows


def requests_of(
    name: str, stream: str, part: ReadPart, decode: Decode = decode_messages
) -> Iterator[RowRequest | RefusedRows]:
    """Yield the raw requests of a part, and what of it is none. `name`: of the connector.

    `decode` decodes messages: it may block, and raise `SchemaRegistryUnusable`.
    """
    match part:
        case ArrowRows():
            yield from _of_table(name, stream, part)
        case MessageRows():
            yield from _of_messages(name, stream, part, decode)
        case UnreadableRows(title, reason, texts, places, names):
            yield _refused(title, reason, texts, places, names)


def _of_table(name: str, stream: str, part: ArrowRows) -> Iterator[RowRequest | RefusedRows]:
    rows, places = part.rows, part.places
    count = rows.num_rows
    if not count:
        return
    try:
        served_names(rows.schema)  # bounds the depth of what follows
        rows.validate()
        size = int(decoded_sizes(rows).sum())
        if size > MESSAGE_BYTES:
            yield from _too_large(name, stream, part)
            return
        columns = json_columns(rows)
    except SchemaNotServed as wrong:
        reason = f"none of {count} rows was read: {wrong}"
        yield _refused(part.title, reason, [_shown(rows.slice(0, 1))], places[:1])
        return
    except (MalformedData, pa.ArrowException) as wrong:
        if count > 1:  # the rest is read
            yield from _halves(name, stream, part)
        else:
            yield _refused(part.title, str(wrong), [_shown(rows)], places)
        return
    body = b'{"webhook":%s,"endpoint":%s,"data":%s}' % (
        _encode(name),
        _encode(stream),
        _encode(columns),
    )
    if len(body) <= MESSAGE_BYTES:
        payload = Payload(columns, np.arange(count, dtype=np.int64))
        yield RowRequest(body, payload, SourceRows(part.title, places))
    else:
        yield from _too_large(name, stream, part)


def _too_large(name: str, stream: str, part: ArrowRows) -> Iterator[RowRequest | RefusedRows]:
    if part.rows.num_rows > 1:
        yield from _halves(name, stream, part)
    else:
        reason = f"the row has more than {MESSAGE_BYTES // 1024**2} MiB"
        yield _refused(part.title, reason, [_shown(part.rows)], part.places)


def _shown(rows: pa.RecordBatch) -> str:
    """Return what the dead letter of a row that has no JSON form has of it; never raises.

    Arrow prints what Python cannot hold, and cuts values that are long.
    """
    try:
        shown = {
            field.name: column.to_string(indent=0, skip_new_lines=True)
            for field, column in zip(rows.schema, rows.columns, strict=True)
        }
    except ANY_FAILURE as failed:
        return f"the row cannot be shown: {type(failed).__name__}"
    return str(shown)[:SHOWN_BYTES]


def _halves(name: str, stream: str, part: ArrowRows) -> Iterator[RowRequest | RefusedRows]:
    middle = part.rows.num_rows // 2
    for cut in (slice(None, middle), slice(middle, None)):
        places = part.places[cut]
        rows = part.rows.slice(cut.start or 0, len(places))
        yield from _of_table(name, stream, ArrowRows(part.title, rows, places))


def _of_messages(
    name: str, stream: str, part: MessageRows, decode: Decode
) -> Iterator[RowRequest | RefusedRows]:
    title, messages = part.title, part.messages
    decoded = decode(messages.values)

    def names(numbers: Sequence[int]) -> list[str]:
        return [part.names[number] for number in numbers] if part.names else []

    for cut in decoded.tables():
        rows, numbers = decoded.rows[cut], decoded.numbers[cut]
        yield RowRequest(
            raw_body(name, stream, decoded.texts[cut]),
            Payload(json_table(rows).columns, np.arange(len(rows), dtype=np.int64)),
            SourceRows(title, messages.offsets[numbers], names(numbers.tolist())),
        )
    for unreadable in decoded.unreadable:
        texts = [shown(messages.values[n]) for n in unreadable.numbers]
        places = messages.offsets[np.array(unreadable.numbers, dtype=np.int64)]
        yield _refused(title, unreadable.reason, texts, places, names(unreadable.numbers))


def _refused(
    title: str,
    reason: str,
    texts: Sequence[str],
    places: npt.NDArray[np.int64],
    names: Sequence[str] = (),
) -> RefusedRows:
    payload = Payload({VALUE: list(texts)}, np.arange(len(texts), dtype=np.int64))
    return RefusedRows(reason, payload, SourceRows(title, places, names))
