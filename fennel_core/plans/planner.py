"""The query planner: find the extractors between outputs and inputs, and assign them to levels.

Theory. The planner walks from the output features back to the input features. An input feature is
never computed, even if an extractor could compute it: the search stops there. The result is a DAG
of extractors. The *ready level* of a feature is the first level that can read it: 0 for inputs; for
a computed feature the largest ready level of its inputs, plus one if it is computed remotely. A
plan is a function of (index, inputs, outputs) alone, so it may be cached as long as the branch
version is served.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import assert_never

from fennel_core.plans.errors import CyclicFeatures, MissingProvider, UnservedDataset
from fennel_core.plans.feature_index import FeatureIndex, parse_ref
from fennel_core.plans.plan_nodes import (
    AliasNode,
    ExpressionNode,
    FieldRead,
    Level,
    ListLookupNode,
    LocalNode,
    LookupNode,
    PythonExtractorNode,
    QueryPlan,
    RemoteNode,
    TypedFeature,
)
from fennel_core.plans.rename_references import rename_refs
from fennel_core.wire import entities as wire
from fennel_core.wire.entities import Extractor, FeatureRef

NO_DEFAULT = "null"
"""The client's encoding of "no default" in lookups: the JSON text of None."""


def make_plan(index: FeatureIndex, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> QueryPlan:
    """Return the plan that computes `outputs` from `inputs`.

    `inputs` are feature names, `outputs` names of features or featuresets. Raises `PlansError` for
    an unknown name, a feature without extractor, a cycle, or a lookup into an unknown dataset.
    """
    input_refs = tuple(dict.fromkeys(parse_ref(name) for name in inputs))
    requested = index.expand(outputs)
    search = _DependencySearch(index, frozenset(input_refs))
    for ref in requested:
        search.visit(ref)
    used = [ref for ref in input_refs if ref in search.used_inputs]
    return QueryPlan(
        inputs=tuple(_typed_feature(index, ref) for ref in used),
        levels=_levels(index, search),
        outputs=tuple(_typed_feature(index, ref) for ref in requested),
    )


@dataclass(slots=True)
class _DependencySearch:
    """A depth-first search with its own stack: feature chains may exceed the recursion limit."""

    index: FeatureIndex
    inputs: frozenset[FeatureRef]
    order: list[Extractor] = field(default_factory=list)
    """Extractors to run, each after those whose features it reads."""
    ready_level: dict[FeatureRef, int] = field(default_factory=dict)
    used_inputs: set[FeatureRef] = field(default_factory=set)
    _finished: set[str] = field(default_factory=set)

    def visit(self, requested: FeatureRef) -> None:
        stack: list[tuple[FeatureRef, bool]] = [(requested, False)]
        in_progress: set[str] = set()
        while stack:
            ref, inputs_ready = stack.pop()
            if ref in self.inputs:
                self._use_input(ref)
                continue
            extractor = self._provider(ref)
            if extractor.fqn in self._finished:
                continue
            if inputs_ready:
                in_progress.discard(extractor.fqn)
                self._finish(extractor)
                continue
            if extractor.fqn in in_progress:
                raise CyclicFeatures(f"Cyclic dependency found for {ref.fqn}")
            in_progress.add(extractor.fqn)
            stack.append((ref, True))
            stack.extend(
                (needed, False)
                for needed in reversed(extractor.inputs)
                if needed not in self.ready_level
            )

    def _use_input(self, ref: FeatureRef) -> None:
        if ref not in self.index.features:
            raise MissingProvider(f"No extractor found for feature `{ref.fqn}`.")
        self.used_inputs.add(ref)
        self.ready_level[ref] = 0

    def _provider(self, ref: FeatureRef) -> Extractor:
        extractor = self.index.providers.get(ref)
        if extractor is None:
            raise MissingProvider(f"No extractor found for feature `{ref.fqn}`.")
        return extractor

    def _finish(self, extractor: Extractor) -> None:
        ready = max((self.ready_level[ref] for ref in extractor.inputs), default=0)
        for ref in extractor.output_refs:
            if ref not in self.inputs:
                self.ready_level[ref] = ready + 1 if _is_remote(extractor) else ready
        self.order.append(extractor)
        self._finished.add(extractor.fqn)


def _is_remote(extractor: Extractor) -> bool:
    return isinstance(extractor.kind, wire.Lookup | wire.ListLookup | wire.PyFunc)


def _levels(index: FeatureIndex, search: _DependencySearch) -> tuple[Level, ...]:
    count = 1 + max(search.ready_level.values(), default=0)
    local: list[list[LocalNode]] = [[] for _ in range(count)]
    remote: list[list[RemoteNode]] = [[] for _ in range(count)]
    for extractor in search.order:
        ready = max((search.ready_level[ref] for ref in extractor.inputs), default=0)
        node = _node(index, extractor)
        match node:
            case AliasNode() | ExpressionNode():
                local[ready].append(node)
            case LookupNode() | ListLookupNode() | PythonExtractorNode():
                remote[ready].append(node)
            case unreachable:
                assert_never(unreachable)
    return tuple(
        Level(tuple(here), _merge_lookups(out)) for here, out in zip(local, remote, strict=True)
    )


def _merge_lookups(nodes: list[RemoteNode]) -> tuple[RemoteNode, ...]:
    """Merge lookups that fetch the same row: same kind, dataset and keys."""
    merged: dict[object, RemoteNode] = {}
    for node in nodes:
        match node:
            case LookupNode(dataset, keys, reads) | ListLookupNode(dataset, keys, reads):
                row_key = (type(node), dataset, keys)
                same = merged.get(row_key)
                assert same is None or isinstance(same, LookupNode | ListLookupNode), (
                    "only lookups share a row key"
                )
                merged[row_key] = node if same is None else replace(same, reads=same.reads + reads)
            case PythonExtractorNode():
                merged[(node.featureset, node.name)] = node
            case unreachable:
                assert_never(unreachable)
    return tuple(merged.values())


def _node(index: FeatureIndex, extractor: Extractor) -> LocalNode | RemoteNode:
    match extractor.kind:
        case wire.PyFunc(code):
            return PythonExtractorNode(
                name=extractor.name,
                featureset=extractor.featureset,
                code=code,
                inputs=tuple(_typed_feature(index, ref) for ref in extractor.inputs),
                outputs=tuple(
                    _typed_feature(index, ref)
                    for ref in extractor.output_refs
                    if ref in index.features
                ),
                datasets=extractor.datasets,
            )
        case wire.Lookup():
            return _lookup(index, extractor, extractor.kind)
        case wire.ListLookup():
            return _lookup(index, extractor, extractor.kind)
        case wire.Alias(default_json):
            return AliasNode(
                _only_input(extractor), _only_output(index, extractor), _default(default_json)
            )
        case wire.ExprExtractor(expr):
            inputs = tuple(_typed_feature(index, ref) for ref in extractor.inputs)
            full = rename_refs(expr, {i.ref.name: i.ref.fqn for i in inputs})
            return ExpressionNode(full, inputs, _only_output(index, extractor))
        case unreachable:
            assert_never(unreachable)


def _lookup(
    index: FeatureIndex, extractor: Extractor, kind: wire.Lookup | wire.ListLookup
) -> LookupNode | ListLookupNode:
    dataset = index.datasets.get(kind.dataset)
    if dataset is None:
        raise UnservedDataset(f"Dataset `{kind.dataset}` not found, please ensure it is synced.")
    if len(dataset.schema.keys) != len(extractor.inputs) or not extractor.inputs:
        raise UnservedDataset(
            f"extractor `{extractor.fqn}` looks up `{kind.dataset}` by "
            f"{len(extractor.inputs)} features, but it has "
            f"{len(dataset.schema.keys)} key fields: {', '.join(dataset.schema.key_names)}"
        )
    if dataset.schema.field(kind.field.name) is None:
        raise UnservedDataset(f"Field: {kind.field.name} not in dataset")
    read = FieldRead(kind.field.name, _only_output(index, extractor), _default(kind.default_json))
    make = LookupNode if isinstance(kind, wire.Lookup) else ListLookupNode
    return make(kind.dataset, extractor.inputs, (read,))


def _default(default_json: str | None) -> str | None:
    return None if default_json == NO_DEFAULT else default_json


def _only_input(extractor: Extractor) -> FeatureRef:
    assert len(extractor.inputs) == 1, "an alias has one input"
    return extractor.inputs[0]


def _only_output(index: FeatureIndex, extractor: Extractor) -> TypedFeature:
    assert len(extractor.outputs) == 1, "only user code computes several features"
    return _typed_feature(index, extractor.output_refs[0])


def _typed_feature(index: FeatureIndex, ref: FeatureRef) -> TypedFeature:
    feature = index.features.get(ref)
    if feature is None:
        raise MissingProvider(f"No extractor found for feature `{ref.fqn}`.")
    return TypedFeature(ref, feature.dtype)
