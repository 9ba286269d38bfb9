"""The definitions in a commit as frozen values.

These are datasets, pipelines, featuresets, extractors, indices and expectations.

Theory. A commit is a flat list of entities that refer to each other by name. This module keeps
exactly that shape (`SyncRequest`), and the package `graph` resolves the names. `Metadata` (owner,
description, tags, flags) is never part of an entity's logic.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fennel_core.vocab.dtypes import Dtype, Field
from fennel_core.vocab.ids import DatasetName, FeaturesetName
from fennel_core.vocab.schema import Schema
from fennel_core.wire.connectors import Database, Sink, Source
from fennel_core.wire.expr import Expr
from fennel_core.wire.operators import Operator
from fennel_core.wire.pycode import PyCode


@dataclass(frozen=True, slots=True)
class Metadata:
    owner: str
    description: str
    tags: tuple[str, ...]
    deprecated: bool
    deleted: bool


# --- datasets -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset.

    `is_source`: the class has a source decorator, even one that another environment selects.
    """

    name: DatasetName
    version: int
    schema: Schema
    erase_keys: tuple[str, ...]
    history_us: int
    is_source: bool
    pycode: PyCode
    metadata: Metadata
    field_metadata: tuple[tuple[str, Metadata], ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    dataset: DatasetName
    version: int
    """The version of the dataset that it computes."""
    inputs: tuple[DatasetName, ...]
    pycode: PyCode
    metadata: Metadata


class IndexSide(Enum):
    ONLINE = "online"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class Index:
    """A primary index; `duration_us` None is forever."""

    dataset: DatasetName
    version: int
    side: IndexSide
    duration_us: int | None


@dataclass(frozen=True, slots=True)
class Expectation:
    """`kwargs` is JSON text."""

    type: str
    kwargs: str


class ExpectedOf(Enum):
    DATASET = "dataset"
    FEATURESET = "featureset"


@dataclass(frozen=True, slots=True)
class ExpectationSuite:
    name: str
    entity: str
    entity_kind: ExpectedOf
    entity_version: int
    version: int
    expectations: tuple[Expectation, ...]
    metadata: Metadata


# --- featuresets ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class FeatureRef:
    """A reference to a feature, by its full name `Featureset.feature`."""

    featureset: FeaturesetName
    name: str

    @property
    def fqn(self) -> str:
        return f"{self.featureset}.{self.name}"


@dataclass(frozen=True, slots=True)
class Featureset:
    name: FeaturesetName
    pycode: PyCode
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class Feature:
    ref: FeatureRef
    dtype: Dtype
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class PyFunc:
    """User code called with the timestamps and the inputs in order.

    It may look up the extractor's `datasets`.
    """

    pycode: PyCode


@dataclass(frozen=True, slots=True)
class Lookup:
    """One field of one dataset, by a key made of the extractor's inputs in key order.

    `default_json` (JSON text) replaces nulls and missing rows; None if there is no default.
    """

    dataset: DatasetName
    field: Field
    default_json: str | None


@dataclass(frozen=True, slots=True)
class ListLookup:
    """Like `Lookup`, with a list of keys per row and a list of values as result."""

    dataset: DatasetName
    field: Field
    default_json: str | None


@dataclass(frozen=True, slots=True)
class Alias:
    """The value of the one input.

    `default_json` (JSON text) replaces nulls; None if there is no default.
    """

    default_json: str | None


@dataclass(frozen=True, slots=True)
class ExprExtractor:
    """An expression over features of the same featureset, referenced by short name."""

    expr: Expr


ExtractorKind = PyFunc | Lookup | ListLookup | Alias | ExprExtractor


@dataclass(frozen=True, slots=True)
class Extractor:
    """Computes `outputs` (short names of features of `featureset`) from `inputs`.

    Its name is unique within the featureset.
    """

    name: str
    featureset: FeaturesetName
    version: int
    inputs: tuple[FeatureRef, ...]
    outputs: tuple[str, ...]
    datasets: tuple[DatasetName, ...]
    kind: ExtractorKind
    metadata: Metadata

    @property
    def fqn(self) -> str:
        return f"{self.featureset}.{self.name}"

    @property
    def output_refs(self) -> tuple[FeatureRef, ...]:
        return tuple(FeatureRef(self.featureset, name) for name in self.outputs)


# --- the whole ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A decoded commit, in the order in which the client sent it.

    It still has the operators of pipelines that `env` de-selected.
    """

    datasets: tuple[Dataset, ...]
    pipelines: tuple[Pipeline, ...]
    operators: tuple[Operator, ...]
    featuresets: tuple[Featureset, ...]
    features: tuple[Feature, ...]
    extractors: tuple[Extractor, ...]
    sources: tuple[Source, ...]
    databases: tuple[Database, ...]
    sinks: tuple[Sink, ...]
    indices: tuple[Index, ...]
    expectations: tuple[ExpectationSuite, ...]
    message: str
