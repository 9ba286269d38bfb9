"""Rewrite expressions to refer to features by full name.

Theory. The client writes an expression over the short names of one featureset. A plan evaluates
expressions of several featuresets over one frame, so that one Polars call computes them all; there
a column is named by the feature's full name. Only references change: variables of list functions
are bound inside the expression and keep their names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fennel_core.wire.expr import Expr, Ref


def rename_refs(expr: Expr, names: Mapping[str, str]) -> Expr:
    """Return `expr` with each reference `a` replaced by `names[a]`.

    Raises KeyError for a name that is not in `names`.
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
