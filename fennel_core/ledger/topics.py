"""The hands of the ledgers: what makes and unmakes topics. `kafka.py` is the real one,
`MemoryTopicAdmin` its twin.

Theory. Making a topic that exists and unmaking one that does not are successes, because every step
may be run again. An answer is per topic: one refusal condemns its commit but says nothing about the
others. `Unreachable` means that nothing is known about any of them; the caller tries again. Jobs
need no hands: a job is a row of the registry, made by the commit transaction itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fennel_core.blueprints.logical import AssetKind
from fennel_core.vocab.ids import TopicName


class Unreachable(Exception):
    """Kafka did not answer; whether it did what was asked is unknown."""


class TopicRefusal(str):
    """Why a topic could not be made or unmade."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What is needed to know about a topic to make it."""

    name: TopicName
    kind: AssetKind
    partitions: int


class TopicAdmin(Protocol):
    async def create(self, topics: Sequence[TopicSpec]) -> Mapping[TopicName, TopicRefusal]:
        """Make what is not there; answers those refused. Raises `Unreachable`."""
        ...

    async def delete(self, names: Sequence[TopicName]) -> Mapping[TopicName, TopicRefusal]:
        """Unmake what is there; answers those refused. Raises `Unreachable`."""
        ...

    async def names(self) -> list[TopicName]:
        """Every topic there is. Raises `Unreachable`."""
        ...


class MemoryTopicAdmin:
    """Topics as a dict of partition counts."""

    def __init__(self) -> None:
        self.there: dict[TopicName, int] = {}
        self.refuse: dict[TopicName, TopicRefusal] = {}
        """Topics that a test wants refused."""

    async def create(self, topics: Sequence[TopicSpec]) -> Mapping[TopicName, TopicRefusal]:
        self.there |= {t.name: t.partitions for t in topics if t.name not in self.refuse}
        return {t.name: self.refuse[t.name] for t in topics if t.name in self.refuse}

    async def delete(self, names: Sequence[TopicName]) -> Mapping[TopicName, TopicRefusal]:
        for name in names:
            self.there.pop(name, None)
        return {}

    async def names(self) -> list[TopicName]:
        return sorted(self.there)
