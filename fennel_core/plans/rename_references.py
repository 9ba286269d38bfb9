"""Expressions over full feature names.

Theory. The client writes an expression over short names of one featureset. A plan evaluates the
expressions of several featuresets over one frame, so that one call of the engine serves them all;
there a column needs the feature's full name. Only references change: variables of list functions
are bound inside the expression and stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fennel_core.wire.expr import Expr, Ref


def rename_refs(expr: Expr, names: Mapping[str, str]) -> Expr:
    """`expr` with each reference to `a` made one to `names[a]`; KeyError for a name that is not
    there.
    """
    renamed: Expr = _rename(expr, names)
    return renamed


def _rename(node: Any, names: Mapping[str, str]) -> Any:
    if isinstance(node, Ref):
        return Ref(names[node.name])
    if isinstance(node, tuple):
        return tuple(_rename(part, names) for part in node)
    if (
        dataclasses.is_dataclass(node)
        and not isinstance(node, type)
        and type(node).__module__ == Ref.__module__
    ):
        return dataclasses.replace(
            node,
            **{f.name: _rename(getattr(node, f.name), names) for f in dataclasses.fields(node)},
        )
    return node
