"""Why a plan creates or drops an asset, in the terms of the user's definitions.

The reasons compare the assets that the branch has and will not have any more with those that it
gets: an asset of the same kind and title is the earlier form of the new one. Versions, schemas and
sources of datasets come from the branch's catalog. A reason is for people: nothing decides by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fennel_core.blueprints.identity import same_logic
from fennel_core.blueprints.logical import (
    AssetKey,
    AssetKind,
    Blueprint,
    Compiled,
    LogicalDataset,
    LogicalJob,
    LogicalSource,
)
from fennel_core.blueprints.spec import Catalog, DatasetView, SourceBinding
from fennel_core.vocab.ids import DatasetName, Identity
from fennel_core.vocab.schema import Schema


@dataclass(frozen=True, slots=True)
class DatasetForm:
    """What a reason compares of a dataset. `sources`: their identities."""

    version: int
    schema: Schema
    sources: frozenset[Identity]


Datasets = Mapping[str, DatasetForm]
Titles = dict[tuple[AssetKind, str], Blueprint]


def dataset_forms(version: Compiled | Catalog | None) -> Datasets:
    """Return the datasets of a version by name."""
    if version is None:
        return {}
    sources: dict[DatasetName, set[Identity]] = {}
    bindings: Iterable[LogicalSource | SourceBinding] = version.sources
    for binding in bindings:
        sources.setdefault(binding.dataset, set()).add(binding.identity)
    datasets: Iterable[LogicalDataset | DatasetView] = version.datasets
    return {
        d.name: DatasetForm(d.version, d.schema, frozenset(sources.get(d.name, ())))
        for d in datasets
    }


class ReasonFinder:
    """Finds the reasons of one plan.

    `before` and `after`: datasets by name. `new`: blueprints that the branch does not have yet.
    `leaving`: those that it will not have any more.
    """

    def __init__(
        self,
        before: Datasets,
        after: Datasets,
        new: Iterable[Blueprint],
        leaving: Iterable[Blueprint],
    ) -> None:
        self._before, self._after = before, after
        self._new: dict[AssetKey, Blueprint] = {b.key: b for b in new}
        self._later, self._earlier = _by_title(self._new.values()), _by_title(leaving)
        jobs = [b for b in self._new.values() if isinstance(b, LogicalJob)]
        self._writers = {o.topic: job for job in jobs for o in job.outputs}
        self._writers |= {job.replaylog: job for job in jobs}

    def why_new(self, blueprint: Blueprint) -> str:
        """Return why the branch gets an asset that it does not have."""
        match blueprint.key.kind:
            case AssetKind.DEAD:
                return "the branch has datasets now"
            case AssetKind.RAW:
                return "its endpoint has a source now"
            case AssetKind.POSITIONS:
                return f"source {blueprint.entity} is read now"
            case AssetKind.SINK:
                return f"dataset {blueprint.entity} has this sink now"
            case _:
                return self._why_dataset_changed(blueprint) or self._why_rebuilt(blueprint)

    def why_leaving(self, blueprint: Blueprint) -> str:
        """Return why the new version does not have an asset of the branch."""
        name = blueprint.entity
        later = self._later.get((blueprint.key.kind, blueprint.title))
        if later is not None:
            return self.why_new(later)
        if name in self._before and name not in self._after:
            return f"dataset {name} was removed"
        match blueprint.key.kind:
            case AssetKind.RAW:
                return "its endpoint has no source any more"
            case AssetKind.POSITIONS:
                return f"source {name} is not read any more"
            case AssetKind.SINK:
                return f"dataset {name} does not have this sink any more, or another content"
            case AssetKind.DEAD:
                return "the branch has no datasets any more"
            case _:
                return f"{name} does not need it any more"

    def _why_dataset_changed(self, blueprint: Blueprint) -> str | None:
        """Return what changed about the dataset of the asset, if that explains the asset."""
        name = blueprint.entity
        before, after = self._before.get(name), self._after.get(name)
        if before is None or after is None:
            return f"dataset {name} is new"
        if before.version != after.version:
            return f"version {before.version} of {name} became {after.version}"
        if isinstance(blueprint, LogicalJob) or blueprint.key in self._writers:
            return None
        if before.schema != after.schema:
            return f"the schema of {name} changed"
        if before.sources != after.sources:
            return f"the sources of {name} changed"
        return None

    def _why_rebuilt(self, blueprint: Blueprint) -> str:
        job = blueprint if isinstance(blueprint, LogicalJob) else self._writers.get(blueprint.key)
        if job is None:
            return f"{blueprint.entity} needs it now"
        pipeline = job.title.partition(":")[0]
        earlier = self._earlier.get((job.key.kind, job.title))
        if not isinstance(earlier, LogicalJob):
            return f"{pipeline} needs it now"
        if not same_logic(earlier.step, job.step):
            return f"the logic of {pipeline} changed"
        for topic in job.inputs:
            if topic in self._new:
                return f"its input {self._new[topic].title} is new"
        return f"what {pipeline} includes, reads or is partitioned by changed"


def _by_title(blueprints: Iterable[Blueprint]) -> Titles:
    found: Titles = {}
    for blueprint in blueprints:
        found.setdefault((blueprint.key.kind, blueprint.title), blueprint)
    return found
