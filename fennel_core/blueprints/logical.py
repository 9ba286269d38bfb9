"""Logical assets: what a commit needs, named by identity, before the bank has said which physical
thing each of them is.

Theory. A blueprint is a topic or a job. Its identity is a Merkle hash (`identity.py`), so two
branches, two pipelines or two commits that want the same content name the same blueprint. `title`
is for people and no part of anything's identity: the first commit that needs an asset names it. A
`Compiled` commit is closed: whoever holds a job holds every topic it reads, writes and logs to; the
planner and the ledger rely on that, so `Compiled` checks it when it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fennel_core.operators.spec import StepSpec
from fennel_core.vocab.ids import DatasetName, Identity
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import Source


class AssetKind(StrEnum):
    """What a physical asset is. The value is part of its name."""

    TOPIC = "topic"
    """Content of a dataset, or rows on their way to another partition."""
    RAW = "raw"
    """What an endpoint received, as it came."""
    REPLAYLOG = "replaylog"
    DEAD = "dead"
    """Rows that could not be processed; one per workspace."""
    JOB = "job"


@dataclass(frozen=True, slots=True, order=True)
class AssetKey:
    """What an asset is, whichever incarnation of it."""

    kind: AssetKind
    identity: Identity


@dataclass(frozen=True, slots=True)
class LogicalTopic:
    key: AssetKey
    partitions: int
    title: str

    def __post_init__(self) -> None:
        assert self.key.kind is not AssetKind.JOB, "a job is not a topic"
        assert self.partitions > 0


@dataclass(frozen=True, slots=True)
class LogicalOutput:
    """Where emits of one output number go. `partition_by` empty: by position."""

    topic: AssetKey
    partition_by: tuple[str, ...]
    watermark: bool = False


@dataclass(frozen=True, slots=True)
class LogicalJob:
    key: AssetKey
    inputs: tuple[AssetKey, ...]
    outputs: tuple[LogicalOutput, ...]
    step: StepSpec
    replaylog: AssetKey
    dead_letters: AssetKey
    partitions: int
    title: str

    @property
    def topics(self) -> tuple[AssetKey, ...]:
        """Every topic the job touches."""
        return (*self.inputs, *(o.topic for o in self.outputs), self.replaylog, self.dead_letters)


Blueprint = LogicalTopic | LogicalJob


@dataclass(frozen=True, slots=True)
class LogicalDataset:
    """One dataset of the compiled version. `topic` None: terminal aggregate; `served_by` None:
    nobody may look it up.
    """

    name: DatasetName
    version: int
    schema: Schema
    topic: AssetKey | None
    served_by: AssetKey | None
    online: bool
    offline: bool
    erase_keys: tuple[str, ...]
    is_source: bool


@dataclass(frozen=True, slots=True)
class LogicalSource:
    """One webhook endpoint that feeds one source dataset."""

    identity: Identity
    webhook: str
    endpoint: str
    source: Source
    dataset: DatasetName
    schema: Schema
    topic: AssetKey
    raw_topic: AssetKey
    dead_letters: AssetKey


@dataclass(frozen=True, slots=True)
class Compiled:
    """Everything one branch version needs. `jobs` are in topological order: producers before
    consumers.
    """

    topics: tuple[LogicalTopic, ...]
    jobs: tuple[LogicalJob, ...]
    datasets: tuple[LogicalDataset, ...]
    sources: tuple[LogicalSource, ...]
    partitions: int

    def __post_init__(self) -> None:
        known = {t.key for t in self.topics}
        assert len(known) == len(self.topics), "a topic is listed once"
        assert len({j.key for j in self.jobs}) == len(self.jobs), "a job is listed once"
        assert all(known.issuperset(job.topics) for job in self.jobs), (
            "whoever holds a job holds its topics"
        )
        written = [o.topic for j in self.jobs for o in j.outputs] + list(
            {s.topic for s in self.sources}
        )
        assert len(set(written)) == len(written), "a topic has one writer"

    @property
    def blueprints(self) -> tuple[Blueprint, ...]:
        return (*self.topics, *self.jobs)
