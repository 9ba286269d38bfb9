"""Exceptions of decoding a request.

A code never changes its meaning; the text says what is wrong and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from fennel_core.wire.entities import SyncRequest


class WireError(ValueError):
    """Base class: bytes or JSON from a client cannot be decoded.

    `code` is stable and machine-readable; `str(error)` is for the person who sent the request.
    """

    code: ClassVar[str] = "wire"


class MalformedMessage(WireError):
    """Raised when bytes are not a protobuf message of the expected type.

    The sender is not the Fennel client; reject the request.
    """

    code: ClassVar[str] = "wire-malformed"


class UnsupportedValue(WireError):
    """Raised when a part of a well-formed message is missing, unknown or out of range.

    The definition, or the version of the client, has to change.
    """

    code: ClassVar[str] = "wire-unsupported"


class MalformedData(WireError):
    """Raised when `data` of a `log` or `query` body holds neither columns nor rows.

    Send `{column: [value, ...]}`, `[{column: value}, ...]`, or the JSON text of one of them.
    """

    code: ClassVar[str] = "wire-data"


@dataclass(frozen=True, slots=True)
class UndecodableEntity:
    """One entity of a commit that cannot be decoded: its full name, and what is wrong with it."""

    name: str
    text: str


class UndecodableEntities(UnsupportedValue):
    """Raised when entities of a commit cannot be decoded; `entities` are all of them.

    `others` are the entities that can be decoded.
    """

    code: ClassVar[str] = "wire-unsupported-entities"

    def __init__(self, entities: Sequence[UndecodableEntity], others: SyncRequest) -> None:
        super().__init__("\n".join(entity.text for entity in entities))
        self.entities = tuple(entities)
        self.others = others


@dataclass(frozen=True, slots=True)
class BadValue:
    """One value that does not fit its column: its row, the value, and the reason.

    `forbidden`: the value has the right type but violates `between`, `oneof` or `regex`.
    """

    row: int
    value: object
    reason: str
    forbidden: bool = False


class BadColumn(WireError):
    """Raised when values of a `log` or `query` column do not fit its type; correct or drop them.

    `bad` are these values in row order, `rows` the length of the column. `str(error)` names the
    column, the first value and its row, and counts the others.
    """

    code: ClassVar[str] = "wire-bad-column"

    def __init__(self, column: str, bad: Sequence[BadValue], rows: int, text: str) -> None:
        super().__init__(text)
        self.column = column
        self.bad = tuple(bad)
        self.rows = rows


class UncastableColumn(BadColumn):
    """Raised when values cannot be cast to the column's type, or a non-optional one has nulls."""

    code: ClassVar[str] = "wire-uncastable"


class ForbiddenValues(BadColumn):
    """Raised when values of the right type violate `between`, `oneof` or `regex`."""

    code: ClassVar[str] = "wire-forbidden-value"


class MissingColumn(WireError):
    """Raised when the body lacks a declared column; add the column."""

    code: ClassVar[str] = "wire-missing-column"


class RejectedRows(WireError):
    """Raised when a batch of rows cannot enter a dataset; no row of it was kept.

    `causes` has one error per invalid column.
    """

    code: ClassVar[str] = "wire-rejected-rows"

    def __init__(self, text: str, causes: Sequence[WireError]) -> None:
        super().__init__(text)
        self.causes = tuple(causes)


class CastFailed(WireError):
    """Raised when one value cannot be cast; decoding reports it as a `BadValue` of its column."""

    code: ClassVar[str] = "wire-cast-failed"
