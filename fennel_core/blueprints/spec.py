"""Jobs and catalogs: what a compiled commit asks the other rooms to run, as data.

Theory. The compiler names inputs and outputs by *identity* (Merkle hash of logic and inputs); the
bank maps each identity to a physical asset with an incarnation. A `Job` is the resolved form that
the registry stores and an engine runs. A `Catalog` is the resolved form of one branch version that
ingest and query servers load: where to write what arrives and where to read what is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from fennel_core.operators.spec import StepSpec
from fennel_core.vocab.ids import DatasetName, Identity, JobId, TopicName, WorkspaceId
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import Source


@dataclass(frozen=True, slots=True)
class Output:
    """Where emits of one output number go. `partition_by`: columns whose key bytes choose the
    partition; empty: by position.
    """

    topic: TopicName
    partition_by: tuple[str, ...]
    watermark: bool = False
    """Tell every partition the largest event time written: a consumer closes windows by it."""


@dataclass(frozen=True, slots=True)
class Job:
    """Partition p reads partition p of every input topic, writes any partition of its outputs and
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


@dataclass(frozen=True, slots=True)
class DatasetView:
    """One dataset of a branch version. `topic` is None for terminal aggregates; `served_by` is None
    without an index.
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


@dataclass(frozen=True, slots=True)
class SourceBinding:
    """One webhook endpoint feeding one source dataset. `identity` is shared by equal definitions of
    several branches.
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


@dataclass(frozen=True, slots=True)
class Catalog:
    workspace: WorkspaceId
    datasets: tuple[DatasetView, ...]
    sources: tuple[SourceBinding, ...]
    jobs: tuple[JobId, ...]
    """Every job this branch version needs, inputs before consumers (a topological order): the
    barrier walks it.
    """
    partitions: int
