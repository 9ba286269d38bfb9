"""What users order about sinks, as it is stored: pauses and rewinds.

A *pause* is of the name of a sink in a workspace, as `hooks/rows`, and not of what is written
there: a version of the dataset with another content has another sink of this name, which is paused,
too. It is kept until it is lifted, also while no version has such a sink.

A *rewind* is of one sink. It is carried out by the writer of the sink, in a transaction of the
sink: the position has the number of the last rewind that was carried out. So nothing is paused for
it, and it is carried out once, whatever is killed. Numbers grow, and a later one replaces an
earlier one. That one was carried out is stored here, too, for people who ask what is pending.
`postgres.py` is the real implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from fennel_core.sinks.positions import SinkRewind
from fennel_core.sources.controls import SourcePause
from fennel_core.vocab.ids import TopicName, WorkspaceId

SinkName = tuple[WorkspaceId, str]
"""The workspace and the name of a sink as people use it."""


@dataclass(frozen=True, slots=True)
class RewindOrder:
    """From where the sink `sink` is written again; see `SinkRewind`."""

    sink: TopicName
    to: Mapping[int, int]
    whole: bool


class SinkControls(Protocol):
    """The stored orders. Every method raises `SystemUnavailable`."""

    async def pauses(self) -> Mapping[SinkName, SourcePause]:
        """Return the names that are paused."""
        ...

    async def pause(self, name: SinkName, by: str) -> None:
        """Pause a name; one that is paused keeps who paused it and when."""
        ...

    async def resume(self, name: SinkName) -> None:
        """Lift the pause of a name."""
        ...

    async def rewind(self, orders: Sequence[RewindOrder]) -> None:
        """Order rewinds, in one transaction; sinks that are gone are left out."""
        ...

    async def rewinds(self) -> Mapping[TopicName, SinkRewind]:
        """Return the last rewind of each sink that was ever rewound."""
        ...

    async def pending(self) -> Mapping[TopicName, SinkRewind]:
        """Return the rewinds that are not known to be carried out."""
        ...

    async def carried_out(self, numbers: Mapping[TopicName, int]) -> None:
        """Note the numbers of the last rewinds that sinks have carried out."""
        ...


@dataclass(slots=True)
class MemorySinkControls:
    """In-memory `SinkControls`; `sinks` are those that exist."""

    now: Callable[[], datetime]
    sinks: Collection[TopicName]
    _pauses: dict[SinkName, SourcePause] = field(default_factory=dict)
    _rewinds: dict[TopicName, SinkRewind] = field(default_factory=dict)
    _carried_out: dict[TopicName, int] = field(default_factory=dict)

    async def pauses(self) -> Mapping[SinkName, SourcePause]:
        return dict(self._pauses)

    async def pause(self, name: SinkName, by: str) -> None:
        self._pauses.setdefault(name, SourcePause(by, self.now()))

    async def resume(self, name: SinkName) -> None:
        self._pauses.pop(name, None)

    async def rewind(self, orders: Sequence[RewindOrder]) -> None:
        for each in orders:
            if each.sink in self.sinks:
                before = self._rewinds.get(each.sink)
                number = 1 if before is None else before.number + 1
                self._rewinds[each.sink] = SinkRewind(number, each.to, each.whole)

    async def rewinds(self) -> Mapping[TopicName, SinkRewind]:
        return dict(self._rewinds)

    async def pending(self) -> Mapping[TopicName, SinkRewind]:
        done = self._carried_out
        return {s: each for s, each in self._rewinds.items() if each.number > done.get(s, 0)}

    async def carried_out(self, numbers: Mapping[TopicName, int]) -> None:
        for sink, number in numbers.items():
            self._carried_out[sink] = max(number, self._carried_out.get(sink, 0))
