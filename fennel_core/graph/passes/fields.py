"""Check that the fields of each dataset can be stored.

Names are unique and not reserved, and keys are never null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.dtypes import is_optional, show
from fennel_core.vocab.problems import Problem
from fennel_core.vocab.versions import META


def check_fields(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per field that cannot be stored."""
    del before
    for dataset in graph.datasets:
        for name, count in Counter(dataset.schema.names).items():
            if count > 1:
                yield Problem(
                    "duplicate-field",
                    dataset.name,
                    f"Dataset `{dataset.name}` has field `{name}` more than once; rename one",
                )
            if name in META:
                text = (
                    f"Dataset `{dataset.name}`: the name `{name}` is used by the "
                    "platform itself; rename the field"
                )
                yield Problem("reserved-field", dataset.name, text)
        for name in dataset.erase_keys:
            if name not in dataset.schema.key_names:
                text = (
                    f"Field: {name} not in a key field in dataset `{dataset.name}`, so it cannot "
                    "be an erase key"
                )
                yield Problem("erase-key", dataset.name, text)
        for key in dataset.schema.keys:
            if is_optional(key.dtype):
                text = (
                    f"Key {key.name} in dataset {dataset.name} cannot be Optional; it is "
                    f"`{show(key.dtype)}`"
                )
                yield Problem("optional-key", dataset.name, text)
