"""Check that every lookup can be served.

Its dataset has an index, the field exists, and the inputs match the keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.expressions.type_lattice import non_optional
from fennel_core.graph.derived_schemas import storage_type
from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab import dtypes
from fennel_core.vocab.dtypes import Dtype, show
from fennel_core.vocab.problems import Problem
from fennel_core.wire.entities import Dataset, Extractor, ListLookup, Lookup

INTERCHANGEABLE_KEY_TYPES = {dtypes.Int, dtypes.Str}
"""Key types that convert to each other: a number and its decimal text.

Existing client projects pass a feature declared `str` as an `int` key.
"""


def check_lookups(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield the problems of each lookup extractor whose dataset is defined."""
    del before
    for extractor in graph.extractors:
        if not isinstance(extractor.kind, Lookup | ListLookup):
            continue
        dataset = graph.dataset(extractor.kind.dataset)
        if dataset is None:
            continue
        if not graph.indices_of(dataset.name):
            text = (
                f"Please define an index on dataset : {dataset.name}; feature extractor "
                f"`{extractor.fqn}` looks it up"
            )
            yield Problem("lookup-index", extractor.fqn, text)
        yield from _field(dataset, extractor, extractor.kind)
        yield from _keys(graph, dataset, extractor)


def _field(dataset: Dataset, extractor: Extractor, kind: Lookup | ListLookup) -> Iterator[Problem]:
    field = dataset.schema.field(kind.field.name)
    if field is None:
        yield Problem(
            "lookup-field",
            extractor.fqn,
            f"Field: {kind.field.name} not in dataset `{dataset.name}`; "
            f"`{extractor.fqn}` looks it up",
        )
    elif storage_type(non_optional(field.dtype)) != storage_type(non_optional(kind.field.dtype)):
        text = (
            f"extractor `{extractor.fqn}` looks up `{dataset.name}.{field.name}` as "
            f"`{show(kind.field.dtype)}`, "
            f"but it is `{show(field.dtype)}`; commit featureset and dataset together"
        )
        yield Problem("lookup-type", extractor.fqn, text)


def _keys(graph: Graph, dataset: Dataset, extractor: Extractor) -> Iterator[Problem]:
    keys = dataset.schema.keys
    if len(extractor.inputs) != len(keys):
        text = (
            f"extractor `{extractor.fqn}` gives {len(extractor.inputs)} features as "
            f"the key of `{dataset.name}`, "
            f"which has the key fields {list(dataset.schema.key_names)}"
        )
        yield Problem("lookup-keys", extractor.fqn, text)
        return
    for ref, key in zip(extractor.inputs, keys, strict=True):
        feature = graph.feature(ref)
        if feature is not None and not _matches_key(
            feature.dtype, key.dtype, isinstance(extractor.kind, ListLookup)
        ):
            text = (
                f"extractor `{extractor.fqn}` gives `{ref.fqn}: "
                f"{show(feature.dtype)}` as key `{key.name}: {show(key.dtype)}` "
                f"of `{dataset.name}`; use a feature of that type"
            )
            yield Problem("lookup-keys", extractor.fqn, text)


def _matches_key(given: Dtype, key: Dtype, listed: bool) -> bool:
    value = non_optional(given)
    if listed and isinstance(value, dtypes.List):
        value = non_optional(value.of)
    return (
        storage_type(value) == storage_type(key)
        or {type(storage_type(value)), type(storage_type(key))} == INTERCHANGEABLE_KEY_TYPES
    )
