"""Rebase a commit onto a version that another commit has made of the branch since.

A commit is written, and first validated, against one version of the branch, its *base*. If the
branch has a newer version when the commit is about to be reserved, three sets of definitions are
compared: the base, the branch as it is now, and the commit. A unit of comparison is a dataset with
its pipelines, sources, sinks, indices and expectations, or a featureset with its features and
extractors, or a connector.

An incremental commit keeps every change of the branch that it does not touch itself. It conflicts
if both changed the same unit differently, or if the branch changed the schema or version of a
dataset, or the type of a feature, that a unit of the commit reads. A full commit is the whole
content of the branch as its user knew it, so what the branch gained since would be removed, and
what it changed would be reverted, by a user who has not seen it. It therefore conflicts with every
change of the branch that it does not contain.

Example: the base has datasets A and B, the branch adds C. An incremental commit of a new version of
A becomes A', B, C. A full commit of A', B conflicts, because it would remove C; a full commit of
A', B, C is valid. The result must be validated like any commit, now against the branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from fennel_core.graph.entity_graph import DeletedEntities, Graph, merge_incremental
from fennel_core.vocab.dtypes import Dtype
from fennel_core.vocab.schema import Schema
from fennel_core.wire.entities import ExpectedOf

DATASET: Final = "dataset"
FEATURESET: Final = "featureset"
CONNECTOR: Final = "connector"


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """A unit of comparison. `kind`: DATASET, FEATURESET or CONNECTOR."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} `{self.name}`"


Units = Mapping[Unit, object]
"""The definition of each unit; equal values are equal definitions."""


@dataclass(frozen=True, slots=True)
class RebaseConflict:
    """A change of the branch that the commit would lose, or whose result it would misread."""

    unit: Unit
    text: str


@dataclass(frozen=True, slots=True)
class Rebased:
    """The definitions after the rebase; they are meaningful only without conflicts.

    `kept` are units that the commit repeated unchanged from its base and the branch has changed:
    they stay as the branch has them.
    """

    graph: Graph
    conflicts: tuple[RebaseConflict, ...]
    kept: tuple[Unit, ...] = ()


def units(graph: Graph) -> Units:
    """Return every unit of a graph."""
    found: dict[Unit, object] = {}
    for dataset in graph.datasets:
        pipelines = graph.pipelines_of(dataset.name)
        found[Unit(DATASET, dataset.name)] = (
            dataset,
            pipelines,
            tuple(graph.operators_of(p) for p in pipelines),
            graph.sources_of(dataset.name),
            graph.sinks_of(dataset.name),
            frozenset(graph.indices_of(dataset.name)),
            _expectations(graph, ExpectedOf.DATASET, dataset.name),
        )
    for featureset in graph.featuresets:
        found[Unit(FEATURESET, featureset.name)] = (
            featureset,
            graph.features_of(featureset.name),
            graph.extractors_of(featureset.name),
            _expectations(graph, ExpectedOf.FEATURESET, featureset.name),
        )
    return found | {Unit(CONNECTOR, db.name): db for db in graph.databases}


def _expectations(graph: Graph, kind: ExpectedOf, name: str) -> tuple[object, ...]:
    return tuple(e for e in graph.expectations if e.entity == name and e.entity_kind is kind)


def changed_units(before: Units, after: Units) -> frozenset[Unit]:
    """Return the units that were added, changed or removed."""
    return frozenset(u for u in before.keys() | after.keys() if before.get(u) != after.get(u))


# --- full commits ---------------------------------------------------------------------------------


def rebase_full(base: Graph, branch: Graph, commit: Graph) -> Rebased:
    """Rebase a commit that replaces all definitions."""
    now, wanted = units(branch), units(commit)
    conflicts = tuple(
        RebaseConflict(unit, _full_conflict(unit, now, wanted))
        for unit in sorted(changed_units(units(base), now))
        if now.get(unit) != wanted.get(unit)
    )
    return Rebased(commit, conflicts)


def _full_conflict(unit: Unit, now: Units, wanted: Units) -> str:
    if unit not in wanted:
        return f"the branch has a new definition of {unit}, which this commit removes"
    if unit not in now:
        return f"the branch no longer has {unit}, which this commit adds again"
    return f"the branch has another definition of {unit} now, which this commit replaces"


# --- incremental commits --------------------------------------------------------------------------


