"""Simulated engines: job partitions that apply the records of their inputs with delay.

A log is a count of records. Each record that a partition applies becomes one record in the same
partition of each output. What has been applied is reported one turn later than it is true at best,
and the report of a dead owner stays in the registry until its lease has ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from fennel_core.bank.store import AssetState
from fennel_core.blueprints.spec import Job
from fennel_core.ledger.memory import MemoryLedger
from fennel_core.ledger.store import PartitionProgress
from fennel_core.ledger.topics import MemoryTopicAdmin
from fennel_core.vocab.ids import (
    AssetId,
    JobId,
    JobPartition,
    Offset,
    TopicName,
    TopicPartition,
    partition_indexes,
)

LEASE_MS = 10_000


@dataclass
class SimulatedEngines:
    """Run the registered jobs, one `turn` at a time.

    `slow`: a seed that decides how many records a partition applies per turn, which owners die and
    how many rows arrive; None: every turn applies everything. `parked`: titles of jobs whose code
    fails.
    """

    ledger: MemoryLedger
    topics: MemoryTopicAdmin
    now_ms: Callable[[], int]
    slow: random.Random | None = None
    input_continues: bool = False
    parked: set[str] = field(default_factory=set)
    applied: dict[JobPartition, dict[TopicName, Offset]] = field(default_factory=dict)
    _emitted: dict[tuple[JobPartition, TopicName], int] = field(default_factory=dict)
    dead_until_ms: dict[JobId, int] = field(default_factory=dict)

    def log(self, topic: TopicName, records: int, partition: int = 0) -> None:
        """Append records to a topic, as ingest does."""
        at = (topic, partition)
        self.topics.log_ends[at] = Offset(self.topics.log_ends.get(at, 0) + records)

    def turn(self) -> None:
        """Let every owner report, then work; stop the retired and the paused jobs."""
        world = self.ledger.state
        if self.slow is not None and self.input_continues:
            self._new_rows()
        for id_, row in list(world.jobs.items()):
            if row.retired or row.paused:
                world.jobs[id_] = replace(row, leased_until_ms=0)
            elif self._is_alive(id_):
                world.jobs[id_] = replace(row, leased_until_ms=self.now_ms() + LEASE_MS)
                for partition in partition_indexes(row.spec.partitions):
                    self._report(row.spec, (id_, partition))
                    self._work(row.spec, (id_, partition))

    def is_complete(self, job: Job, sources: Mapping[TopicPartition, int]) -> bool:
        """Return whether lookups of `job` see everything that follows from the rows `sources`.

        `sources`: records per partition of the topics that no job writes. An owner that died within
        its lease counts as complete: nothing can know it, and lookups fail in place of missing
        rows.
        """
        needed = {
            (topic, part): self._complete_log((topic, part), sources)
            for part in partition_indexes(job.partitions)
            for topic in job.inputs
        }
        if not any(needed.values()):
            return True
        if self.ledger.state.jobs[job.id].leased_until_ms <= self.now_ms():
            return False
        return self.now_ms() < self.dead_until_ms.get(job.id, 0) or all(
            self.applied.get((job.id, part), {}).get(topic, 0) >= records
            for (topic, part), records in needed.items()
        )

    def is_source(self, topic: TopicName) -> bool:
        """Return whether no job writes the topic."""
        return topic not in self._writers()

    def sources(self) -> dict[TopicPartition, int]:
        """Return the records that exist in topics that no job writes."""
        written = self._writers().keys()
        return {at: end for at, end in self.topics.log_ends.items() if at[0] not in written}

    def _complete_log(self, at: TopicPartition, sources: Mapping[TopicPartition, int]) -> int:
        writer = self._writers().get(at[0])
        if writer is None:
            return sources.get(at, 0)
        return sum(self._complete_log((topic, at[1]), sources) for topic in writer.inputs)

    def _writers(self) -> dict[TopicName, Job]:
        specs = [row.spec for row in self.ledger.state.jobs.values()]
        return {output.topic: spec for spec in specs for output in spec.outputs}

    def _new_rows(self) -> None:
        assert self.slow is not None
        for at in sorted(self.sources()):
            row = self.ledger.state.bank.rows.get(AssetId(at[0]))
            # Ingest writes to the topics that a version has, not to those that are retained.
            is_written = row is None or row.state is not AssetState.RETAINED
            if at[0] in self.topics.partition_counts and is_written:
                self.log(at[0], self.slow.randrange(3), at[1])

    def _is_alive(self, job: JobId) -> bool:
        if self.slow is None:
            return True
        if self.now_ms() < self.dead_until_ms.get(job, 0):
            return False
        if self.slow.random() < 0.02:
            # The next owner starts from nothing: the worst snapshot there is.
            self.dead_until_ms[job] = self.now_ms() + self.slow.randrange(12 * LEASE_MS)
            for at in [at for at in self.applied if at[0] == job]:
                self.applied[at] = {}
            return False
        return True

    def _report(self, spec: Job, at: JobPartition) -> None:
        if spec.title in self.parked:
            report = PartitionProgress(*at, "parked", "bad code")
        elif at not in self.applied:
            report = PartitionProgress(*at, "replaying", None)
        else:
            report = PartitionProgress(*at, "running", None, dict(self.applied[at]))
        self.ledger.state.partitions[at] = report

    def _work(self, spec: Job, at: JobPartition) -> None:
        if spec.title in self.parked:
            self.applied.pop(at, None)
            return
        done = self.applied.setdefault(at, {})
        for topic in spec.inputs:
            left = self.topics.log_ends.get((topic, at[1]), 0) - done.get(topic, 0)
            most = left if self.slow is None else self.slow.randrange(12)
            taken = max(0, min(left, most))
            done[topic] = Offset(done.get(topic, 0) + taken)
            # A record is emitted once, whichever owner applies it again.
            fresh = max(0, done[topic] - self._emitted.get((at, topic), 0))
            self._emitted[at, topic] = self._emitted.get((at, topic), 0) + fresh
            for output in spec.outputs:
                self.log(output.topic, fresh, at[1])


def incomplete(
    engines: SimulatedEngines, jobs: Collection[Job], sources: Mapping[TopicPartition, int]
) -> list[str]:
    """Return the titles of the jobs whose lookups miss something that follows from `sources`."""
    return [job.title for job in jobs if not engines.is_complete(job, sources)]
