"""Airflow's plugin: a menu entry that shows commits and their ledgers.

Airflow executes this file in every one of its processes, tasks included, so it imports nothing: the page is built at its first request, in
the one process that serves it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, ClassVar, Final

from airflow.plugins_manager import AirflowPlugin

PREFIX: Final = "/fennel"


class LazyPage:
    """An ASGI application that becomes the real one when somebody asks for it."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        if self._app is None:
            from fennel_airflow.page import application

            self._app = application()
        await self._app(scope, receive, send)


class FennelPlugin(AirflowPlugin):
    """What Airflow finds here."""

    name = "fennel"
    fastapi_apps: ClassVar = [{"app": LazyPage(), "url_prefix": PREFIX, "name": "Fennel commits"}]
    external_views: ClassVar = [
        {
            "name": "Fennel commits",
            "href": f"{PREFIX}/commits",
            "destination": "nav",
            "category": "browse",
            "url_route": "fennel-commits",
        }
    ]
