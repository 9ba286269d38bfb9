"""What one version of a branch can compute: features, the extractor that provides each, and the
datasets lookups read.

Theory. A commit is a flat list; a planner asks by name. The index is made once per branch version
and never changes. Entities that their author flagged as deleted are not there: asking for one is
asking for an unknown name.
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
    """The one extractor of each feature; a feature without one can only be given."""
    featuresets: Mapping[FeaturesetName, tuple[FeatureRef, ...]]
    """Features of each featureset in the order of its definition."""
    datasets: Mapping[DatasetName, Dataset]

    @classmethod
    def of(cls, request: SyncRequest) -> FeatureIndex:
        """The index of a merged commit."""
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
        """The features that `outputs` (names of features or featuresets) ask for, in order, each
        once.

        UnknownName for a name that is neither.
        """
        found: dict[FeatureRef, None] = {}
        for name in outputs:
            if "." in name:
                found[parse_ref(name)] = None
            elif name in self.featuresets:
                found.update(dict.fromkeys(self.featuresets[FeaturesetName(name)]))
            else:
                raise UnknownName(
                    f"featureset `{name}` not found: commit it to this branch, or correct the name"
                )
        return tuple(found)


def parse_ref(name: str) -> FeatureRef:
    """The feature `Featureset.feature` names; UnknownName when it is not of this form."""
    featureset, dot, feature = name.partition(".")
    if not (featureset and dot and feature) or "." in feature:
        raise UnknownName(f"`{name}` is not the name of a feature: write `Featureset.feature`")
    return FeatureRef(FeaturesetName(featureset), feature)
