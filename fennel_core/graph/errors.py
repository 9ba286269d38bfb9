"""Exceptions of the graph package.

Validation does not raise: passes yield a `Problem` per finding. An exception ends one derivation,
and the pass that started it turns it into a problem.
"""

from __future__ import annotations

from typing import ClassVar


class GraphError(ValueError):
    """Base class of all exceptions of this package."""

    code: ClassVar[str] = "graph"


class DependencyCycle(GraphError):
    """Raised when a node depends on itself; remove one of the dependencies on `path`.

    `path` leads from a node back to itself in the direction of data flow; its first and last node
    are the same.
    """

    code: ClassVar[str] = "dependency-cycle"

    def __init__(self, path: tuple[object, ...]) -> None:
        super().__init__(" -> ".join(map(str, path)))
        self.path = path


class SchemaMismatch(GraphError):
    """Raised when an operator does not fit its input; the text names the column to change."""

    code: ClassVar[str] = "schema-mismatch"
