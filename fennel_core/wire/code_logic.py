"""The logic of a piece of user code: a digest of its syntax tree in a form of our own.

The digest names topics and state, so it must not depend on the Python that computes it. Neither
`ast.unparse` nor `ast.dump` keeps that promise: both print what their own version knows. So the
tree is written by `_tokens`: a node is its type and those of its fields that are set. A field that
a later Python adds is empty in code that does not use it, and does not appear. Constants have one
notation each, independent of Unicode tables and of the printing of floats.

Comments, layout, redundant parentheses, trailing commas, quotes, docstrings, and the client's
decorators are not part of the tree, or are removed from it. Names are part of it, local ones too:
code can observe them (`locals()`, keyword arguments, closures), so renaming one is a change.

`NORMALIZER` is part of every digest. Raise it when the form changes, knowing that this renames
every asset with user code. The golden file `tests/golden/stored/code.txt` and a test under every
Python that is installed hold the form.

This module imports only the standard library, so that the test can run it under any Python.
"""

from __future__ import annotations

import ast
import hashlib
import json
import textwrap
import warnings
from collections.abc import Iterator
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

NORMALIZER: Final = 1
CLIENT_DECORATORS: Final = frozenset(
    {
        "extractor",
        "featureset",
        "dataset",
        "inputs",
        "outputs",
        "includes",
        "meta",
        "pipeline",
        "expectations",
    }
)
_NOT_LOGIC: Final = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
"""Fields that follow from the rest of the tree or do not affect execution."""


CACHED_TEXTS: Final = 16_384
"""Digests to remember: all texts of a commit with 2,000 entities and their includes, several times
over. With fewer than a commit has, every validation would parse all of them again.
"""


@lru_cache(maxsize=CACHED_TEXTS)
def code_digest(text: str) -> str:
    """Return the digest of `text` without the parts that do not affect execution.

    Of text that is not Python by itself (a lambda cut out of a longer line), only layout is
    ignored. The first part of the digest is the normalizer and the kind of form.
    """
    dedented = textwrap.dedent(text).strip()
    for attempt in (dedented, f"({dedented})"):
        try:
            with warnings.catch_warnings():
                # Invalid escapes in strings: a warning in one version and an error in another.
                warnings.simplefilter("ignore")
                tree = ast.parse(attempt)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return _digest("tree", list(_tokens(tree)))
    return _digest("text", [line.strip() for line in dedented.splitlines() if line.strip()])


def _digest(kind: str, form: list[Any]) -> str:
    encoded = json.dumps(form, separators=(",", ":")).encode()
    return f"{NORMALIZER}.{kind}.{hashlib.sha256(encoded).hexdigest()}"


def _tokens(tree: ast.AST) -> Iterator[Any]:
    """Yield a syntax tree in preorder, without recursion, because expressions can be deep.

    A node is its type and the number of its fields, followed by the name and value of each; a list
    is its length, followed by its items.
    """
    stack: list[Any] = [tree]
    while stack:
        value = stack.pop()
        if isinstance(value, ast.Constant):
            yield ["constant", *_constant(value.value)]
        elif isinstance(value, ast.AST):
            fields = sorted(
                (
                    (name, child)
                    for name, child in _fields(value)
                    if child is not None and child != [] and name not in _NOT_LOGIC
                ),
                key=itemgetter(0),
            )
            yield ["node", type(value).__name__, len(fields)]
            for name, child in reversed(fields):
                stack += [child, name]
        elif isinstance(value, list):
            yield ["list", len(value)]
            stack += reversed(value)
        else:
            assert value is None or isinstance(value, str | int), "a field is a node or a scalar"
            yield value


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a node by name."""
    for name, child in ast.iter_fields(node):
        yield name, _logic_of(node, name, child)


def _logic_of(node: ast.AST, name: str, child: Any) -> Any:
    """Return the child of a node in the form that is the same in every version.

    It has no docstring, none of the client's decorators, and no empty text in an f-string (3.12
    puts some into format specifications).
    """
    if isinstance(node, ast.JoinedStr):
        return [part for part in child if not _is_empty_text(part)]
    if name == "decorator_list":
        return [d for d in child if _decorator_name(d) not in CLIENT_DECORATORS]
    if name == "body" and isinstance(
        node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    ):
        code = child[1:] if child and _is_docstring(child[0]) else child
        return code or [ast.Pass()]
    return child


def _constant(value: Any) -> tuple[str, Any]:
    match value:
        case None | bool():
            return "singleton", str(value)
        case str():
            return "str", value
        case bytes():
            return "bytes", value.hex()
        case int():
            return "int", hex(value)
        case float():
            return "float", value.hex()
        case complex():
            return "complex", [value.real.hex(), value.imag.hex()]
        case _:
            assert value is ..., "Python has no other constants"
            return "singleton", "Ellipsis"


def _is_empty_text(part: ast.expr) -> bool:
    return isinstance(part, ast.Constant) and part.value == ""


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _decorator_name(decorator: ast.expr) -> str | None:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return target.id if isinstance(target, ast.Name) else None
