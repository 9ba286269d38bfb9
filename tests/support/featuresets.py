"""Featuresets and datasets as values, made without the client."""

from __future__ import annotations

from fennel_core.vocab.dtypes import Dtype, Field, Int, Str, optional
from fennel_core.vocab.ids import DatasetName, FeaturesetName
from fennel_core.vocab.schema import Schema
from fennel_core.wire.entities import (
    Dataset,
    Extractor,
    ExtractorKind,
    Feature,
    FeatureRef,
    Featureset,
    ListLookup,
    Lookup,
    Metadata,
    SyncRequest,
)
from fennel_core.wire.pycode import PyCode

META = Metadata("", "", (), deprecated=False, deleted=False)
CODE = PyCode("f", "", "", "", "", (), ())


def ref(name: str) -> FeatureRef:
    featureset, _, feature = name.partition(".")
    return FeatureRef(FeaturesetName(featureset), feature)


def dataset(name: str, keys: dict[str, Dtype], values: dict[str, Dtype]) -> Dataset:
    schema = Schema(
        tuple(Field(n, t) for n, t in keys.items()),
        tuple(Field(n, t) for n, t in values.items()),
        "ts",
    )
    return Dataset(DatasetName(name), 1, schema, (), 0, False, CODE, META, ())


def extractor(
    output: str,
    kind: ExtractorKind,
    *inputs: str,
    datasets: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
) -> Extractor:
    """The extractor of `output` (full name), and of the short names `also` in the same
    featureset.
    """
    out = ref(output)
    return Extractor(
        name=f"_{out.name}",
        featureset=out.featureset,
        version=1,
        inputs=tuple(ref(i) for i in inputs),
        outputs=(out.name, *also),
        datasets=tuple(DatasetName(d) for d in datasets),
        kind=kind,
        metadata=META,
    )


def lookup(
    dataset_name: str, field: str, dtype: Dtype | None = None, default: str | None = None
) -> Lookup:
    return Lookup(DatasetName(dataset_name), Field(field, dtype or Int()), default)


def list_lookup(
    dataset_name: str, field: str, dtype: Dtype | None = None, default: str | None = None
) -> ListLookup:
    return ListLookup(DatasetName(dataset_name), Field(field, dtype or Int()), default)


def request(
    features: dict[str, Dtype], extractors: list[Extractor], datasets: list[Dataset] | None = None
) -> SyncRequest:
    """A merged commit with these features; featuresets appear in the order of their first
    feature.
    """
    names = dict.fromkeys(name.partition(".")[0] for name in features)
    return SyncRequest(
        datasets=tuple(datasets or ()),
        pipelines=(),
        operators=(),
        featuresets=tuple(Featureset(FeaturesetName(name), CODE, META) for name in names),
        features=tuple(Feature(ref(name), dtype, META) for name, dtype in features.items()),
        extractors=tuple(extractors),
        sources=(),
        databases=(),
        sinks=(),
        indices=(),
        expectations=(),
        message="",
    )


USERS = dataset("Users", {"uid": Int()}, {"age": Int(), "name": Str()})
OPTIONAL_INT = optional(Int())
