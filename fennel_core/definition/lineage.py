"""Describe what a branch defines: properties of entities (`xray`) and data flow (`lineage`).

Both are pure functions of one version: its SyncRequest and its catalog. The lineage graph has named
nodes (source, dataset, pipeline, featureset, extractor, feature, sink) and edges in the direction
in which data flows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, DatasetView
from fennel_core.vocab.dtypes import show
from fennel_core.vocab.ids import DatasetName, WorkspaceId
from fennel_core.wire.connectors import Table, WebhookEndpoint
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.entities import Dataset, Featureset, Metadata, SyncRequest

NameFilter = frozenset[str] | None
"""Names to select; None selects all."""


@dataclass(frozen=True)
class BranchVersion:
    """One version of a branch: its definitions and its catalog."""

    request: SyncRequest
    catalog: Catalog

    @cached_property
    def views(self) -> Mapping[str, DatasetView]:
        """The catalog's view of each dataset."""
        return {view.name: view for view in self.catalog.datasets}

    @cached_property
    def upstream_tags(self) -> Mapping[DatasetName, frozenset[str]]:
        """The tags of each dataset and of all datasets upstream of it."""
        inputs = {dataset.name: set[DatasetName]() for dataset in self.request.datasets}
        for pipeline in self.request.pipelines:
            inputs[pipeline.dataset].update(pipeline.inputs)
        own = {dataset.name: dataset.metadata.tags for dataset in self.request.datasets}
        found: dict[DatasetName, frozenset[str]] = {}
        for name in TopologicalSorter(inputs).static_order():
            upstream = (found[each] for each in inputs[name])
            found[name] = frozenset(own[name]).union(*upstream)
        return found

    @classmethod
    def decode(cls, merged: bytes, catalog: bytes) -> BranchVersion:
        """Return the version that a commit stored."""
        return cls(decode_sync_request(merged), stored_names.loads(catalog, Catalog))

    @classmethod
    def empty(cls, workspace: WorkspaceId) -> BranchVersion:
        """Return the version of a branch without commits."""
        return cls(decode_sync_request(b""), Catalog(workspace, (), (), (), 0))


def xray(
    version: BranchVersion, datasets: NameFilter, featuresets: NameFilter, properties: NameFilter
) -> dict[str, list[dict[str, Any]]]:
    """Return the selected properties of the selected entities; unknown properties are omitted."""
    show_all = datasets is None and featuresets is None
    found_datasets = [d for d in version.request.datasets if show_all or d.name in (datasets or ())]
    found_featuresets = [
        f for f in version.request.featuresets if show_all or f.name in (featuresets or ())
    ]
    return {
        "datasets": [_described(DATASET, version, d, properties) for d in found_datasets],
        "featuresets": [_described(FEATURESET, version, f, properties) for f in found_featuresets],
    }


def _described(
    known: Mapping[str, Callable[[BranchVersion, Any], Any]],
    version: BranchVersion,
    entity: Any,
    properties: NameFilter,
) -> dict[str, Any]:
    return {
        name: property_of(version, entity)
        for name, property_of in known.items()
        if properties is None or name in properties or name == "name"
    }


def _flags(metadata: Metadata) -> dict[str, Any]:
    return {
        "owner": metadata.owner,
        "description": metadata.description,
        "deprecated": metadata.deprecated,
        "deleted": metadata.deleted,
    }


def _schema(_: BranchVersion, dataset: Dataset) -> dict[str, Any]:
    schema = dataset.schema
    return {
        "keys": [{"name": f.name, "dtype": show(f.dtype)} for f in schema.keys],
        "values": [{"name": f.name, "dtype": show(f.dtype)} for f in schema.values],
        "timestamp": schema.timestamp,
    }


def _physical(version: BranchVersion, dataset: Dataset) -> dict[str, Any]:
    view = version.views.get(dataset.name)
    return {} if view is None else {"topic": view.topic, "served_by": view.served_by}


