"""Entities and the edges between them.

Theory. A commit is a flat list of entities that name each other. `build_graph` turns it into a
`Graph`: deleted entities are gone with everything that hangs on them, operators of pipelines that
the environment de-selected are gone too (the client sends them all the same), and every name can be
asked for. A graph may still be wrong: names may dangle, pipelines may loop. The passes say so;
until they are silent, only the functions that return None or an empty tuple for what is missing may
be used. Names are unique per kind; where a commit repeats one, the first wins here and
`unique_names` complains.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

from fennel_core.vocab.ids import DatasetName, FeaturesetName
from fennel_core.wire.connectors import Database, Sink, Source
from fennel_core.wire.entities import (
    Dataset,
    ExpectationSuite,
    Extractor,
    Feature,
    FeatureRef,
    Featureset,
    Index,
    IndexSide,
    Pipeline,
    SyncRequest,
)
from fennel_core.wire.operators import Operator

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class NodeKind(Enum):
    SOURCE = "source"
    DATASET = "dataset"
    PIPELINE = "pipeline"
    SINK = "sink"
    FEATURE = "feature"
    EXTRACTOR = "extractor"


class EdgeKind(Enum):
    FEEDS = "feeds"
    """source → dataset"""
    READS = "reads"
    """dataset → pipeline"""
    COMPUTES = "computes"
    """pipeline → dataset"""
    DRAINS = "drains"
    """dataset → sink"""
    LOOKED_UP = "looked up"
    """dataset → extractor"""
    INPUT = "input"
    """feature → extractor"""
    EXTRACTS = "extracts"
    """extractor → feature"""


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """An entity by kind and name: `Dataset`, `Dataset.pipeline`, `Featureset.feature`,
    `Featureset.extractor`.
    """

    kind: NodeKind
    name: str


@dataclass(frozen=True, slots=True)
class Edge:
    kind: EdgeKind
    origin: Node
    target: Node


@dataclass(frozen=True, slots=True)
class DeletedEntities:
    """Entities that the commit names as deleted: they are not in the graph, but nobody may say that
    they were forgotten.
    """

    datasets: tuple[DatasetName, ...] = ()
    featuresets: tuple[FeaturesetName, ...] = ()
    features: tuple[FeatureRef, ...] = ()


@dataclass(frozen=True)
class Graph:
    """What one commit defines, after deleted and de-selected entities are gone. Tuples keep the
    order of the commit.
    """

    datasets: tuple[Dataset, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()
    operators: tuple[Operator, ...] = ()
    featuresets: tuple[Featureset, ...] = ()
    features: tuple[Feature, ...] = ()
    extractors: tuple[Extractor, ...] = ()
    sources: tuple[Source, ...] = ()
    databases: tuple[Database, ...] = ()
    sinks: tuple[Sink, ...] = ()
    indices: tuple[Index, ...] = ()
    expectations: tuple[ExpectationSuite, ...] = ()
    retired: DeletedEntities = DeletedEntities()

    # --- one entity by name -----------------------------------------------------------------------

    def dataset(self, name: str) -> Dataset | None:
        return self._datasets.get(name)

    def featureset(self, name: str) -> Featureset | None:
        return self._featuresets.get(name)

    def feature(self, ref: FeatureRef) -> Feature | None:
        return self._features.get(ref)

    def extractor_of(self, ref: FeatureRef) -> Extractor | None:
        """The extractor that computes the feature; None when it can only be given."""
        return self._extractor_of.get(ref)

    # --- what hangs on an entity ------------------------------------------------------------------

    def pipelines_of(self, dataset: str) -> tuple[Pipeline, ...]:
        return self._pipelines_of.get(dataset, ())

    def operators_of(self, pipeline: Pipeline) -> tuple[Operator, ...]:
        """The operators of a pipeline, inputs before what reads them (the order of the client)."""
        return self._operators_of.get((pipeline.dataset, pipeline.version, pipeline.name), ())

    def root_of(self, pipeline: Pipeline) -> Operator | None:
        """The operator whose output is the dataset."""
        return next(
            (operator for operator in self.operators_of(pipeline) if operator.is_root), None
        )

    def readers_of(self, dataset: str) -> tuple[Pipeline, ...]:
        """The pipelines that read a dataset."""
        return tuple(pipeline for pipeline in self.pipelines if dataset in pipeline.inputs)

    def sources_of(self, dataset: str) -> tuple[Source, ...]:
        return self._sources_of.get(dataset, ())

    def sinks_of(self, dataset: str) -> tuple[Sink, ...]:
        return self._sinks_of.get(dataset, ())

    def indices_of(self, dataset: str) -> tuple[Index, ...]:
        return self._indices_of.get(dataset, ())

    def has_index(self, dataset: str, side: IndexSide) -> bool:
        return any(index.side is side for index in self.indices_of(dataset))

    def features_of(self, featureset: str) -> tuple[Feature, ...]:
        return self._features_of.get(featureset, ())

    def extractors_of(self, featureset: str) -> tuple[Extractor, ...]:
        return self._extractors_of.get(featureset, ())

    # --- edges ------------------------------------------------------------------------------------

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Every edge that entities state, whether or not both ends exist."""
        out: list[Edge] = []
        for number, source in enumerate(self.sources):
            origin = Node(NodeKind.SOURCE, f"{source.dataset}#{number}")
            out.append(Edge(EdgeKind.FEEDS, origin, dataset_node(source.dataset)))
        for pipeline in self.pipelines:
            node = Node(NodeKind.PIPELINE, f"{pipeline.dataset}.{pipeline.name}")
            out += [Edge(EdgeKind.READS, dataset_node(name), node) for name in pipeline.inputs]
            out.append(Edge(EdgeKind.COMPUTES, node, dataset_node(pipeline.dataset)))
        for number, sink in enumerate(self.sinks):
            out.append(
                Edge(
                    EdgeKind.DRAINS,
                    dataset_node(sink.dataset),
                    Node(NodeKind.SINK, f"{sink.dataset}#{number}"),
                )
            )
        for extractor in self.extractors:
            node = Node(NodeKind.EXTRACTOR, extractor.fqn)
            out += [
                Edge(EdgeKind.LOOKED_UP, dataset_node(name), node) for name in extractor.datasets
            ]
            out += [Edge(EdgeKind.INPUT, feature_node(ref), node) for ref in extractor.inputs]
            out += [
                Edge(EdgeKind.EXTRACTS, node, feature_node(ref)) for ref in extractor.output_refs
            ]
        return tuple(out)

    # --- indexes over the tuples, built once ------------------------------------------------------

    @cached_property
    def _datasets(self) -> Mapping[str, Dataset]:
        return _first(self.datasets, lambda d: str(d.name))

    @cached_property
    def _featuresets(self) -> Mapping[str, Featureset]:
        return _first(self.featuresets, lambda f: str(f.name))

    @cached_property
    def _features(self) -> Mapping[FeatureRef, Feature]:
        return _first(self.features, lambda f: f.ref)

    @cached_property
    def _extractor_of(self) -> Mapping[FeatureRef, Extractor]:
        pairs = [(ref, extractor) for extractor in self.extractors for ref in extractor.output_refs]
        return MappingProxyType(dict(reversed(pairs)))

    @cached_property
    def _pipelines_of(self) -> Mapping[str, tuple[Pipeline, ...]]:
        return _grouped(self.pipelines, lambda p: str(p.dataset))

    @cached_property
    def _operators_of(self) -> Mapping[tuple[DatasetName, int, str], tuple[Operator, ...]]:
        return _grouped(self.operators, lambda o: (o.dataset, o.version, o.pipeline))

    @cached_property
    def _sources_of(self) -> Mapping[str, tuple[Source, ...]]:
        return _grouped(self.sources, lambda s: str(s.dataset))

    @cached_property
    def _sinks_of(self) -> Mapping[str, tuple[Sink, ...]]:
        return _grouped(self.sinks, lambda s: str(s.dataset))

    @cached_property
    def _indices_of(self) -> Mapping[str, tuple[Index, ...]]:
        return _grouped(self.indices, lambda i: str(i.dataset))

    @cached_property
    def _features_of(self) -> Mapping[str, tuple[Feature, ...]]:
        return _grouped(self.features, lambda f: str(f.ref.featureset))

    @cached_property
    def _extractors_of(self) -> Mapping[str, tuple[Extractor, ...]]:
        return _grouped(self.extractors, lambda x: str(x.featureset))


