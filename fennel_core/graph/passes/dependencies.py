"""Check that extractors look up only datasets that they declare as dependencies.

A lookup is found in the text of the extractor (`Dataset.lookup(…)`). A dataset that is not
committed is not a problem here: the name is then unknown to the code, which fails when it runs.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from functools import lru_cache

from fennel_core.graph.entity_graph import Graph
from fennel_core.graph.passes.schemas import is_complete
from fennel_core.vocab.problems import Problem
from fennel_core.wire.entities import Extractor, PyFunc


def declare_dependencies(graph: Graph, before: Graph | None) -> Iterator[Problem]:
    """Yield one problem per dataset that an extractor looks up undeclared, or that has no keys."""
    del before
    for extractor in graph.extractors:
        if not isinstance(extractor.kind, PyFunc):
            continue
        used = datasets_looked_up(extractor.kind.pycode.core_code)
        for name in sorted(used - set(extractor.datasets)):
            if graph.dataset(name) is not None and _is_resolved(graph, name):
                yield Problem("extractor-dependency", extractor.fqn, _undeclared(extractor, name))
        for name in dict.fromkeys(extractor.datasets):
            dataset = graph.dataset(name)
            if dataset is not None and not dataset.schema.keyed and name in used:
                text = (
                    f"Dataset {name} does not have any key fields. Cannot perform lookup operation "
                    f"on it, as extractor `{extractor.fqn}` does."
                )
                yield Problem("lookup-keys", extractor.fqn, text)


def _undeclared(extractor: Extractor, dataset: str) -> str:
    return (
        f"Extractor `{extractor.fqn}` is not allowed to access dataset `{dataset}`, enabled "
        f"datasets are {list(map(str, extractor.datasets))}. Use `deps` param in @extractor to "
        "specify dataset dependencies."
    )


def _is_resolved(graph: Graph, dataset: str) -> bool:
    return all(is_complete(graph, pipeline) for pipeline in graph.pipelines_of(dataset))


@lru_cache(maxsize=4096)
def datasets_looked_up(code: str) -> frozenset[str]:
    """Return the names `X` of all calls `X.lookup(…)` in the text of a function; empty if the text
    cannot be parsed.
    """
    try:
        tree = ast.parse(textwrap.dedent(code))
    except SyntaxError:
        return frozenset()
    return frozenset(
        node.func.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "lookup"
        and isinstance(node.func.value, ast.Name)
    )
