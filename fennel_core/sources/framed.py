"""Decode messages that name their schema: Confluent's header, a registry, and one row per message.

    byte 0      0, the version of the header
    bytes 1–4   the id of the schema in the registry, big-endian
    the rest    the row, encoded with this schema

Messages of several schemas may be mixed: those of one schema are decoded together. A schema is read
from the registry and compiled once, then kept. Rows become JSON values, and the raw request has
their text. So everything behind this module, a recomputation included, is as for messages that are
JSON, and needs no registry.

A message whose schema the registry does not know is unreadable. It is asked again before that is
decided, because a copy of a registry may be behind for a moment, and not again for a time after. A
registry that cannot be asked says nothing about the message: the error ends the batch.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from fennel_core.connections.schema_registry import RegisteredSchema, SchemaReader, SchemaUnknown
from fennel_core.sources.errors import SchemaRefused
from fennel_core.sources.messages import (
    EMPTY,
    SHALLOW,
    DecodedMessages,
    decoded_messages,
    unfit,
)

HEADER_BYTES: Final = 5
SCHEMAS: Final = 256
"""Compiled schemas that are kept."""
UNKNOWN_S: Final = 30.0
"""How long an id that the registry did not know is not asked for again."""
ASKED_AGAIN_S: Final = 0.5
ASKED_AGAIN: Final = 3
"""Unknown ids of a batch that are asked for twice: random bytes look like many ids."""
_NO_HEADER: Final = "the message does not begin with the header of a schema registry"
_encode = msgspec.json.Encoder().encode


class RowDecoder(Protocol):
    """Decodes what follows the header, for one schema."""

    @property
    def float_fields(self) -> Collection[str]:
        """Fields of rows whose value may have a number that JSON does not."""
        ...

    def decode(self, bodies: Sequence[bytes]) -> list[Any]:
        """Return a row of each body (a dict), or the reason why there is none (a str)."""
        ...


CompileSchema = Callable[[RegisteredSchema, SchemaReader], RowDecoder]
"""Raises `SchemaRefused`, `SchemaUnknown` and `SchemaRegistryUnusable`."""


@dataclass(frozen=True, slots=True)
class _Unusable:
    """An id without a decoder, why, and until when that is kept."""

    reason: str
    until_s: float


class FramedDecoder:
    """Decodes messages with Confluent's header. Use from any thread; one batch at a time."""

    def __init__(
        self,
        registry: SchemaReader,
        compile_schema: CompileSchema,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._registry, self._compile = registry, compile_schema
        self._clock, self._sleep = clock, sleep
        self._known: OrderedDict[int, RowDecoder | _Unusable] = OrderedDict()
        self._lock = threading.Lock()
        self._patience = 0
        """Unknown ids of this batch that are still asked for twice."""

    def __call__(self, values: Sequence[bytes | None]) -> DecodedMessages:
        """Return the rows of a batch. Raises `SchemaRegistryUnusable`; blocks."""
        rows: list[Any] = [None] * len(values)
        groups: dict[bytes, list[int]] = {}
        for place, value in enumerate(values):
            if value is not None and len(value) >= HEADER_BYTES and value[0] == 0:
                groups.setdefault(value[1:HEADER_BYTES], []).append(place)
            else:
                rows[place] = EMPTY if value is None else _NO_HEADER
        texts: list[bytes | None] = [None] * len(values)
        with self._lock:
            self._patience = ASKED_AGAIN
            for number, places in groups.items():
                decoder = self._decoder(int.from_bytes(number, "big"))
                if isinstance(decoder, _Unusable):
                    for place in places:
                        rows[place] = decoder.reason
                    continue
                bodies = [(values[place] or b"")[HEADER_BYTES:] for place in places]
                found = _json(decoder.decode(bodies), decoder.float_fields)
                for place, row, text in zip(places, *found, strict=True):
                    rows[place], texts[place] = row, text
        return decoded_messages(rows, texts)

    def _decoder(self, number: int) -> RowDecoder | _Unusable:
        known = self._known.get(number)
        if known is None or (isinstance(known, _Unusable) and known.until_s <= self._clock()):
            known = self._read(number, again=self._patience > 0)
            self._known[number] = known
            while len(self._known) > SCHEMAS:
                self._known.popitem(last=False)
        self._known.move_to_end(number)
        return known

    def _read(self, number: int, *, again: bool) -> RowDecoder | _Unusable:
        try:
            return self._compile(self._registry.by_id(number), self._registry)
        except SchemaRefused as refused:
            return _Unusable(f"schema {number} cannot be used: {refused}", math.inf)
        except SchemaUnknown as unknown:
            if again:
                self._patience -= 1
                self._sleep(ASKED_AGAIN_S)
                return self._read(number, again=False)
            reason = f"the message has schema {number}, and {unknown}"
            return _Unusable(reason, self._clock() + UNKNOWN_S)


def _json(
    decoded: list[Any], float_fields: Collection[str]
) -> tuple[list[Any], list[bytes | None]]:
    """Return the rows as JSON values, and the text of each; reasons have none."""
    values: list[Any] = msgspec.to_builtins(decoded)
    found: list[bytes | None] = [None if isinstance(v, str) else _encode(v) for v in values]
    for place in _without_json(values, float_fields):
        # As `log` accepts them: JSON has no NaN and no infinity.
        found[place] = json.dumps(values[place]).encode()
    for place, text in enumerate(found):
        if text is not None and len(text) > SHALLOW and (reason := unfit(text)) is not None:
            values[place], found[place] = reason, None
    return values, found


def _without_json(rows: list[Any], float_fields: Collection[str]) -> set[int]:
    """Return the places of rows that have a number which JSON has not."""
    found: set[int] = set()
    for name in float_fields:
        column = [None if isinstance(row, str) else row.get(name) for row in rows]
        try:
            # What is false is no such number: 0, None, an empty list.
            if all(map(math.isfinite, filter(None, column))):
                continue
        except (TypeError, OverflowError):
            pass  # not only numbers, or integers that are no floats
        found.update(place for place, value in enumerate(column) if not _finite(value))
    return found


def _finite(value: Any) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case dict():
            return all(map(_finite, value.values()))
        case list():
            return all(map(_finite, value))
        case _:
            return True