def _features(version: BranchVersion, featureset: Featureset) -> list[dict[str, Any]]:
    own = [f for f in version.request.features if f.ref.featureset == featureset.name]
    return [{"name": f.ref.name, "dtype": show(f.dtype), **_flags(f.metadata)} for f in own]


DATASET: Mapping[str, Callable[[BranchVersion, Any], Any]] = {
    "name": lambda _, d: d.name,
    "fullname": lambda _, d: f"{d.name}@v{d.version}",
    "version": lambda _, d: d.version,
    "dsschema": _schema,
    "field_metadata": lambda _, d: {name: _flags(m) for name, m in d.field_metadata},
    "history": lambda _, d: d.history_us // 1_000_000,
    "retention": lambda _, d: d.history_us // 1_000_000,
    "metaflags": lambda _, d: _flags(d.metadata),
    "tags": lambda _, d: list(d.metadata.tags),
    "lineage_tags": lambda version, d: sorted(version.upstream_tags[d.name]),
    "pycode": lambda _, d: d.pycode.core_code,
    "is_source_dataset": lambda _, d: d.is_source,
    "sink_destination": lambda version, d: [
        _table_name(s.table) for s in version.request.sinks if s.dataset == d.name
    ],
    "physical": _physical,
}
FEATURESET: Mapping[str, Callable[[BranchVersion, Any], Any]] = {
    "name": lambda _, f: f.name,
    "metaflags": lambda _, f: _flags(f.metadata),
    "tags": lambda _, f: list(f.metadata.tags),
    "lineage_tags": lambda version, f: sorted(
        {
            t
            for e in version.request.extractors
            if e.featureset == f.name
            for d in e.datasets
            for t in version.upstream_tags[d]
        }
        | set(f.metadata.tags)
    ),
    "pycode": lambda _, f: f.pycode.core_code,
    "features": _features,
}


def lineage(version: BranchVersion) -> dict[str, list[dict[str, str]]]:
    """Return `{"nodes": [{"id", "kind", "name"}], "edges": [{"from", "to"}]}`.

    Nodes and edges are distinct and in a stable order.
    """
    nodes: dict[str, dict[str, str]] = {}
    edges: dict[tuple[str, str], None] = {}

    def node(kind: str, name: str) -> str:
        id_ = f"{kind}:{name}"
        nodes.setdefault(id_, {"id": id_, "kind": kind, "name": name})
        return id_

    request = version.request
    for dataset in request.datasets:
        node("dataset", dataset.name)
    for source in request.sources:
        edges[node("source", _table_name(source.table)), node("dataset", source.dataset)] = None
    for pipeline in request.pipelines:
        pipeline_node = node("pipeline", f"{pipeline.dataset}.{pipeline.name}")
        edges |= dict.fromkeys((node("dataset", i), pipeline_node) for i in pipeline.inputs)
        edges[pipeline_node, node("dataset", pipeline.dataset)] = None
    for sink in request.sinks:
        edges[node("dataset", sink.dataset), node("sink", _table_name(sink.table))] = None
    for feature in request.features:
        edges[node("feature", feature.ref.fqn), node("featureset", feature.ref.featureset)] = None
    for extractor in request.extractors:
        step_node = node("extractor", extractor.fqn)
        edges |= dict.fromkeys((node("dataset", d), step_node) for d in extractor.datasets)
        edges |= dict.fromkeys((node("feature", i.fqn), step_node) for i in extractor.inputs)
        edges |= dict.fromkeys((step_node, node("feature", o.fqn)) for o in extractor.output_refs)
    return {"nodes": list(nodes.values()), "edges": [{"from": a, "to": b} for a, b in edges]}


def _table_name(table: Table) -> str:
    """Return the name of an external table for display; it never contains a credential."""
    if isinstance(table, WebhookEndpoint):
        return f"{table.db.name}/{table.endpoint}"
    return f"{table.db.name} ({type(table).__name__})"
