"""Resolve identities to physical names: the jobs that engines run and the catalog of the servers.

Compilation uses identities and everything that runs uses physical names; this module is the only
place where one becomes the other. The map between them is that of the commit plan or, in the commit
transaction, of the commit's reservations. A key that the map lacks means an inconsistent ledger and
never a user's mistake, so it raises `KeyError`.
"""

from __future__ import annotations

from collections.abc import Mapping

from fennel_core.blueprints.logical import (
    AssetKey,
    Compiled,
    LogicalDataset,
    LogicalJob,
    LogicalSink,
    LogicalSource,
)
from fennel_core.blueprints.spec import (
    Catalog,
    DatasetView,
    Job,
    Output,
    SinkBinding,
    SourceBinding,
)
from fennel_core.vocab.ids import AssetId, JobId, TopicName, WorkspaceId

Names = Mapping[AssetKey, AssetId]


def resolve_job(job: LogicalJob, workspace: WorkspaceId, names: Names) -> Job:
    """Return the job with physical names."""
    return Job(
        id=JobId(names[job.key]),
        workspace=workspace,
        inputs=tuple(TopicName(names[i]) for i in job.inputs),
        outputs=tuple(
            Output(TopicName(names[o.topic]), o.partition_by, o.watermark) for o in job.outputs
        ),
        step=job.step,
        replaylog=TopicName(names[job.replaylog]),
        dead_letters=TopicName(names[job.dead_letters]),
        partitions=job.partitions,
        title=job.title,
    )


def resolve_catalog(compiled: Compiled, workspace: WorkspaceId, names: Names) -> Catalog:
    """Return the catalog of one branch version, with physical names."""
    return Catalog(
        workspace=workspace,
        datasets=tuple(_dataset(d, names) for d in compiled.datasets),
        sources=tuple(_source(s, names) for s in compiled.sources),
        jobs=tuple(JobId(names[j.key]) for j in compiled.jobs),
        partitions=compiled.partitions,
        sinks=tuple(_sink(s, names) for s in compiled.sinks),
    )


def _dataset(dataset: LogicalDataset, names: Names) -> DatasetView:
    return DatasetView(
        name=dataset.name,
        version=dataset.version,
        schema=dataset.schema,
        topic=None if dataset.topic is None else TopicName(names[dataset.topic]),
        served_by=None if dataset.served_by is None else JobId(names[dataset.served_by]),
        online=dataset.online,
        offline=dataset.offline,
        erase_keys=dataset.erase_keys,
        is_source=dataset.is_source,
        history_us=dataset.history_us,
    )


def _source(source: LogicalSource, names: Names) -> SourceBinding:
    return SourceBinding(
        identity=source.identity,
        webhook=source.webhook,
        endpoint=source.endpoint,
        source=source.source,
        dataset=source.dataset,
        schema=source.schema,
        topic=TopicName(names[source.topic]),
        raw_topic=TopicName(names[source.raw_topic]),
        dead_letters=TopicName(names[source.dead_letters]),
        positions=None if source.positions is None else TopicName(names[source.positions]),
    )


def _sink(sink: LogicalSink, names: Names) -> SinkBinding:
    return SinkBinding(
        positions=TopicName(names[sink.key]),
        sink=sink.sink,
        dataset=sink.dataset,
        schema=sink.schema,
        erase_keys=sink.erase_keys,
        topic=TopicName(names[sink.topic]),
        dead_letters=TopicName(names[sink.dead_letters]),
    )
