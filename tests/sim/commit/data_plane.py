"""Rows, ingest and engines of the simulated control plane.

A log is a list of records. A request is appended to the raw topic of its endpoint together with the
topics it was judged for, and to those topics; a job applies the records of its inputs in order, a
few per turn, and appends each to the same partition of its outputs. A source replay skips what
ingest has written itself. What a job has applied is its state: lookups see exactly those rows.

Owners start late, fall behind, die for a while (their last report stays in the registry until the
lease ends) and stop late. A state survives its owner, because engines rebuild it before they serve.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, Job, SourceBinding
from fennel_core.ledger.memory import JobRow, MemoryLedger, MemoryLedgerTransaction
from fennel_core.ledger.store import PartitionProgress
from fennel_core.ledger.topics import MemoryTopicAdmin
from fennel_core.operators.spec import SourceReplaySpec
from fennel_core.vocab.ids import (
    JobId,
    JobPartition,
    Offset,
    TopicName,
    TopicPartition,
    WorkspaceId,
    partition_indexes,
)
from tests.sim.engine.virtual_time import now_ms

TURN_S: Final = 0.5
LEASE_MS: Final = 10_000
DEATH_RATE: Final = 0.002
"""Probability per job and turn."""


@dataclass(frozen=True, slots=True)
class Record:
    """A row on a topic; on a raw topic, `judged_for` are the topics ingest wrote it to as well."""

    row: int
    judged_for: frozenset[TopicName] = frozenset()


@lru_cache(maxsize=4096)
def catalog_of(blob: bytes) -> Catalog:
    return stored_names.loads(blob, Catalog)


def source_topics(catalog: Catalog) -> list[TopicName]:
    """Return the topics of the source datasets of a version."""
    return [d.topic for d in catalog.datasets if d.is_source and d.topic is not None]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A dataset that can be looked up: its job, and the source topic that its rows come from.

    `before`: the jobs between the two.
    """

    dataset: str
    job: JobId
    topic: TopicName
    before: frozenset[JobId] = frozenset()


@dataclass
class Logs:
    """The records of all topics, kept in step with what the topic admin reports."""

    topics: MemoryTopicAdmin
    records: dict[TopicPartition, list[Record]] = field(default_factory=dict)

    def append(self, at: TopicPartition, record: Record) -> None:
        log = self.records.setdefault(at, [])
        log.append(record)
        self.topics.log_ends[at] = Offset(len(log))
        self.topics.messages[at[0]] = self.topics.messages.get(at[0], 0) + 1

    def rows(self, topic: TopicName) -> list[int]:
        """Return the rows of a topic, with repetitions."""
        return [r.row for (name, _), log in self.records.items() if name == topic for r in log]

    def delete(self, topic: TopicName) -> None:
        for at in [at for at in self.records if at[0] == topic]:
            del self.records[at]
            self.topics.log_ends.pop(at, None)
        self.topics.messages.pop(topic, None)


@dataclass
class Content:
    """Where the rows of a source topic come from.

    `whole`: the raw topics that have fed it since it began; it must have all their rows.
    `ever`: the raw topics that have fed it at any time.
    """

    whole: set[TopicName]
    ever: set[TopicName]


@dataclass
class Contents:
    """Which rows each source topic must have, although its sources change.

    Nothing is deleted from it, so it knows the rows of raw topics that are gone as well.
    """

    of: dict[TopicName, Content] = field(default_factory=dict)
    judged: dict[TopicName, set[int]] = field(default_factory=dict)
    """The rows that ingest wrote to a source topic."""
    accepted: dict[TopicName, set[int]] = field(default_factory=dict)
    """The rows of a raw topic."""

    def switch_to(self, catalog: Catalog) -> None:
        """Change the sources of contents as T2 of a version does."""
        fed: dict[TopicName, set[TopicName]] = {topic: set() for topic in source_topics(catalog)}
        for source in catalog.sources:
            fed[source.topic].add(source.raw_topic)
        for topic, raw in fed.items():
            content = self.of.setdefault(topic, Content(set(raw), set()))
            content.whole &= raw
            content.ever |= raw

    def owed(self, topic: TopicName) -> frozenset[int]:
        """Return the rows that were accepted for a source topic until now."""
        whole = self._accepted(self.of[topic].whole)
        return frozenset(whole | self.judged.get(topic, set()))

    def allowed(self, topic: TopicName) -> set[int]:
        """Return the rows that may be on a source topic."""
        return self._accepted(self.of[topic].ever)

    def _accepted(self, raw: set[TopicName]) -> set[int]:
        return set().union(*(self.accepted.get(each, set()) for each in raw))


