"""Compile datasets into everything they need: topics, jobs and tables.

Datasets come in topological order, so every input of a pipeline has its topic when the pipeline is
compiled. A dataset's content is on one topic, partitioned by its keys; only a terminal aggregate
has none, because its rows are assembled when they are read. A keyed dataset that can be looked up
has a table: the job that keeps every version for as-of reads.

The compiler is a pure function of its arguments and invents no name and no number, so compiling the
same definitions twice gives equal values. Which content a source dataset has depends on what its
branch had before, so the caller may name it (`source_contents.py`); without a name it is the
content that begins with the sources of the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fennel_core.blueprints import identity
from fennel_core.blueprints.assembly import Assembly
from fennel_core.blueprints.compiler_input import DatasetInput
from fennel_core.blueprints.logical import (
    AssetKey,
    Compiled,
    LogicalDataset,
    LogicalSink,
    LogicalSource,
)
from fennel_core.blueprints.pipeline import PipelineCompiler, TopicContent
from fennel_core.blueprints.streams import StreamTable, stream_of
from fennel_core.graph.sink_places import place_of
from fennel_core.operators import spec
from fennel_core.vocab.ids import DatasetName, Identity
from fennel_core.wire.connectors import Source, WebhookEndpoint


def compile_datasets(
    inputs: Sequence[DatasetInput],
    partitions: int,
    source_contents: Mapping[DatasetName, AssetKey] | None = None,
) -> Compiled:
    """Compile validated datasets, given producers before consumers.

    `partitions` is the workspace's number of partitions: that of every topic and job.
    `source_contents`: the topics of source datasets that continue a content, or begin another one.
    """
    assembly = Assembly(partitions)
    named = source_contents or {}
    contents: dict[DatasetName, TopicContent] = {}
    datasets: list[LogicalDataset] = []
    sources: list[LogicalSource] = []
    sinks: list[LogicalSink] = []
    if inputs:
        assembly.dead_letters()
    for definition in inputs:
        if definition.pipeline is None:
            topic: AssetKey | None = _add_source_topic(
                definition, named.get(definition.dataset.name), assembly, sources
            )
            writer = None
        else:
            dataset = definition.dataset
            result = PipelineCompiler(
                assembly,
                contents,
                dataset.name,
                dataset.version,
                dataset.schema,
                definition.pipeline,
            ).run()
            topic, writer = result.topic, result.job
        if topic is not None:
            contents[definition.dataset.name] = TopicContent(
                topic, definition.dataset.schema, definition.dataset.schema.key_names
            )
            sinks += _sinks(definition, topic, assembly)
        datasets.append(
            _logical_dataset(definition, topic, _serving_job(definition, topic, writer, assembly))
        )
    return Compiled(
        tuple(assembly.topics.values()),
        tuple(assembly.jobs.values()),
        tuple(datasets),
        tuple(sources),
        partitions,
        tuple(assembly.replays.values()),
        tuple(sinks),
    )


def _sinks(definition: DatasetInput, topic: AssetKey, assembly: Assembly) -> Iterator[LogicalSink]:
    """Yield the sinks of a dataset whose content is on `topic`."""
    dataset = definition.dataset
    for sink in definition.sinks:
        place = place_of(sink.table)
        assert place is not None, "validation refuses other sinks"
        key = identity.sink(place.kind, place.connector, place.name, topic)
        title = f"{dataset.name} into {place.title}"
        yield LogicalSink(
            key=assembly.add_topic(key, title, dataset.name),
            sink=sink,
            dataset=dataset.name,
            schema=dataset.schema,
            erase_keys=dataset.erase_keys,
            topic=topic,
            dead_letters=assembly.dead_letters(),
        )


def _add_source_topic(
    definition: DatasetInput,
    topic: AssetKey | None,
    assembly: Assembly,
    sources: list[LogicalSource],
) -> AssetKey:
    """Add the topic of a source dataset; per endpoint or stream, add a binding and the job that
    recomputes its rows. Return the topic. `topic` None: the content begins with its sources.
    """
    dataset = definition.dataset
    named = [
        (identity.source_identity(s, dataset.schema, dataset.version), s)
        for s in definition.sources
    ]
    if topic is None:
        topic = identity.source_topic((i for i, _ in named), dataset.schema, dataset.version)
    assembly.add_topic(topic, dataset.name, dataset.name)
    for i, s in named:
        if isinstance(s.table, WebhookEndpoint | StreamTable):
            sources.append(_source_binding(i, s, s.table, definition, topic, assembly))
            assembly.add_source_replay(sources[-1])
    return topic


def _source_binding(
    identity_: Identity,
    source: Source,
    table: WebhookEndpoint | StreamTable,
    definition: DatasetInput,
    topic: AssetKey,
    assembly: Assembly,
) -> LogicalSource:
    name = table.db.name
    match table:
        case WebhookEndpoint():
            stream, positions = table.endpoint, None
            raw = identity.raw_topic(name, stream)
        case _:
            read = stream_of(table)
            stream = read.name
            raw = identity.stream_topic(read.kind, name, stream)
            positions = identity.positions(raw)
    endpoint = f"{name}/{stream}"
    return LogicalSource(
        identity=identity_,
        webhook=name,
        endpoint=stream,
        source=source,
        dataset=definition.dataset.name,
        schema=definition.dataset.schema,
        topic=topic,
        raw_topic=assembly.add_topic(raw, endpoint, endpoint),
        dead_letters=assembly.dead_letters(),
        positions=None if positions is None else assembly.add_topic(positions, endpoint, endpoint),
    )


def _serving_job(
    definition: DatasetInput, topic: AssetKey | None, writer: AssetKey | None, assembly: Assembly
) -> AssetKey | None:
    """Return the job whose state serves lookups, None if the dataset cannot be looked up.

    That is the job of a terminal aggregate itself, and a table for every other dataset.
    """
    if topic is None:
        return writer
    dataset = definition.dataset
    if not (
        dataset.schema.keyed and (definition.online or definition.offline or definition.looked_up)
    ):
        return None
    step = spec.TableSpec(dataset.schema)
    job, _ = assembly.add_job(
        step,
        (topic,),
        None,
        salt=0,
        title=f"{dataset.name}: table",
        content=dataset.name,
        entity=dataset.name,
    )
    return job


def _logical_dataset(
    definition: DatasetInput, topic: AssetKey | None, served_by: AssetKey | None
) -> LogicalDataset:
    dataset = definition.dataset
    return LogicalDataset(
        name=dataset.name,
        version=dataset.version,
        schema=dataset.schema,
        topic=topic,
        served_by=served_by,
        online=definition.online,
        offline=definition.offline,
        erase_keys=dataset.erase_keys,
        is_source=definition.pipeline is None,
        history_us=dataset.history_us,
    )
