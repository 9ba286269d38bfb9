"""Which columns and lambda variables an expression names.

Theory. An expression is a finite tree of frozen dataclasses, so one generic walk over their fields
finds every name, and a node added to the language later is found too. Planners use it to fetch only
needed columns; `compile` uses it to tell a constant lambda body.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from fennel_core.wire.expr import Expr, Now, Ref, Var


def references(expr: Expr) -> frozenset[str]:
    """The columns that `expr` reads; inside a source's preproc these are payload fields, inside an
    extractor features.
    """
    return frozenset(node.name for node in _nodes(expr) if isinstance(node, Ref))


def variables(expr: Expr) -> frozenset[str]:
    """The lambda variables that `expr` names."""
    return frozenset(node.name for node in _nodes(expr) if isinstance(node, Var))


def uses_now(expr: Expr) -> bool:
    """Does the value depend on the time at which it is asked for?"""
    return any(isinstance(node, Now) for node in _nodes(expr))


def depends_on_row(expr: Expr) -> bool:
    """Does the value depend on a row at all?"""
    return any(isinstance(node, Ref | Var | Now) for node in _nodes(expr))


def _nodes(node: object) -> Iterator[object]:
    yield node
    if isinstance(node, tuple):
        for item in node:
            yield from _nodes(item)
    elif is_dataclass(node):
        for part in fields(node):
            yield from _nodes(getattr(node, part.name))