@dataclass
class Engines:
    """Runs the registered jobs.

    `slow_s`: the longest time until a new job runs. `rates`: how many records a partition applies
    per turn; each job has one of them, so that a job may be much slower than the ones before it.
    """

    ledger: MemoryLedger
    logs: Logs
    random: random.Random
    slow_s: float
    rates: Sequence[int]
    dies: Callable[[], bool]
    state: dict[JobId, set[int]] = field(default_factory=dict)
    """The rows that lookups of a job see."""
    _rates: dict[JobId, int] = field(default_factory=dict)
    _applied: dict[JobPartition, dict[TopicName, Offset]] = field(default_factory=dict)
    _starts_at: dict[JobId, float] = field(default_factory=dict)
    _stops_at: dict[JobId, float] = field(default_factory=dict)
    _dead_until: dict[JobId, float] = field(default_factory=dict)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            now = now_ms() / 1000
            for id_, row in list(self.ledger.state.jobs.items()):
                self._turn(id_, row, now)

    def _turn(self, id_: JobId, row: JobRow, now: float) -> None:
        if id_ not in self._starts_at:
            self._starts_at[id_] = now + self.random.random() * self.slow_s
            self._rates[id_] = self.random.choice(self.rates)
        if row.retired or row.paused:
            late = self.random.choice([0.0, 2.0, 90.0]) if id_ not in self._stops_at else 0.0
            if now >= self._stops_at.setdefault(id_, now + late):
                self.ledger.state.jobs[id_] = replace(row, leased_until_ms=0)
                return
        else:
            self._stops_at.pop(id_, None)
        if now < self._dead_until.get(id_, 0.0):
            return
        if self.dies() and self.random.random() < DEATH_RATE:
            self._dead_until[id_] = now + self.random.random() * 40
            return
        self.ledger.state.jobs[id_] = replace(row, leased_until_ms=now_ms() + LEASE_MS)
        runs = now >= self._starts_at[id_]
        for part in partition_indexes(row.spec.partitions):
            at = (id_, part)
            report = PartitionProgress(*at, "replaying", None)
            if runs:
                report = PartitionProgress(*at, "running", None, dict(self._applied.get(at, {})))
            self.ledger.state.partitions[at] = report
            if runs:
                self._work(row.spec, at)

    def _work(self, spec: Job, at: JobPartition) -> None:
        applied, part = self._applied.setdefault(at, {}), at[1]
        for topic in spec.inputs:
            first = applied.get(topic, Offset(0))
            log = self.logs.records.get((topic, part), ())
            taken = log[first : first + self._rates[spec.id]]
            applied[topic] = Offset(first + len(taken))
            state = self.state.setdefault(spec.id, set())
            for record in taken:
                state.add(record.row)
                for output in spec.outputs:
                    by_ingest = output.topic in record.judged_for
                    if not (by_ingest and isinstance(spec.step, SourceReplaySpec)):
                        self.logs.append((output.topic, part), Record(record.row))

    def backlog(self) -> int:
        """Return how many records running jobs have not applied yet."""
        jobs = [row for row in self.ledger.state.jobs.values() if not row.retired | row.paused]
        return sum(
            len(self.logs.records.get((topic, part), ()))
            - self._applied.get((row.spec.id, part), {}).get(topic, 0)
            for row in jobs
            for topic in row.spec.inputs
            for part in partition_indexes(row.spec.partitions)
        )


