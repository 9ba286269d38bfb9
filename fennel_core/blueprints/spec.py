"""Jobs and catalogs: the parts of a compiled commit that other packages load, as data.

The compiler names inputs and outputs by *identity* (a Merkle hash of logic and inputs); the bank
maps each identity to a physical asset with an incarnation. A `Job` is the resolved form that the
registry stores and an engine runs. A `Catalog` is the resolved form of one branch version that
ingest and query servers load: which topics rows are written to, and which jobs serve lookups.
"""

from __future__ import annotations

from dataclasses import dataclass

from fennel_core.operators.spec import StepSpec
from fennel_core.vocab.ids import DatasetName, Identity, JobId, TopicName, WorkspaceId
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import Sink, Source


@dataclass(frozen=True, slots=True)
class Output:
    """An output topic of a job.

    `partition_by` names the columns whose key bytes choose the partition; empty: by position.
    """

    topic: TopicName
    partition_by: tuple[str, ...]
    watermark: bool = False
    """Write a watermark (the largest event time written) to every partition of the topic.

    A consumer closes windows by it.
    """


@dataclass(frozen=True, slots=True)
class Job:
    """A job as an engine runs it.

    Partition p reads partition p of every input topic, and writes any partition of its outputs and
    partition p of `replaylog`.
    """

    id: JobId
    workspace: WorkspaceId
    inputs: tuple[TopicName, ...]
    outputs: tuple[Output, ...]
    step: StepSpec
    replaylog: TopicName
    dead_letters: TopicName
    partitions: int
    title: str
    """For people: `Dataset.pipeline: aggregate`."""

    @property
    def topics(self) -> frozenset[TopicName]:
        """Return every topic that the job reads or writes."""
        outputs = (output.topic for output in self.outputs)
        return frozenset((*self.inputs, *outputs, self.replaylog, self.dead_letters))


@dataclass(frozen=True, slots=True)
class DatasetView:
    """One dataset of a branch version.

    `topic` is None for a terminal aggregate; `served_by` is None if it cannot be looked up.
    """

    name: DatasetName
    version: int
    schema: Schema
    topic: TopicName | None
    served_by: JobId | None
    online: bool
    offline: bool
    erase_keys: tuple[str, ...]
    is_source: bool
    history_us: int = 0
    """How long its rows are kept at least, 0 where an earlier version stored the catalog."""


@dataclass(frozen=True, slots=True)
class SourceBinding:
    """One webhook endpoint, or one external stream, that feeds one source dataset.

    `identity` is the same for equal definitions in several branches. `webhook` and `endpoint` name
    the connector of a stream, and what is read there.
    """

    identity: Identity
    webhook: str
    endpoint: str
    source: Source
    dataset: DatasetName
    schema: Schema
    topic: TopicName
    raw_topic: TopicName
    dead_letters: TopicName
    positions: TopicName | None = None
    """The topic with how far a stream was read; None for a webhook, whose rows are sent."""


@dataclass(frozen=True, slots=True)
class SinkBinding:
    """A place outside of the platform that gets every change of a dataset's topic.

    `positions`: the topic with a copy of how far it got; its name is that of the sink. `dataset`:
    whose erasures count.
    """

    positions: TopicName
    sink: Sink
    dataset: DatasetName
    schema: Schema
    erase_keys: tuple[str, ...]
    topic: TopicName
    dead_letters: TopicName | None = None
    """None where an earlier version stored the catalog: its sinks refuse no rows."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """One branch version as ingest and query servers load it."""

    workspace: WorkspaceId
    datasets: tuple[DatasetView, ...]
    sources: tuple[SourceBinding, ...]
    jobs: tuple[JobId, ...]
    """All jobs of this branch version in topological order, in which a barrier visits them."""
    partitions: int
    sinks: tuple[SinkBinding, ...] = ()
    """Empty where an earlier version stored the catalog: it refused sinks."""
