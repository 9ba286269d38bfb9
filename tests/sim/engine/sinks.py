"""Sinks of the simulated engine: production writers over the topics that the jobs write.

Two writers of each sink run in turn, so each fences the other. Their commits are lost before they
take effect or after it, and writers are given up in the middle and replaced. Whatever the engine
does meanwhile (transactions that are aborted, time out or are fenced), a sink has to say what its
topic says in the end: a reader that follows the documented rule has the recompute, and adds no
version twice and removes none that is not there.

Choices are drawn from a source of their own, so that sinks do not change what else a seed does.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fennel_core.connections.errors import ConnectionsError
from fennel_core.sinks.debezium import SinkRecord
from fennel_core.sinks.writer import NO_ERASURES, ChangeReader, SinkWriter, Versions
from fennel_core.vocab.ids import TopicName
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import decode
from tests.sim.engine import job_chain
from tests.sim.engine.model_log import ModelLog
from tests.support.sink_world import SinkWorld, located

WRITTEN: Final = ((job_chain.JOINED, job_chain.MET), (job_chain.TOTALS, job_chain.SERVED))
WRITERS: Final = 2
READS: Final = (0, 1, 4, 30)
"""How many offsets of a partition are read together."""
TURNS: Final = 0.5
"""How often a sink gets a turn: a step costs as much as one of the engine."""
FAULTS: Final = (None, None, None, "before", "after")


@dataclass
class LogTopic:
    """The committed records of a topic of the simulated log, read in parts of any length."""

    log: ModelLog
    name: TopicName
    of: Schema
    partitions: int
    chosen: random.Random

    def open(self, following: Mapping[int, int]) -> ChangeReader:
        parts = range(self.partitions)
        return LogReader(self, {part: following.get(part, 0) for part in parts})


@dataclass
class LogReader:
    topic: LogTopic
    following: dict[int, int]

    def read(self) -> Versions:
        topic, taken = self.topic, []
        for part, first in self.following.items():
            end = topic.log.stable_end((topic.name, part))
            stop = min(first + topic.chosen.choice(READS), end)
            taken += [
                (part, record.offset, decode(record.value))
                for record in topic.log.committed((topic.name, part), first, stop)
                if record.control is None
            ]
            self.following[part] = stop
        return Versions(located(taken, topic.of), dict(self.following))

    def behind(self) -> int:
        topic = self.topic
        ends = ((topic.log.stable_end((topic.name, p)), at) for p, at in self.following.items())
        return sum(end - at for end, at in ends)

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class SimSink:
    """A sink and its writers."""

    world: SinkWorld
    name: TopicName
    writers: list[SinkWriter[Sequence[SinkRecord]]]

    def step(self, number: int, *, given_up: bool) -> None:
        """Let a writer take a step; one that fails may be given up, as its process was killed."""
        try:
            self.writers[number].step(NO_ERASURES)
        except ConnectionsError:
            if given_up:
                self.writers[number] = self.world.writer()

    def drain(self) -> None:
        """Write all that is committed, without faults."""
        self.world.fault = lambda: None
        last = self.world.writer()
        while last.step(NO_ERASURES).behind:
            pass

    def said(self) -> tuple[Counter[tuple[Any, ...]], list[str]]:
        """Return the rows of the sink by the documented rule, and what breaks the rule."""
        versions: dict[Any, Any] = {}
        wrong = []
        for record in self.world.log.records:
            assert record.value is not None, "nothing was erased"
            event = json.loads(record.value)
            source, gone = event["source"], event["source"]["withdrawn"]
            # Without keys, a corrected row may be in another partition than it was.
            of = record.key or source["partition"]
            if gone is not None:
                place = (of, gone["ts_us"], gone["position"])
                if versions.pop(place, None) is None:
                    wrong.append(f"sink of {self.name}: {place} is withdrawn and was not there")
            if not source["retraction"]:
                place = (of, source["ts_us"], source["position"])
                if place in versions:
                    wrong.append(f"sink of {self.name}: {place} is written twice")
                versions[place] = event["after"] or "deleted"
        values = [name for name in self.world.of.names if name != self.world.of.timestamp]
        return Counter(
            (us, position, *((row[name] for name in values) if row != "deleted" else ()))
            for (_, us, position), row in versions.items()
        ), wrong


@dataclass
class SimSinks:
    """The sinks of a world."""

    log: ModelLog
    seed: int
    partitions: int
    sinks: list[SimSink] = field(init=False)

    def __post_init__(self) -> None:
        self._chosen = random.Random(f"sinks of {self.seed}")  # noqa: S311  # repeatable, and no secret
        self.sinks = [self._sink(name, of) for name, of in WRITTEN]

    def _sink(self, name: TopicName, of: Schema) -> SimSink:
        topic = LogTopic(self.log, name, of, self.partitions, self._chosen)
        world = SinkWorld(topic, of, fault=lambda: self._chosen.choice(FAULTS))
        return SimSink(world, name, [world.writer() for _ in range(WRITERS)])

    def turn(self) -> None:
        """Let a writer take a step, now and then."""
        if self._chosen.random() < TURNS:
            sink, number = self._chosen.choice(self.sinks), self._chosen.randrange(WRITERS)
            sink.step(number, given_up=self._chosen.random() < 0.5)

    def flaws(self, feed: job_chain.RowSource) -> list[str]:
        """Write the rest, and return how the sinks differ from the recompute."""
        expected, found = job_chain.expected_integrals(feed), []
        for sink in self.sinks:
            sink.drain()
            rows, wrong = sink.said()
            want = _as_said(sink.world.of, expected[sink.name])
            found += wrong
            if rows != want:
                found.append(f"sink of {sink.name}: too much {rows - want}, missing {want - rows}")
        return found


def _as_said(of: Schema, versions: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Return versions (`job_chain.integral`) as `SimSink.said` returns rows."""
    found: Counter[tuple[Any, ...]] = Counter()
    for (*row, position, deleted), count in versions.items():
        named = dict(zip(of.names, row, strict=True))
        us = named.pop(of.timestamp)
        found[(us, position.hex(), *(() if deleted else named.values()))] += count
    return found
