"""The interfaces of a sink to where it writes, and their in-memory implementations.

`kafka.py`, `http.py` and `delta.py` are the real implementations. What a session writes is a batch
`T`, which the `SinkForm` of its kind makes of changes: messages, or rows of a table.

A *session* belongs to one writer of a sink. It reads the position, and commits only behind it: if
another session has committed since, each commit of this one is refused. Where there are producers
to fence, opening a session fences every earlier one and ends what they began, and only then reads
the position; a table has its log for that, and is not touched. A session that fails is over; its
writer opens another one, whose position says what became of the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import polars as pl

from fennel_core.connections.errors import TransactionAborted
from fennel_core.sinks.debezium import SinkRecord
from fennel_core.sinks.positions import SinkPosition

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)


class SinkForm(Protocol[T_co]):
    """Makes what a kind of sink writes."""

    def changes(self, versions: pl.DataFrame, events: pl.DataFrame, written: int) -> T_co:
        """Return what says the events (`changes.events_of`), which refer to rows of `versions`.

        `written`: the number of events before them, since the sink began.
        """
        ...

    def deletes(self, keys: Sequence[bytes]) -> T_co:
        """Return what deletes the erased keys, given as key bytes (`vocab.keys`)."""
        ...

    def rewound(self, following: Mapping[int, int]) -> T_co | None:
        """Return what takes back the changes of messages from the offsets `following` on.

        None for a kind that cannot: these changes are then written once more.
        """
        ...


class SinkSession(Protocol[T_contra]):
    """The right to write one sink until another session does. All calls block."""

    @property
    def position(self) -> SinkPosition | None:
        """The last committed position; None if nothing was committed yet."""
        ...

    @property
    def origin(self) -> str:
        """What it writes to: the ids of cluster and topic, or of the table, or the URL."""
        ...

    def commit(self, batch: T_contra | None, position: SinkPosition) -> None:
        """Write a batch (None: nothing) and the position, in order per key; in one transaction
        where there are any.

        Raises `ConnectionsError` and `SinkError`; the session is over after each, and has to be
        closed.
        """
        ...

    def close(self) -> None:
        """Abort what was begun and not committed, and release the rest; the session is over."""
        ...


class SinkLog(Protocol[T_contra]):
    """Opens sessions of one sink."""

    def open(self, *, first: bool = True) -> SinkSession[T_contra]:
        """Open a session. Raises `ConnectionsError` and `SinkError`.

        `first`: nothing is known to be written, so that what is written to may be made.
        """
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

    def open(self, *, first: bool = True) -> MemorySinkSession:
        del first  # the topic is the user's
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

    def commit(self, batch: Sequence[SinkRecord] | None, position: SinkPosition) -> None:
        if self.owner.epoch != self.epoch:
            raise TransactionAborted("a later session fenced this one")
        self.owner.records += batch or ()
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
