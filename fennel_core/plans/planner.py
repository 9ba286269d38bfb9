"""The planner: walk back from the wanted features to the given ones, then lay the extractors found
into levels.

Theory. A given feature is never computed, even if it could be, and the walk stops there. What
remains is a DAG of extractors. The *stage* of a feature is the level in which it can first be read:
0 for given ones; for a computed one the largest stage of its inputs, plus one if computing it
leaves the process. Every rule here is a function of (index, inputs, outputs) alone, so a plan may
be cached as long as the branch version lives.
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
"""How the client writes "no default" for lookups: the JSON text of None."""


def make_plan(index: FeatureIndex, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> QueryPlan:
    """The plan that computes `outputs` (feature or featureset names) from `inputs` (feature names).

    Raises `PlansError`: an unknown name, a feature without provider, a cycle, or a lookup into a
    dataset that is not there.
    """
    given = tuple(dict.fromkeys(parse_ref(name) for name in inputs))
    wanted = index.expand(outputs)
    walk = _Walk(index, frozenset(given))
    for ref in wanted:
        walk.visit(ref)
    used = [ref for ref in given if ref in walk.read_as_given]
    return QueryPlan(
        inputs=tuple(_typed(index, ref) for ref in used),
        levels=_levels(index, walk),
        outputs=tuple(_typed(index, ref) for ref in wanted),
    )


@dataclass(slots=True)
class _Walk:
    """Depth-first, by hand: a chain of features may be longer than the interpreter's stack."""

    index: FeatureIndex
    given: frozenset[FeatureRef]
    order: list[Extractor] = field(default_factory=list)
    """Extractors to run, each after those it reads from."""
    stage: dict[FeatureRef, int] = field(default_factory=dict)
    read_as_given: set[FeatureRef] = field(default_factory=set)
    _done: set[str] = field(default_factory=set)

    def visit(self, wanted: FeatureRef) -> None:
        stack: list[tuple[FeatureRef, bool]] = [(wanted, False)]
        under_way: set[str] = set()
        while stack:
            ref, inputs_ready = stack.pop()
            if ref in self.given:
                self._take(ref)
                continue
            extractor = self._provider(ref)
            if extractor.fqn in self._done:
                continue
            if inputs_ready:
                under_way.discard(extractor.fqn)
                self._finish(extractor)
                continue
            if extractor.fqn in under_way:
                raise CyclicFeatures(f"Cyclic dependency found for {ref.fqn}")
            under_way.add(extractor.fqn)
            stack.append((ref, True))
            stack.extend(
                (needed, False) for needed in reversed(extractor.inputs) if needed not in self.stage
            )

    def _take(self, ref: FeatureRef) -> None:
        if ref not in self.index.features:
            raise MissingProvider(f"No extractor found for feature `{ref.fqn}`.")
        self.read_as_given.add(ref)
        self.stage[ref] = 0

    def _provider(self, ref: FeatureRef) -> Extractor:
        extractor = self.index.providers.get(ref)
        if extractor is None:
            raise MissingProvider(f"No extractor found for feature `{ref.fqn}`.")
        return extractor

    def _finish(self, extractor: Extractor) -> None:
        ready = max((self.stage[ref] for ref in extractor.inputs), default=0)
        for ref in extractor.output_refs:
            if ref not in self.given:
                self.stage[ref] = ready + 1 if _leaves_process(extractor) else ready
        self.order.append(extractor)
        self._done.add(extractor.fqn)


def _leaves_process(extractor: Extractor) -> bool:
    return isinstance(extractor.kind, wire.Lookup | wire.ListLookup | wire.PyFunc)


def _levels(index: FeatureIndex, walk: _Walk) -> tuple[Level, ...]:
    count = 1 + max(walk.stage.values(), default=0)
    local: list[list[LocalNode]] = [[] for _ in range(count)]
    remote: list[list[RemoteNode]] = [[] for _ in range(count)]
    for extractor in walk.order:
        ready = max((walk.stage[ref] for ref in extractor.inputs), default=0)
        step = _step(index, extractor)
        match step:
            case AliasNode() | ExpressionNode():
                local[ready].append(step)
            case LookupNode() | ListLookupNode() | PythonExtractorNode():
                remote[ready].append(step)
            case unreachable:
                assert_never(unreachable)
    return tuple(Level(tuple(here), _fuse(out)) for here, out in zip(local, remote, strict=True))


def _fuse(steps: list[RemoteNode]) -> tuple[RemoteNode, ...]:
    """One step per row fetched: lookups of the same kind, dataset and keys share it."""
    fused: dict[object, RemoteNode] = {}
    for step in steps:
        match step:
            case LookupNode(dataset, keys, reads) | ListLookupNode(dataset, keys, reads):
                place = (type(step), dataset, keys)
                same = fused.get(place)
                assert same is None or isinstance(same, LookupNode | ListLookupNode), (
                    "a lookup shares its place only with lookups"
                )
                fused[place] = step if same is None else replace(same, reads=same.reads + reads)
            case PythonExtractorNode():
                fused[(step.featureset, step.name)] = step
            case unreachable:
                assert_never(unreachable)
    return tuple(fused.values())


def _step(index: FeatureIndex, extractor: Extractor) -> LocalNode | RemoteNode:
    match extractor.kind:
        case wire.PyFunc(code):
            return PythonExtractorNode(
                name=extractor.name,
                featureset=extractor.featureset,
                code=code,
                inputs=tuple(_typed(index, ref) for ref in extractor.inputs),
                outputs=tuple(
                    _typed(index, ref) for ref in extractor.output_refs if ref in index.features
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
            inputs = tuple(_typed(index, ref) for ref in extractor.inputs)
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
    return _typed(index, extractor.output_refs[0])


def _typed(index: FeatureIndex, ref: FeatureRef) -> TypedFeature:
    feature = index.features.get(ref)
    if feature is None:
        raise MissingProvider(f"No extractor found for feature `{ref.fqn}`.")
    return TypedFeature(ref, feature.dtype)
