"""Entities of a commit, and lookup of an entity and its parts by name.

Theory. A commit is a flat list of entities that refer to each other by name. `build_graph` turns it
into a `Graph`: it drops deleted entities together with their parts, and operators of pipelines that
the commit's environment does not select (the client sends those operators anyway), and it indexes
the rest by name. A graph may still be invalid: names may be unresolved, pipelines may be cyclic.
The passes (`graph.passes`) report that; before they have succeeded, use only the lookups that
return None or an empty tuple for a missing entity. Names are unique per kind; if a commit repeats
one, the first entity wins here and the pass `unique_names` reports the repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class DeletedEntities:
    """Entities that the commit names as deleted.

    They are not in the graph, but they are not missing from the commit either: an incremental
    commit removes them, and references to them need no error of their own.
    """

    datasets: tuple[DatasetName, ...] = ()
    featuresets: tuple[FeaturesetName, ...] = ()
    features: tuple[FeatureRef, ...] = ()


@dataclass(frozen=True)
class Graph:
    """The definitions of one commit, without deleted and de-selected entities.

    Tuples keep the order of the commit.
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
    deleted: DeletedEntities = DeletedEntities()

    # --- one entity by name -----------------------------------------------------------------------

    def dataset(self, name: str) -> Dataset | None:
        return self._datasets.get(name)

    def featureset(self, name: str) -> Featureset | None:
        return self._featuresets.get(name)

    def feature(self, ref: FeatureRef) -> Feature | None:
        return self._features.get(ref)

    def extractor_of(self, ref: FeatureRef) -> Extractor | None:
        """Return the extractor of the feature; None if the feature can only be an input."""
        return self._extractor_of.get(ref)

    # --- parts of an entity ----------------------------------------------------------------------

    def pipelines_of(self, dataset: str) -> tuple[Pipeline, ...]:
        return self._pipelines_of.get(dataset, ())

    def operators_of(self, pipeline: Pipeline) -> tuple[Operator, ...]:
        """Return the operators of a pipeline, inputs before their readers (the client's order)."""
        return self._operators_of.get((pipeline.dataset, pipeline.version, pipeline.name), ())

    def root_of(self, pipeline: Pipeline) -> Operator | None:
        """Return the operator whose output is the dataset."""
        return next(
            (operator for operator in self.operators_of(pipeline) if operator.is_root), None
        )

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
    """Build the graph of one commit."""
    deleted_datasets = {d.name for d in request.datasets if d.metadata.deleted}
    deleted_featuresets = {f.name for f in request.featuresets if f.metadata.deleted}
    deleted_features = {f.ref for f in request.features if f.metadata.deleted}
    pipelines = tuple(
        p for p in request.pipelines if p.dataset not in deleted_datasets and not p.metadata.deleted
    )
    selected = {(p.dataset, p.version, p.name) for p in pipelines}
    return Graph(
        datasets=tuple(d for d in request.datasets if d.name not in deleted_datasets),
        pipelines=pipelines,
        operators=tuple(
            o for o in request.operators if (o.dataset, o.version, o.pipeline) in selected
        ),
        featuresets=tuple(f for f in request.featuresets if f.name not in deleted_featuresets),
        features=tuple(
            f
            for f in request.features
            if f.ref not in deleted_features and f.ref.featureset not in deleted_featuresets
        ),
        extractors=tuple(
            x for x in request.extractors if _is_kept(x, deleted_featuresets, deleted_features)
        ),
        sources=tuple(s for s in request.sources if s.dataset not in deleted_datasets),
        databases=request.databases,
        sinks=tuple(s for s in request.sinks if s.dataset not in deleted_datasets),
        indices=tuple(i for i in request.indices if i.dataset not in deleted_datasets),
        expectations=tuple(e for e in request.expectations if e.entity not in deleted_datasets),
        deleted=DeletedEntities(
            datasets=tuple(d.name for d in request.datasets if d.name in deleted_datasets),
            featuresets=tuple(f.name for f in request.featuresets if f.name in deleted_featuresets),
            features=tuple(f.ref for f in request.features if f.ref in deleted_features),
        ),
    )


def _is_kept(
    extractor: Extractor,
    deleted_featuresets: set[FeaturesetName],
    deleted_features: set[FeatureRef],
) -> bool:
    """Return whether the extractor is not deleted and computes at least one kept feature."""
    if extractor.metadata.deleted or extractor.featureset in deleted_featuresets:
        return False
    return any(ref not in deleted_features for ref in extractor.output_refs)


def merge_incremental(before: Graph, after: Graph) -> Graph:
    """Return the graph after an incremental commit.

    Definitions of `after` replace those of the same name in `before`; the rest stays. A dataset is
    replaced together with its pipelines, operators, sources, sinks, indices and expectations, a
    featureset together with its features and extractors. Entities that `after` names as deleted are
    removed. Replaced datasets and featuresets keep their place, new ones follow.
    """
    datasets = {d.name for d in after.datasets}.union(after.deleted.datasets)
    featuresets = {f.name for f in after.featuresets}.union(after.deleted.featuresets)
    names = {db.name for db in after.databases}
    return Graph(
        datasets=_replaced(
            (d for d in before.datasets if d.name not in after.deleted.datasets),
            after.datasets,
            lambda d: d.name,
        ),
        featuresets=_replaced(
            (f for f in before.featuresets if f.name not in after.deleted.featuresets),
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
        deleted=after.deleted,
    )


def _replaced(before: Iterable[V], after: Iterable[V], key: Callable[[V], K]) -> tuple[V, ...]:
    merged: dict[K, V] = {key(item): item for item in before}
    own: set[K] = set()
    repeated: list[V] = []
    for item in after:
        if key(item) in own:
            # Keep repeated names: the pass `unique_names` reports them.
            repeated.append(item)
        own.add(key(item))
        merged[key(item)] = item
    return (*merged.values(), *repeated)
