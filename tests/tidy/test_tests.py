"""Rules for the tests themselves: what they may import."""

import ast

from tests.tidy.tree import Source, sources

OURS = ("tests.", "benchmarks.", ".")
"""Prefixes of our own modules: the public client's own suite may be imported."""


def imported_test_modules(tree: ast.AST) -> list[str]:
    """Return the `test_*` modules of this project that a syntax tree imports, anywhere in it."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names.append(module)
            names += [f"{module}.{alias.name}" for alias in node.names]
    return [
        name
        for name in names
        if name.startswith(OURS) and any(part.startswith("test_") for part in name.split("."))
    ]


def sources_of_tests() -> tuple[Source, ...]:
    return tuple(s for s in sources() if s.path.parts[0] in {"tests", "benchmarks"})


def test_no_module_imports_a_test_module() -> None:
    assert {
        s.name: found for s in sources_of_tests() if (found := imported_test_modules(s.tree))
    } == {}


def test_the_check_of_imports_finds_every_form_of_import() -> None:
    for text in (
        "import tests.e2e.engine.test_slot",
        "from tests.e2e.engine import test_slot as slots",
        "from tests.e2e.engine.test_slot import Bench",
        "def f():\n    from . import test_slot",
    ):
        assert imported_test_modules(ast.parse(text)), text
    assert not imported_test_modules(ast.parse("import fennel.expr.test_expr, pytest"))
