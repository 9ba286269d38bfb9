"""The interfaces of a sink to where it writes, and their in-memory implementations.

`kafka.py` and `http.py` are the real implementations. A *session* belongs to one writer of a sink.
Opening one fences every earlier session, ends what they began, and only then reads the position: so
nothing that was committed is behind it, and nothing can be committed by another session until the
next one is opened. A session that fails is over; its writer opens another one, whose position says
what became of the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fennel_core.connections.errors import TransactionAborted
from fennel_core.sinks.debezium import SinkRecord
from fennel_core.sinks.positions import SinkPosition


class SinkSession(Protocol):
    """The exclusive right to write one sink, until the next session is opened. All calls block."""

    @property
    def position(self) -> SinkPosition | None:
        """The last committed position; None if nothing was committed yet."""
        ...

    @property
    def origin(self) -> str:
        """What it writes to: the ids of cluster and topic, or the URL."""
        ...

    def commit(self, records: Sequence[SinkRecord], position: SinkPosition) -> None:
        """Write records and position, in order per key; in one transaction where there are any.

        Raises `ConnectionsError` and `SinkError`; the session is over after each, and has to be
        closed.
        """
        ...

    def close(self) -> None:
        """Abort what was begun and not committed, and release the rest; the session is over."""
        ...


class SinkLog(Protocol):
    """Opens sessions of one sink."""

    def open(self) -> SinkSession:
        """Open a session. Raises `ConnectionsError`."""
        ...


class PositionCopy(Protocol):
    """The copy of a sink's position that the platform itself keeps: never ahead of the truth."""

    def read(self) -> SinkPosition | None:
        """Return the copy. Raises `SystemUnavailable`."""
        ...

    def write(self, position: SinkPosition) -> None:
        """Replace the copy, at some time: a copy that is older does no harm."""
        ...


@dataclass(slots=True)
class MemorySinkLog:
    """In-memory `SinkLog`, shared by all writers of one sink."""

    origin: str = "cluster/topic"
    records: list[SinkRecord] = field(default_factory=list)
    positions: list[SinkPosition] = field(default_factory=list)
    epoch: int = 0

    def open(self) -> MemorySinkSession:
        self.epoch += 1
        return MemorySinkSession(
            self, self.epoch, self.positions[-1] if self.positions else None, self.origin
        )


@dataclass(slots=True)
class MemorySinkSession:
    """See `SinkSession`."""

    owner: MemorySinkLog
    epoch: int
    position: SinkPosition | None
    origin: str

    def commit(self, records: Sequence[SinkRecord], position: SinkPosition) -> None:
        if self.owner.epoch != self.epoch:
            raise TransactionAborted("a later session fenced this one")
        self.owner.records += records
        self.owner.positions.append(position)
        self.position = position

    def close(self) -> None:
        """Nothing is held."""


@dataclass(slots=True)
class MemoryPositionCopy:
    """In-memory `PositionCopy`."""

    position: SinkPosition | None = None

    def read(self) -> SinkPosition | None:
        return self.position

    def write(self, position: SinkPosition) -> None:
        self.position = position
