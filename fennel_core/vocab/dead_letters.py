"""The headers of dead letters: what a message of the dead-letter topic says about its rows.

A dead letter is a row that cannot be processed. The messages of a workspace's dead-letter topic are
batches of rows that failed together: rejected rows of a request as JSON text, rows of a pipeline in
the schema of the step's input. Who wrote the batch, and why, is in its headers, so that it can be
counted without knowing its schema.

    kind     class of reasons, a small enumeration (`DeadLetterKind`)
    writer   id of the job or name of the sink that wrote it, or `ingest`
    subject  the dataset that ingest wrote for, or the title of the job
    reason   for people, with the value that failed
    cause    of rows that ingest refused: the reason without values
    source   for people, where a source or sink read the rows; absent for rows of other origins
    target   of rows that ingest refused: the topic that they were meant for
    binding  identity of the source definition that refused them
    endpoint its webhook and endpoint, or connector and stream, as `shop/orders`
    sink     of changes that a sink could not deliver: connector and place, as `hooks/rows`

Example: `kind=not-admitted writer=ingest subject=Users reason="Field `age` not found …"`.

What became of letters afterwards is written to the same partition, as a message whose kind is
`settled`: which letters, by offset, and how many of their rows were replayed, dropped, refused
again, which made a new letter of them, or superseded: a sink does not send a change behind a later
one of its key. So a partition says alone which of its letters are open, and a replay writes its
rows and what it has settled in one transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from fennel_core.vocab.ids import Identity, TopicName
from fennel_core.vocab.versions import FORMAT_HEADER

Headers = tuple[tuple[str, bytes], ...]
INGEST: Final = "ingest"
"""The writer that is no job."""
KIND: Final = "kind"
WRITER: Final = "writer"
SUBJECT: Final = "subject"
REASON: Final = "reason"
CAUSE: Final = "cause"
SOURCE: Final = "source"
TARGET: Final = "target"
BINDING: Final = "binding"
ENDPOINT: Final = "endpoint"
SINK: Final = "sink"
ERASURE: Final = "an erasure"
"""The `source` of a delete of an erased key, which is in no message."""
SETTLED: Final = "settled"
"""The kind of a message that is no letter."""


class DeadLetterKind(StrEnum):
    """Why a row could not be processed."""

    NOT_ADMITTED = "not-admitted"
    """A logged row does not fit the dataset: a type, a missing field, `preproc` or `where`."""
    UNREADABLE = "unreadable"
    """A message of a stream is no row: no JSON object, too long, or without a value."""
    USER_CODE = "user-code"
    """Python code of a pipeline raised."""
    EXPRESSION = "expression"
    """An expression of a pipeline failed, for example a cast."""
    NOT_DELIVERED = "not-delivered"
    """The endpoint of a sink refused the row."""
    UNCLASSIFIED = "unclassified"
    """The message has no kind, as those of earlier versions."""


@dataclass(frozen=True, slots=True)
class DeadLetterTarget:
    """What the rows of a letter of ingest were meant for."""

    topic: TopicName
    binding: Identity
    endpoint: str


@dataclass(frozen=True, slots=True)
class DeadLetterOrigin:
    """Who wrote a message of dead letters, and why."""

    kind: DeadLetterKind
    writer: str
    subject: str
    reason: str
    source: str = ""
    target: DeadLetterTarget | None = None
    cause: str = ""
    sink: str = ""

    def headers(self) -> Headers:
        """Return the headers of a message with rows of this origin."""
        return (
            FORMAT_HEADER,
            (KIND, self.kind.value.encode()),
            (WRITER, self.writer.encode()),
            (SUBJECT, self.subject.encode()),
            (REASON, self.reason.encode()),
            *(((CAUSE, self.cause.encode()),) if self.cause else ()),
            *(((SOURCE, self.source.encode()),) if self.source else ()),
            *(((SINK, self.sink.encode()),) if self.sink else ()),
            *(() if self.target is None else _target_headers(self.target)),
        )


class SettledLetter(msgspec.Struct, frozen=True, array_like=True):
    """What became of the letter at `offset` of this partition: of its rows, so many."""

    offset: int
    writer: str
    subject: str
    kind: DeadLetterKind
    replayed: int
    dropped: int
    refused: int
    superseded: int = 0


SETTLED_HEADERS: Final[Headers] = ((KIND, SETTLED.encode()),)
encode_settled: Final = msgspec.json.Encoder().encode
_decode_settled = msgspec.json.Decoder(tuple[SettledLetter, ...]).decode


def settled_letters(
    headers: Iterable[tuple[str, bytes]], value: bytes
) -> tuple[SettledLetter, ...] | None:
    """Return the letters that a message settles; None for a message that is a letter itself."""
    if (KIND, SETTLED.encode()) not in headers:
        return None
    return _decode_settled(value)


def _target_headers(target: DeadLetterTarget) -> Headers:
    return (
        (TARGET, target.topic.encode()),
        (BINDING, target.binding.encode()),
        (ENDPOINT, target.endpoint.encode()),
    )


def origin_of(headers: Iterable[tuple[str, bytes]]) -> DeadLetterOrigin:
    """Return the origin in the headers of a message; what is missing is empty."""
    found = {name: value.decode(errors="replace") for name, value in headers}
    known = {kind.value: kind for kind in DeadLetterKind}
    return DeadLetterOrigin(
        known.get(found.get(KIND, ""), DeadLetterKind.UNCLASSIFIED),
        found.get(WRITER, ""),
        found.get(SUBJECT, ""),
        found.get(REASON, ""),
        found.get(SOURCE, ""),
        DeadLetterTarget(
            TopicName(found[TARGET]), Identity(found.get(BINDING, "")), found.get(ENDPOINT, "")
        )
        if TARGET in found
        else None,
        found.get(CAUSE, ""),
        found.get(SINK, ""),
    )


def source_of(part: int, offset: int | None) -> str:
    """Return the `source` of changes of a message of a dataset; of an erasure without an offset."""
    return ERASURE if offset is None else f"partition {part}, offset {offset}"


def message_of(source: str) -> tuple[int, int] | None:
    """Return the partition and the offset that `source_of` was given; None for an erasure.

    Raises ValueError for another text.
    """
    if source == ERASURE:
        return None
    found = re.fullmatch(r"partition (\d+), offset (\d+)", source)
    if found is None:
        raise ValueError(f"`{source}` names no message of a dataset")
    return int(found[1]), int(found[2])
