"""Find the changes of dead letters in the messages that they are from, and what followed them.

A change is sent again as it was sent first, so it is looked for by its text: the events of its
message are made again, without the rows that were erased since. What is not among them any more is
not sent. Then the later changes of its key are looked for, in the rest of the message and of the
partition: a key is in one partition. If there is one, the receiver has it or gets it soon, and what
was before must not come behind it.

    search = ChangeSearch(schema, form, erasures, {12: [text]})
    for frame in frames:  # of one partition, in order, from offset 12 to its end
        search.take(frame)
    match search.fate(12, text): ...
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import msgspec
import polars as pl

from fennel_core.history.asof import without_erased
from fennel_core.sinks.changes import OFFSET, events_of
from fennel_core.sinks.debezium import SinkRecord
from fennel_core.sinks.store import SinkForm
from fennel_core.sinks.writer import KeyErasures
from fennel_core.vocab.keys import key_series
from fennel_core.vocab.schema import Schema

Form = SinkForm[Sequence[SinkRecord]]


@dataclass(frozen=True, slots=True)
class Sendable:
    """The newest change of its key; `number`: its place among the events of its message."""

    number: int


class Unsent(Enum):
    """Why a change is not sent again."""

    SUPERSEDED = auto()
    """A later change of its key is in the dataset."""
    ERASED = auto()
    """Its row is of an erased key."""
    MISSING = auto()
    """Its message has no such change, or is gone."""


Fate = Sendable | Unsent


@dataclass(frozen=True, slots=True)
class _Event:
    text: bytes
    key: bytes | None
    """Key bytes; None without key fields."""
    offset: int


class ChangeSearch:
    """Looks for changes in the messages of one partition. `wanted`: their texts, by offset."""

    def __init__(
        self,
        schema: Schema,
        form: Form,
        erasures: KeyErasures,
        wanted: Mapping[int, Collection[bytes]],
    ) -> None:
        self._schema, self._form, self._hidden = schema, form, erasures.hidden()
        self._wanted = wanted
        self._erased_keys = {each.key for each in deletes_of(schema, form, erasures)}
        self._found: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
        self._erased: set[tuple[int, bytes]] = set()
        self._last_number: dict[tuple[int, bytes], int] = {}
        """Of each key of a change that was found: its last event in the message of the change."""
        self._last_offset: dict[bytes, int] = {}
        """Of each such key: the last message that changes it."""

    def take(self, frame: pl.DataFrame) -> None:
        """Look at the next messages, each as a whole."""
        kept = without_erased(frame, self._hidden)
        there = set(frame[OFFSET].unique().to_list())
        for offset in sorted(there & self._wanted.keys()):
            self._look_into(
                offset,
                kept.filter(pl.col(OFFSET) == offset),
                frame.filter(pl.col(OFFSET) == offset),
            )
        if self._last_offset and not kept.is_empty():
            keys = key_series(kept, self._schema.key_names)
            known = pl.Series(list(self._last_offset), dtype=pl.Binary)
            for event in self._events(kept.filter(keys.is_in(known.implode()))):
                assert event.key is not None, "only keyed datasets have keys that were found"
                self._last_offset[event.key] = event.offset

    def _look_into(self, offset: int, kept: pl.DataFrame, whole: pl.DataFrame) -> None:
        """Look for the changes of one message."""
        texts = self._wanted[offset]
        events = self._events(kept)
        for number, event in enumerate(events):
            if event.text in texts:
                self._found.setdefault((offset, event.text), (number, event.key))
                if event.key is not None:
                    self._last_offset.setdefault(event.key, offset)
        for number, event in enumerate(events):
            if event.key in self._last_offset:
                self._last_number[offset, event.key] = number
        if kept.height < whole.height:
            now = {event.text for event in events}
            before = {event.text for event in self._events(whole)}
            self._erased |= {(offset, text) for text in texts if text in before - now}

    def _events(self, frame: pl.DataFrame) -> list[_Event]:
        """Return the events of messages, in order."""
        events = events_of(frame, self._schema)
        if events.is_empty():
            return []
        names = self._schema.key_names
        keys = key_series(frame, names).to_list() if self._schema.keyed else [None] * frame.height
        rows = events.select(pl.coalesce("added", "retracted")).to_series().to_list()
        found = []
        for record, row in zip(self._form.changes(frame, events, 0), rows, strict=True):
            assert record.value is not None, "a change has a value"
            assert record.offset is not None, "a change is of a message"
            found.append(_Event(record.value, keys[row], record.offset))
        return found

    def fate(self, offset: int, text: bytes) -> Fate:
        """Return what becomes of a change, when all messages were taken."""
        found = self._found.get((offset, text))
        if found is None:
            if (offset, text) in self._erased or key_text(self._schema, text) in self._erased_keys:
                return Unsent.ERASED
            return Unsent.MISSING
        number, key = found
        if key is not None and (
            self._last_offset[key] > offset or self._last_number[offset, key] > number
        ):
            return Unsent.SUPERSEDED
        return Sendable(number)


def deletes_of(schema: Schema, form: Form, erasures: KeyErasures) -> Sequence[SinkRecord]:
    """Return what deletes all keys that were erased by all their columns."""
    keys = erasures.since(0, schema) if schema.keyed else []
    return form.deletes(keys) if keys else ()


def key_text(schema: Schema, text: bytes) -> bytes:
    """Return the key of a change, as its message has it."""
    event = msgspec.json.decode(text)
    row = event["after"] or event["before"]
    return msgspec.json.encode({name: row[name] for name in schema.key_names})
