"""Sinks without Kafka: a topic of versions in memory, and a sink that fails by script."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import polars as pl

from fennel_core.connections.errors import SystemUnavailable, TransactionOutcomeUnknown
from fennel_core.operators.rows import output_names
from fennel_core.sinks.changes import OFFSET, PART
from fennel_core.sinks.debezium import ChangeSource, DebeziumForm, SinkRecord
from fennel_core.sinks.positions import SinkPosition
from fennel_core.sinks.store import MemoryPositionCopy, MemorySinkLog, MemorySinkSession
from fennel_core.sinks.writer import ChangeReader, SinkWriter, Versions
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import arrow_schema
from tests.support.compiler_inputs import schema

USERS = schema("user", "age")
Version = tuple[int, int | None, int, int, int]
"""Key, value (None: a tombstone), event time, position and sign."""


def frame(versions: Sequence[Version], of: Schema = USERS) -> pl.DataFrame:
    """Return versions of `USERS` as a message has them."""
    rows = [
        (key, value, at, position.to_bytes(4, "big"), sign, value is None)
        for key, value, at, position, sign in versions
    ]
    types = pl.from_arrow(arrow_schema(of).empty_table())
    assert isinstance(types, pl.DataFrame)
    return pl.DataFrame(rows, schema=dict(types.schema), orient="row")


def located(messages: Sequence[tuple[int, int, pl.DataFrame]], of: Schema = USERS) -> pl.DataFrame:
    """Return messages, as partition, offset and versions, as one batch."""
    found = [
        each.select(output_names(of)).with_columns(
            pl.lit(part, pl.Int64).alias(PART), pl.lit(offset, pl.Int64).alias(OFFSET)
        )
        for part, offset, each in messages
    ]
    nothing = frame([], of).with_columns(
        pl.lit(0, pl.Int64).alias(PART), pl.lit(0, pl.Int64).alias(OFFSET)
    )
    return pl.concat([nothing, *found])


class ReadableTopic(Protocol):
    """What the writers of a sink read."""

    def open(self, following: Mapping[int, int]) -> ChangeReader:
        """Return a reader that begins at the next offset of each partition (absent: 0)."""
        ...


@dataclass
class MemoryTopic:
    """A topic whose partitions have one message per offset. Reads have lengths by script."""

    partitions: Sequence[Sequence[pl.DataFrame]]
    length: Callable[[], int] = lambda: 2

    def open(self, following: Mapping[int, int]) -> ChangeReader:
        parts = range(len(self.partitions))
        return MemoryReader(self, {part: following.get(part, 0) for part in parts})


@dataclass
class MemoryReader:
    topic: MemoryTopic
    following: dict[int, int]

    def read(self) -> Versions:
        taken = []
        for part, messages in enumerate(self.topic.partitions):
            first = self.following[part]
            end = min(first + self.topic.length(), len(messages))
            taken += [(part, offset, messages[offset]) for offset in range(first, end)]
            self.following[part] = end
        return Versions(located(taken), dict(self.following))

    def behind(self) -> int:
        return sum(len(m) - self.following[p] for p, m in enumerate(self.topic.partitions))

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class FaultySession:
    """A session whose commits fail as the script says: before, or after they took effect."""

    inner: MemorySinkSession
    fault: Callable[[], str | None]

    @property
    def position(self) -> SinkPosition | None:
        return self.inner.position

    @property
    def origin(self) -> str:
        return self.inner.origin

    def commit(self, batch: Sequence[SinkRecord] | None, position: SinkPosition) -> None:
        fault = self.fault()
        if fault == "before":
            raise SystemUnavailable("the broker is away")
        self.inner.commit(batch, position)
        if fault == "after":
            raise TransactionOutcomeUnknown("the response was lost")

    def close(self) -> None:
        self.inner.close()


@dataclass
class SinkWorld:
    """Writers of one sink, over one topic and one cluster."""

    topic: ReadableTopic
    of: Schema = USERS
    fault: Callable[[], str | None] = lambda: None
    log: MemorySinkLog = field(default_factory=MemorySinkLog)
    copy: MemoryPositionCopy = field(default_factory=MemoryPositionCopy)

    def open(self, *, first: bool = True) -> FaultySession:
        return FaultySession(self.log.open(first=first), self.fault)

    def writer(self) -> SinkWriter[Sequence[SinkRecord]]:
        form = DebeziumForm(ChangeSource("kafka", "shop", "Users", self.of), lambda: 7)
        return SinkWriter("kafka/users", self.of, form, self, self.copy, self.topic.open)


def shown(records: Sequence[SinkRecord]) -> list[tuple[Any, ...]]:
    """Return key, op, before and after of events, and (key, None) of tombstones."""
    found: list[tuple[Any, ...]] = []
    for record in records:
        key = None if record.key is None else json.loads(record.key)["user"]
        if record.value is None:
            found.append((key, None))
            continue
        event = json.loads(record.value)
        old, new = event["before"], event["after"]
        found.append((key, event["op"], old and old["age"], new and new["age"]))
    return found
