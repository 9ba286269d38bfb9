"""The columns and lambda variables that an expression references.

Theory. An expression is a finite tree of frozen dataclasses, so one generic walk over their fields
finds every name, and also covers nodes added to the language later. Planners use it to fetch only
the needed columns; the compiler uses it to detect constant expressions and lambda bodies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from fennel_core.wire.expr import Expr, Now, Ref, Var


def references(expr: Expr) -> frozenset[str]:
    """Return the columns that `expr` reads.

    In a source's preproc these are payload fields, in an extractor features.
    """
    return frozenset(node.name for node in _nodes(expr) if isinstance(node, Ref))


def variables(expr: Expr) -> frozenset[str]:
    """Return the lambda variables that `expr` names."""
    return frozenset(node.name for node in _nodes(expr) if isinstance(node, Var))


def uses_now(expr: Expr) -> bool:
    """Return whether the value depends on the time of the query."""
    return any(isinstance(node, Now) for node in _nodes(expr))


def depends_on_row(expr: Expr) -> bool:
    """Return whether the value depends on a column, a lambda variable or `now()`."""
    return any(isinstance(node, Ref | Var | Now) for node in _nodes(expr))


def _nodes(node: object) -> Iterator[object]:
    yield node
    if isinstance(node, tuple):
        for item in node:
            yield from _nodes(item)
    elif is_dataclass(node):
        for part in fields(node):
            yield from _nodes(getattr(node, part.name))
