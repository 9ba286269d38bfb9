"""Services that an application attaches to its routes, as dependencies of FastAPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import Request

T = TypeVar("T")


def attached(name: str, kind: type[T]) -> Callable[[Request], T]:
    """Return a dependency: the service `name` that `apps.definition` attached to `app.state`."""

    def service(request: Request) -> T:
        found = getattr(request.app.state, name)
        assert isinstance(found, kind)
        return found

    return service
