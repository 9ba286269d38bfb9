"""Rules for the tests themselves: what they import, and how they wait."""

import ast

from tests.tidy.tree import Source, sources

OURS = ("tests.", "benchmarks.", ".")
"""Prefixes of this project's modules; the public client's own suite may be imported."""


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


def unexplained_sleeps(text: str) -> list[int]:
    """Return the lines of calls `sleep(<number>)` without a comment on the line or the one above.

    `sleep(0)` only yields to other tasks. The text of a child program is a string, not a call.
    """
    lines = text.splitlines()
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] == "sleep"
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value != 0
        and not any("#" in line for line in lines[max(node.lineno - 2, 0) : node.end_lineno])
    ]


def test_a_fixed_sleep_has_a_comment_with_its_reason() -> None:
    """Tests wait with `tests.support.polling`; a sleep that is the scenario has a comment."""
    sleeps = {
        s.name: found
        for s in sources_of_tests()
        if s.path.parts[0] == "tests"
        and s.path.parts[1] != "sim"  # time is virtual there
        and s.name != "tests/support/polling.py"
        if (found := unexplained_sleeps(s.text))
    }
    assert sleeps == {}


def test_the_check_of_sleeps_finds_only_calls_without_a_comment() -> None:
    assert unexplained_sleeps("import time\n\ntime.sleep(0.1)\nsleep(2)") == [3, 4]
    assert not unexplained_sleeps("sleep(1)  # the clock's resolution\n\nsleep(0)")
    assert not unexplained_sleeps("PROGRAM = 'import time; time.sleep(60)'")
