"""The features of one branch version, the extractor of each, and the datasets that lookups read.

Theory. A commit is a flat list; a planner looks entities up by name. The index is built once per
branch version and never changes. Entities marked as deleted are not in it: requesting one is
requesting an unknown name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fennel_core.plans.errors import UnknownName
from fennel_core.vocab.ids import DatasetName, FeaturesetName
from fennel_core.wire.entities import Dataset, Extractor, Feature, FeatureRef, SyncRequest


@dataclass(frozen=True, slots=True)
class FeatureIndex:
    features: Mapping[FeatureRef, Feature]
    providers: Mapping[FeatureRef, Extractor]
    """The extractor of each feature; a feature without one can only be an input."""
    featuresets: Mapping[FeaturesetName, tuple[FeatureRef, ...]]
    """The features of each featureset, in the order of its definition."""
    datasets: Mapping[DatasetName, Dataset]

    @classmethod
    def of(cls, request: SyncRequest) -> FeatureIndex:
        """Build the index of a merged commit."""
        featuresets = {f.name for f in request.featuresets if not f.metadata.deleted}
        features = {
            f.ref: f
            for f in request.features
            if f.ref.featureset in featuresets and not f.metadata.deleted
        }
        providers = {
            ref: extractor
            for extractor in request.extractors
            if extractor.featureset in featuresets and not extractor.metadata.deleted
            for ref in extractor.output_refs
            if ref in features
        }
        members: dict[FeaturesetName, tuple[FeatureRef, ...]] = dict.fromkeys(featuresets, ())
        for ref in features:
            members[ref.featureset] += (ref,)
        return cls(
            features=features,
            providers=providers,
            featuresets=members,
            datasets={d.name: d for d in request.datasets if not d.metadata.deleted},
        )

    def expand(self, outputs: tuple[str, ...]) -> tuple[FeatureRef, ...]:
        """Return the features named by `outputs`, in order and each once.

        `outputs` are names of features or featuresets. Raises `UnknownName` for a name that is
        neither.
        """
        found: dict[FeatureRef, None] = {}
        for name in outputs:
            if "." in name:
                found[parse_ref(name)] = None
            elif name in self.featuresets:
                found.update(dict.fromkeys(self.featuresets[FeaturesetName(name)]))
            else:
                raise UnknownName(
                    f"featureset `{name}` not found; commit it to this branch, or correct the name"
                )
        return tuple(found)


def parse_ref(name: str) -> FeatureRef:
    """Return the reference for the name `Featureset.feature`.

    Raises `UnknownName` if the name does not have this form.
    """
    featureset, dot, feature = name.partition(".")
    if not (featureset and dot and feature) or "." in feature:
        raise UnknownName(
            f"`{name}` is not the name of a feature; use the form `Featureset.feature`"
        )
    return FeatureRef(FeaturesetName(featureset), feature)
