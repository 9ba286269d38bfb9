"""Logical assets: the topics and jobs that a commit needs, named by identity.

The bank maps each identity to a physical asset. A blueprint is a topic or a job. Its identity is a
Merkle hash (`identity.py`), so two branches, pipelines or commits that need the same content name
the same blueprint. `title` is for people and not part of the identity: the first commit that needs
an asset titles it. `entity` is the dataset, or the endpoint `webhook/name`, that the asset was made
for, empty for one of the whole workspace; it is for people too.

A `Compiled` commit is closed: it holds every topic that one of its jobs reads, writes or logs to.
The planner and the ledger rely on that, so `Compiled` asserts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fennel_core.operators.spec import SourceReplaySpec, StepSpec
from fennel_core.vocab.ids import DatasetName, Identity
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import Sink, Source


class AssetKind(StrEnum):
    """The kind of a physical asset. The value is part of its name."""

    TOPIC = "topic"
    """Content of a dataset, or rows that are repartitioned."""
    RAW = "raw"
    """Requests that an endpoint received, unchanged; batches of messages of a stream are such."""
    POSITIONS = "positions"
    """How far each partition of an external stream was read: the last record of each key."""
    REPLAYLOG = "replaylog"
    DEAD = "dead"
    """Dead letters: rows that could not be processed. One topic per workspace."""
    QUERY_LOG = "querylog"
    """Features of logged queries. One topic per workspace, which no version refers to: it is made
    for the first logged query and lives as long as the workspace (`ledger.query_logs`).
    """
    SINK = "sink"
    """How far each partition of a dataset's topic is known to be in a sink: a copy, the last record
    of each key. What counts is stored where the sink writes.
    """
    JOB = "job"


@dataclass(frozen=True, slots=True, order=True)
class AssetKey:
    """The kind and identity of an asset, common to all its incarnations."""

    kind: AssetKind
    identity: Identity


@dataclass(frozen=True, slots=True)
class LogicalTopic:
    """A topic by identity."""

    key: AssetKey
    partitions: int
    title: str
    entity: str

    def __post_init__(self) -> None:
        assert self.key.kind is not AssetKind.JOB, "a job is not a topic"
        assert self.partitions > 0


@dataclass(frozen=True, slots=True)
class LogicalOutput:
    """An output topic of a job.

    `partition_by` names the columns whose key bytes choose the partition; empty: by position.
    """

    topic: AssetKey
    partition_by: tuple[str, ...]
    watermark: bool = False


@dataclass(frozen=True, slots=True)
class LogicalJob:
    """A job by identity; `inputs` are in the order of the step's inputs."""

    key: AssetKey
    inputs: tuple[AssetKey, ...]
    outputs: tuple[LogicalOutput, ...]
    step: StepSpec
    replaylog: AssetKey
    dead_letters: AssetKey
    partitions: int
    title: str
    entity: str

    @property
    def topics(self) -> tuple[AssetKey, ...]:
        """All topics that the job reads or writes."""
        return (*self.inputs, *(o.topic for o in self.outputs), self.replaylog, self.dead_letters)


Blueprint = LogicalTopic | LogicalJob


@dataclass(frozen=True, slots=True)
class LogicalDataset:
    """One dataset of the compiled version.

    `topic` is None for a terminal aggregate; `served_by` is None if it cannot be looked up.
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
    history_us: int = 0


@dataclass(frozen=True, slots=True)
class LogicalSource:
    """One webhook endpoint, or one external stream, that feeds one source dataset."""

    identity: Identity
    webhook: str
    endpoint: str
    source: Source
    dataset: DatasetName
    schema: Schema
    topic: AssetKey
    raw_topic: AssetKey
    dead_letters: AssetKey
    positions: AssetKey | None = None


@dataclass(frozen=True, slots=True)
class LogicalSink:
    """A place outside of the platform that gets every change of a dataset's topic.

    `key`: of the sink itself, which branches with the same content and the same place share.
    """

    key: AssetKey
    sink: Sink
    dataset: DatasetName
    schema: Schema
    erase_keys: tuple[str, ...]
    topic: AssetKey
    dead_letters: AssetKey


@dataclass(frozen=True, slots=True)
class SourceReplay:
    """A job that recomputes the rows of a source from raw requests, with its replaylog."""

    job: LogicalJob
    replaylog: LogicalTopic


@dataclass(frozen=True, slots=True)
class Compiled:
    """Everything one branch version needs, jobs in topological order.

    `replays`: the source replays that it may need as well; `source_replays.py` decides.
    """

    topics: tuple[LogicalTopic, ...]
    jobs: tuple[LogicalJob, ...]
    datasets: tuple[LogicalDataset, ...]
    sources: tuple[LogicalSource, ...]
    partitions: int
    replays: tuple[SourceReplay, ...] = ()
    sinks: tuple[LogicalSink, ...] = ()

    def __post_init__(self) -> None:
        known = {t.key for t in self.topics}
        assert len(known) == len(self.topics), "a topic is listed once"
        assert len({j.key for j in self.jobs}) == len(self.jobs), "a job is listed once"
        assert all(known.issuperset(job.topics) for job in self.jobs), (
            "the topics of each job are listed"
        )
        computed = [j for j in self.jobs if not isinstance(j.step, SourceReplaySpec)]
        written = [o.topic for j in computed for o in j.outputs] + list(
            {s.topic for s in self.sources}
        )
        assert len(set(written)) == len(written), "a topic has one writer, besides source replays"

    @property
    def source_contents(self) -> dict[DatasetName, AssetKey]:
        """The topic of each source dataset."""
        return {d.name: d.topic for d in self.datasets if d.is_source and d.topic is not None}

    @property
    def blueprints(self) -> tuple[Blueprint, ...]:
        return (*self.topics, *self.jobs)
