"""Every declared metric is emitted."""

import ast
from collections.abc import Iterable

from tests.tidy.tree import Source, product

MAKERS = frozenset({"counter", "gauge", "histogram"})


def declared(source: Source) -> dict[str, str]:
    """Return the metrics that a module assigns to names, as name -> name in Prometheus."""
    found = {}
    for node in source.tree.body:
        value = getattr(node, "value", None)
        if not isinstance(value, ast.Call) or not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        maker = value.func.attr if isinstance(value.func, ast.Attribute) else value.func
        named = maker.id if isinstance(maker, ast.Name) else maker
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if named in MAKERS and isinstance(target, ast.Name):
            first = value.args[0]
            assert isinstance(first, ast.Constant), "a metric has a constant name"
            found[target.id] = str(first.value)
    return found


def loaded(source: Source) -> set[str]:
    """Return the names and attributes that a module reads."""
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def never_emitted(sources: Iterable[Source]) -> list[str]:
    modules = list(sources)
    used = set[str]().union(*map(loaded, modules))
    return sorted(
        shown for module in modules for name, shown in declared(module).items() if name not in used
    )


def test_every_declared_metric_is_emitted() -> None:
    assert sum(len(declared(module)) for module in product()) > 20
    assert never_emitted(product()) == []


def test_a_metric_that_no_code_emits_is_found() -> None:
    text = "A = metrics.gauge('fennel_a', 'A.')\nB: Final = counter('fennel_b', 'B.')\nA.set(1)\n"
    (some, *_) = product()
    assert never_emitted([Source(some.path, text, ast.parse(text))]) == ["fennel_b"]
