"""Work that is done in pieces, so that its caller can let others run in between.

A gradual computation is a generator: it yields, without a value, wherever it may be interrupted,
and returns its result. What it reads must not change until then (`hangar.read_view`). It may be
abandoned, too.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Gradual: TypeAlias = Generator[None, None, T]


def finished(work: Gradual[T]) -> T:
    """Do all of the work at once and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
