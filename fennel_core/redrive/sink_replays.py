"""Orders to send the changes of dead letters again, which the processes that write sinks carry out.

Only the session of a sink may send its changes: another process would send an older change behind a
newer one. So an order is a row for each letter. It goes when the letter is settled, or was sent and
refused again: a process that dies in between finds it again. `sinks.postgres` has the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fennel_core.vocab.ids import TopicName, TopicPartition


@dataclass(frozen=True, slots=True)
class SinkReplay:
    """An order about the letter at `offset` of a partition of dead letters.

    `message`: partition and offset of the message of the dataset that has the changes; None for
    deletes of erased keys.
    """

    sink: TopicName
    at: TopicPartition
    offset: int
    message: tuple[int, int] | None

    @property
    def place(self) -> tuple[TopicPartition, int]:
        """Where the letter is."""
        return self.at, self.offset

    def is_due(self, following: Mapping[int, int]) -> bool:
        """Return whether the sink has passed the message; until then it sends it anyway."""
        return self.message is None or self.message[1] < following.get(self.message[0], 0)


class SinkReplays(Protocol):
    """The stored orders. Every method raises `SystemUnavailable`."""

    async def order(self, replays: Sequence[SinkReplay]) -> None:
        """Order replays, in one transaction; a letter that has an order keeps it. Orders of sinks
        that are gone are left out.
        """
        ...

    async def counts(self) -> Mapping[TopicName, int]:
        """Return how many orders each sink has that has any."""
        ...

    async def due(
        self, sink: TopicName, following: Mapping[int, int], count: int
    ) -> Sequence[SinkReplay]:
        """Return the first `count` orders of a sink, by place, that are due at its position
        `following` (see `SinkReplay.is_due`).
        """
        ...

    async def end(self, replays: Sequence[SinkReplay]) -> None:
        """End orders that were carried out, or whose letters are settled."""
        ...


@dataclass(slots=True)
class MemorySinkReplays:
    """In-memory `SinkReplays`; `sinks` are those that exist."""

    sinks: Collection[TopicName]
    orders: dict[tuple[TopicName, TopicPartition, int], SinkReplay] = field(default_factory=dict)

    async def order(self, replays: Sequence[SinkReplay]) -> None:
        for each in replays:
            if each.sink in self.sinks:
                self.orders.setdefault((each.sink, *each.place), each)

    async def counts(self) -> Mapping[TopicName, int]:
        found: dict[TopicName, int] = {}
        for each in self.orders.values():
            found[each.sink] = found.get(each.sink, 0) + 1
        return found

    async def due(
        self, sink: TopicName, following: Mapping[int, int], count: int
    ) -> Sequence[SinkReplay]:
        own = (each for each in self.orders.values() if each.sink == sink)
        return sorted((e for e in own if e.is_due(following)), key=lambda e: e.place)[:count]

    async def end(self, replays: Sequence[SinkReplay]) -> None:
        for each in replays:
            self.orders.pop((each.sink, *each.place), None)
