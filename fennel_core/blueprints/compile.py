"""Datasets → everything that must exist for them: topics, jobs, tables, and where each dataset is
written and read.

Theory. Datasets come in topological order, so every input of a pipeline has its topic when the
pipeline is compiled. A dataset's content is on one topic, partitioned by its keys; only a terminal
aggregate has none, because its rows exist only in the moment they are read. A keyed dataset that
anybody may look up has a table: the job that keeps every version for as-of reads. The compiler is a
pure function of its arguments; it invents no name and no number, so compiling the same definitions
twice gives equal values.
"""

from __future__ import annotations

from collections.abc import Sequence

from fennel_core.blueprints import identity
from fennel_core.blueprints.assembly import Assembly
from fennel_core.blueprints.compiler_input import DatasetInput
from fennel_core.blueprints.logical import AssetKey, Compiled, LogicalDataset, LogicalSource
from fennel_core.blueprints.pipeline import PipelineCompiler, TopicContent
from fennel_core.operators import spec
from fennel_core.vocab.ids import DatasetName, Identity
from fennel_core.wire.connectors import Source, WebhookEndpoint


def compile_datasets(subjects: Sequence[DatasetInput], partitions: int) -> Compiled:
    """Compile validated datasets, producers before consumers. `partitions`: of every topic and
    job.
    """
    assembly = Assembly(partitions)
    contents: dict[DatasetName, TopicContent] = {}
    datasets: list[LogicalDataset] = []
    sources: list[LogicalSource] = []
    if subjects:
        assembly.dead_letters()
    for subject in subjects:
        if subject.pipeline is None:
            topic: AssetKey | None = _sourced(subject, assembly, sources)
            writer = None
        else:
            dataset = subject.dataset
            result = PipelineCompiler(
                assembly, contents, dataset.name, dataset.version, dataset.schema, subject.pipeline
            ).run()
            topic, writer = result.topic, result.job
        if topic is not None:
            contents[subject.dataset.name] = TopicContent(
                topic, subject.dataset.schema, subject.dataset.schema.key_names
            )
        datasets.append(_view(subject, topic, _served_by(subject, topic, writer, assembly)))
    return Compiled(
        tuple(assembly.topics.values()),
        tuple(assembly.jobs.values()),
        tuple(datasets),
        tuple(sources),
        partitions,
    )


def _sourced(subject: DatasetInput, assembly: Assembly, sources: list[LogicalSource]) -> AssetKey:
    """The topic of a dataset that is fed from outside, with one binding per webhook endpoint."""
    dataset, partitions = subject.dataset, assembly.partitions
    named = [
        (identity.source_identity(s, dataset.schema, dataset.version, partitions), s)
        for s in subject.sources
    ]
    topic = identity.source_topic(
        [i for i, _ in named], dataset.schema, dataset.version, partitions
    )
    assembly.add_topic(topic, dataset.name)
    sources.extend(
        _binding(i, s, s.table, subject, topic, assembly)
        for i, s in named
        if isinstance(s.table, WebhookEndpoint)
    )
    return topic


def _binding(
    identity_: Identity,
    source: Source,
    table: WebhookEndpoint,
    subject: DatasetInput,
    topic: AssetKey,
    assembly: Assembly,
) -> LogicalSource:
    raw = identity.raw_topic(table.db.name, table.endpoint, assembly.partitions)
    return LogicalSource(
        identity=identity_,
        webhook=table.db.name,
        endpoint=table.endpoint,
        source=source,
        dataset=subject.dataset.name,
        schema=subject.dataset.schema,
        topic=topic,
        raw_topic=assembly.add_topic(raw, f"{table.db.name}/{table.endpoint}"),
        dead_letters=assembly.dead_letters(),
    )


def _served_by(
    subject: DatasetInput, topic: AssetKey | None, writer: AssetKey | None, assembly: Assembly
) -> AssetKey | None:
    """The job whose state answers lookups: a terminal aggregate's own, else a table if anybody may
    look the dataset up.
    """
    if topic is None:
        return writer
    dataset = subject.dataset
    if not (dataset.schema.keyed and (subject.online or subject.offline or subject.looked_up)):
        return None
    step = spec.TableSpec(dataset.schema)
    job, _ = assembly.add_job(
        step, (topic,), None, salt=0, title=f"{dataset.name}: table", content=dataset.name
    )
    return job


def _view(
    subject: DatasetInput, topic: AssetKey | None, served_by: AssetKey | None
) -> LogicalDataset:
    dataset = subject.dataset
    return LogicalDataset(
        name=dataset.name,
        version=dataset.version,
        schema=dataset.schema,
        topic=topic,
        served_by=served_by,
        online=subject.online,
        offline=subject.offline,
        erase_keys=dataset.erase_keys,
        is_source=subject.pipeline is None,
    )