def rebase_incremental(base: Graph, branch: Graph, commit: Graph) -> Rebased:
    """Rebase a commit that extends the definitions; `commit` has only what was sent."""
    before, now, sent = units(base), units(branch), units(commit)
    theirs = changed_units(before, now)
    deleted = _deleted(commit.deleted) & before.keys()
    ours = {u for u in sent if sent[u] != before.get(u)} | deleted
    kept = tuple(sorted(u for u in sent.keys() & theirs if u not in ours))
    conflicts = [
        RebaseConflict(unit, f"both changed {unit}")
        for unit in sorted(ours & theirs)
        if now.get(unit) != sent.get(unit)
    ]
    for unit in sorted(u for u in ours if u not in deleted):
        conflicts += _input_conflicts(unit, base, branch, commit, ours)
    return Rebased(merge_incremental(branch, _without(commit, kept)), tuple(conflicts), kept)


def _deleted(deleted: DeletedEntities) -> frozenset[Unit]:
    """Return the units that a commit deletes or changes by deleting a feature."""
    return frozenset(
        [Unit(DATASET, name) for name in deleted.datasets]
        + [Unit(FEATURESET, name) for name in deleted.featuresets]
    )


def _input_conflicts(
    unit: Unit, base: Graph, branch: Graph, commit: Graph, ours: Iterable[Unit]
) -> Iterator[RebaseConflict]:
    """Yield one conflict per input of `unit` that the branch changed for its readers."""
    own = frozenset(ours)
    datasets, features = _inputs(commit, unit)
    for name in datasets:
        if Unit(DATASET, name) not in own and _read_as(base, name) != _read_as(branch, name):
            text = f"{unit} reads dataset `{name}`, whose schema or version changed"
            yield RebaseConflict(unit, text)
    for fqn in features:
        featureset = Unit(FEATURESET, fqn.partition(".")[0])
        if featureset not in own and _dtype(base, fqn) != _dtype(branch, fqn):
            yield RebaseConflict(unit, f"{unit} reads feature `{fqn}`, whose type changed")


def _inputs(graph: Graph, unit: Unit) -> tuple[list[str], list[str]]:
    """Return the datasets and the features (by full name) that a unit reads, each sorted."""
    if unit.kind == DATASET:
        return sorted({i for p in graph.pipelines_of(unit.name) for i in p.inputs}), []
    extractors = graph.extractors_of(unit.name) if unit.kind == FEATURESET else ()
    return (
        sorted({name for x in extractors for name in x.datasets}),
        sorted({ref.fqn for x in extractors for ref in x.inputs}),
    )


def _read_as(graph: Graph, dataset: str) -> tuple[int, Schema] | None:
    """Return what readers of a dataset depend on; None if there is no such dataset."""
    found = graph.dataset(dataset)
    return None if found is None else (found.version, found.schema)


def _dtype(graph: Graph, fqn: str) -> Dtype | None:
    return next((f.dtype for f in graph.features if f.ref.fqn == fqn), None)


def _without(commit: Graph, kept: Iterable[Unit]) -> Graph:
    """Return the commit's definitions without the units that stay as the branch has them."""
    drop = frozenset(kept)
    datasets = {u.name for u in drop if u.kind == DATASET}
    featuresets = {u.name for u in drop if u.kind == FEATURESET}
    connectors = {u.name for u in drop if u.kind == CONNECTOR}
    return replace(
        commit,
        datasets=tuple(d for d in commit.datasets if d.name not in datasets),
        pipelines=tuple(p for p in commit.pipelines if p.dataset not in datasets),
        operators=tuple(o for o in commit.operators if o.dataset not in datasets),
        sources=tuple(s for s in commit.sources if s.dataset not in datasets),
        sinks=tuple(s for s in commit.sinks if s.dataset not in datasets),
        indices=tuple(i for i in commit.indices if i.dataset not in datasets),
        featuresets=tuple(f for f in commit.featuresets if f.name not in featuresets),
        features=tuple(f for f in commit.features if f.ref.featureset not in featuresets),
        extractors=tuple(x for x in commit.extractors if x.featureset not in featuresets),
        databases=tuple(db for db in commit.databases if db.name not in connectors),
        expectations=tuple(
            e for e in commit.expectations if e.entity not in datasets | featuresets
        ),
    )