def dataset_node(name: str) -> Node:
    return Node(NodeKind.DATASET, name)


def feature_node(ref: FeatureRef) -> Node:
    return Node(NodeKind.FEATURE, ref.fqn)


def _first(items: Iterable[V], key: Callable[[V], K]) -> Mapping[K, V]:
    found: dict[K, V] = {}
    for item in items:
        found.setdefault(key(item), item)
    return MappingProxyType(found)


def _grouped(items: Iterable[V], key: Callable[[V], K]) -> Mapping[K, tuple[V, ...]]:
    found: dict[K, list[V]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return MappingProxyType({name: tuple(group) for name, group in found.items()})


# --- building -------------------------------------------------------------------------------------


def build_graph(request: SyncRequest) -> Graph:
    """The graph of one commit."""
    gone = {d.name for d in request.datasets if d.metadata.deleted}
    gone_sets = {f.name for f in request.featuresets if f.metadata.deleted}
    hidden = {f.ref for f in request.features if f.metadata.deleted}
    pipelines = tuple(
        p for p in request.pipelines if p.dataset not in gone and not p.metadata.deleted
    )
    selected = {(p.dataset, p.version, p.name) for p in pipelines}
    return Graph(
        datasets=tuple(d for d in request.datasets if d.name not in gone),
        pipelines=pipelines,
        operators=tuple(
            o for o in request.operators if (o.dataset, o.version, o.pipeline) in selected
        ),
        featuresets=tuple(f for f in request.featuresets if f.name not in gone_sets),
        features=tuple(
            f for f in request.features if f.ref not in hidden and f.ref.featureset not in gone_sets
        ),
        extractors=tuple(x for x in request.extractors if _lives(x, gone_sets, hidden)),
        sources=tuple(s for s in request.sources if s.dataset not in gone),
        databases=request.databases,
        sinks=tuple(s for s in request.sinks if s.dataset not in gone),
        indices=tuple(i for i in request.indices if i.dataset not in gone),
        expectations=tuple(e for e in request.expectations if e.entity not in gone),
        retired=DeletedEntities(
            datasets=tuple(d.name for d in request.datasets if d.name in gone),
            featuresets=tuple(f.name for f in request.featuresets if f.name in gone_sets),
            features=tuple(f.ref for f in request.features if f.ref in hidden),
        ),
    )


def _lives(extractor: Extractor, gone_sets: set[FeaturesetName], hidden: set[FeatureRef]) -> bool:
    """Not deleted itself, and with at least one feature left to compute."""
    if extractor.metadata.deleted or extractor.featureset in gone_sets:
        return False
    return any(ref not in hidden for ref in extractor.output_refs)


def merge_incremental(before: Graph, after: Graph) -> Graph:
    """The graph of an incremental commit: what `after` defines replaces what `before` had of the
    same name; the rest stays.

    A dataset is replaced with its pipelines, operators, sources, sinks, indices and expectations; a
    featureset with its features and extractors. What `after` names as deleted goes. Replaced
    datasets and featuresets keep their place, new ones follow.
    """
    datasets = {d.name for d in after.datasets}.union(after.retired.datasets)
    featuresets = {f.name for f in after.featuresets}.union(after.retired.featuresets)
    names = {db.name for db in after.databases}
    return Graph(
        datasets=_replaced(
            (d for d in before.datasets if d.name not in after.retired.datasets),
            after.datasets,
            lambda d: d.name,
        ),
        featuresets=_replaced(
            (f for f in before.featuresets if f.name not in after.retired.featuresets),
            after.featuresets,
            lambda f: f.name,
        ),
        pipelines=(*(p for p in before.pipelines if p.dataset not in datasets), *after.pipelines),
        operators=(*(o for o in before.operators if o.dataset not in datasets), *after.operators),
        features=(
            *(f for f in before.features if f.ref.featureset not in featuresets),
            *after.features,
        ),
        extractors=(
            *(x for x in before.extractors if x.featureset not in featuresets),
            *after.extractors,
        ),
        sources=(*(s for s in before.sources if s.dataset not in datasets), *after.sources),
        databases=(*(db for db in before.databases if db.name not in names), *after.databases),
        sinks=(*(s for s in before.sinks if s.dataset not in datasets), *after.sinks),
        indices=(*(i for i in before.indices if i.dataset not in datasets), *after.indices),
        expectations=(
            *(e for e in before.expectations if e.entity not in datasets),
            *after.expectations,
        ),
        retired=after.retired,
    )


def _replaced(before: Iterable[V], after: Iterable[V], key: Callable[[V], K]) -> tuple[V, ...]:
    merged: dict[K, V] = {key(item): item for item in before}
    own: set[K] = set()
    repeated: list[V] = []
    for item in after:
        if key(item) in own:
            repeated.append(item)  # a name twice in one commit is for `unique_names` to see
        own.add(key(item))
        merged[key(item)] = item
    return (*merged.values(), *repeated)


def unite(graph: Graph) -> SyncRequest:
    """The graph as a request again, for rooms that take one; `build_graph` of it is the graph
    without `retired`.
    """
    parts = {
        field.name: getattr(graph, field.name) for field in fields(graph) if field.name != "retired"
    }
    return SyncRequest(**parts, message="")
