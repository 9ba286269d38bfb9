"""Every setting has an effect: code reads it."""

import ast
from collections.abc import Iterable

from tests.tidy.tree import Source, product

MODEL = "fennel_core/settings/model.py"
PARTS = tuple(f"fennel_core/settings/{name}.py" for name in ("http", "offline", "paths"))


def declared(model: ast.Module) -> dict[str, int]:
    """Return the fields of the settings classes with their lines."""
    return {
        node.target.id: node.lineno
        for owner in model.body
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def reads(source: Source) -> set[str]:
    """Return attributes that a module reads, and names in literals: `"FENNEL_DRILL_SCHEDULE"`."""
    found = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value.removeprefix("FENNEL_").lower())
    return found


def unread(model: ast.Module, others: Iterable[Source]) -> list[str]:
    names = declared(model)
    inside = {
        node.attr
        for owner in model.body
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
    }
    used = inside.union(*(reads(source) for source in others))
    return sorted(names.keys() - used)


def test_every_setting_is_read() -> None:
    sources = {source.name: source for source in product()}
    others = [source for name, source in sources.items() if name not in {MODEL, *PARTS}]
    assert len(declared(sources[MODEL].tree)) > 50
    assert unread(sources[MODEL].tree, others) == []
    for part in PARTS:
        assert unread(sources[part].tree, [*others, sources[MODEL]]) == []


def test_a_setting_that_no_code_reads_is_found() -> None:
    model = ast.parse("class Limits:\n    rows: int = 1\n    bytes_: int = 2\n")
    reader = ast.parse("def f(settings):\n    return settings.bytes_\n")
    sources = {source.name: source for source in product()}
    other = Source(sources[MODEL].path, "", reader)
    assert unread(model, [other]) == ["rows"]