@dataclass
class Ingest:
    """Accepts requests: typed rows and the raw request in one transaction, as ingest servers do."""

    ledger: MemoryLedger
    logs: Logs
    contents: Contents
    random: random.Random
    accepted: int = 0

    async def run(self, workspace: WorkspaceId) -> None:
        while True:
            await asyncio.sleep(self.random.random() * 4)
            await self._request(workspace)

    async def _request(self, workspace: WorkspaceId) -> None:
        for _ in range(3):
            version, bindings = self._routes(workspace)
            if not bindings:
                return
            endpoint = self.random.choice(sorted({b.endpoint for b, _ in bindings}))
            await asyncio.sleep(0.01)  # its rows are typed
            if self._routes(workspace)[0] == version:
                break
        else:
            return
        # Its stamp is taken: a commit that passes T2 now is not seen any more.
        await asyncio.sleep(self.random.choice([0.001, 0.05, 3.0]))
        self._write([each for each in bindings if each[0].endpoint == endpoint])

    def _routes(
        self, workspace: WorkspaceId
    ) -> tuple[tuple[object, ...], list[tuple[SourceBinding, int]]]:
        state = self.ledger.state
        branches = [b for b in state.branch_rows.values() if b.workspace == workspace and b.target]
        found: dict[object, tuple[SourceBinding, int]] = {}
        for branch in branches:
            assert branch.target is not None
            catalog = catalog_of(state.blobs[branch.target, "catalog"])
            for binding in catalog.sources:
                found.setdefault((binding.identity, binding.topic), (binding, catalog.partitions))
        return tuple((b.name, b.target) for b in branches), list(found.values())

    def _write(self, bindings: list[tuple[SourceBinding, int]]) -> None:
        """Write one request of a few rows, unless a topic is gone: then nothing is written."""
        typed = {binding.topic: count for binding, count in bindings}
        raw = {binding.raw_topic: count for binding, count in bindings}
        if not (typed | raw).keys() <= self.logs.topics.partition_counts.keys():
            return
        judged_for = frozenset(typed)
        for _ in range(self.random.randrange(1, 8)):
            self.accepted += 1
            for topic, count in typed.items():
                self.contents.judged.setdefault(topic, set()).add(self.accepted)
                self.logs.append((topic, self.accepted % count), Record(self.accepted))
            for topic, count in raw.items():
                self.contents.accepted.setdefault(topic, set()).add(self.accepted)
                self.logs.append((topic, self.accepted % count), Record(self.accepted, judged_for))


def lookups(state: MemoryLedgerTransaction, catalog: Catalog) -> Iterator[Lookup]:
    """Yield what can be looked up in a version."""
    sources = source_topics(catalog)
    specs = [state.jobs[job].spec for job in catalog.jobs]
    writers = {output.topic: spec for spec in specs for output in spec.outputs}
    for view in catalog.datasets:
        if view.served_by is not None:
            topic = state.jobs[view.served_by].spec.inputs[0]
            before = set()
            while topic not in sources:
                before.add(writers[topic].id)
                topic = writers[topic].inputs[0]
            yield Lookup(view.name, view.served_by, topic, frozenset(before))


Promises = Mapping[Lookup, frozenset[int]]
"""For each lookup of a version the rows that every read of the version must see."""


def promises(
    state: MemoryLedgerTransaction,
    contents: Contents,
    catalog: Catalog,
    serving: tuple[Promises, Collection[JobId]],
    applied: Mapping[JobId, Collection[int]],
) -> Promises:
    """Return what reads of a version whose T2 is now must see.

    `serving`: the promises and the jobs of the version that reads use; `applied`: the rows that
    each job has applied. Of a job that reads do not use yet these are the rows accepted until now,
    as far as jobs before it that reads use have applied them: such jobs, and the lookups of their
    datasets, go on as they are, although they may be behind.
    """
    promised, jobs = serving
    used = {lookup.job: rows for lookup, rows in promised.items()}
    found = {}
    for lookup in lookups(state, catalog):
        rows = used.get(lookup.job)
        if rows is None:
            rows = contents.owed(lookup.topic)
            for job in lookup.before.intersection(jobs):
                rows = rows.intersection(applied.get(job, ()))
        found[lookup] = rows
    return found
