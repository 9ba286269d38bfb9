"""Airflow's plugin: pages of commits, offline queries and expectations; preloads forked tasks.

Airflow executes this file in each of its processes, including tasks, so it imports nothing heavy.
The page is built at its first request, in the process that serves it. The scheduler imports the
platform's modules (0.6 s of CPU time) once, before it forks LocalExecutor's workers, so that the
four tasks of a commit inherit them. Preloading computes nothing, so no thread pool is inherited in
a broken state. A task that finds a source file newer than the preloaded ones drops the inherited
modules and imports them again.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, ClassVar, Final

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

import fennel_airflow

PREFIX: Final = "/fennel"
SCHEDULER: Final = "scheduler"
"""`airflow scheduler`: the process that forks LocalExecutor's workers."""
PACKAGES: Final = ("fennel_core", "fennel_airflow")
PRELOADED: Final = ("fennel_airflow.task_bodies", "fennel_airflow.tasks", "fennel_airflow.factory")
"""The modules of the steps, and those that DAG files import from Airflow (0.1 s more)."""
PROTOBUF_PACKAGE: Final = "fennel_core.wire.gen"


class LazyPage:
    """An ASGI application that is built at its first request."""

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


class Preload:
    """Listens to the start of the scheduler and of each task that it forked."""

    @hookimpl
    def on_starting(self, component: object) -> None:
        """Preload in the scheduler; drop stale modules in a task."""
        # Airflow calls this before its job knows its type, so look at the command line instead.
        # Tasks inherit the command line, but their component is not a job.
        if sys.argv[1:2] != [SCHEDULER]:
            return
        if getattr(component, "__tablename__", None) == "job":
            sources_ns = newest_change_ns()
            preload()
            fennel_airflow.preloaded_sources_ns = sources_ns
            return
        preloaded_ns = fennel_airflow.preloaded_sources_ns
        if preloaded_ns is not None and newest_change_ns() > preloaded_ns:
            unload_modules(set())


def preload() -> None:
    """Import the modules of the steps, all or none.

    A partial import would stay in memory and fail every forked task.
    """
    before = set(sys.modules)
    try:
        for name in PRELOADED:
            importlib.import_module(name)
    except ImportError:
        unload_modules(before)
        raise


def unload_modules(kept: set[str]) -> None:
    """Remove the platform's modules except `kept`, so that the next import loads them again.

    Protobuf classes stay, because they can be registered only once per process.
    """
    for name in set(sys.modules) - kept:
        if name.partition(".")[0] in PACKAGES and not name.startswith(PROTOBUF_PACKAGE):
            del sys.modules[name]


def newest_change_ns() -> int:
    """Return the newest modification time (ns) of the platform's source files.

    It takes a few milliseconds for some hundred files.
    """
    root = Path(__file__).parents[2]
    return max(
        file.stat().st_mtime_ns
        for folder in ("fennel_core", "plugins")
        for file in (root / folder).rglob("*.py")
    )


class FennelPlugin(AirflowPlugin):
    """The plugin as Airflow discovers it."""

    name = "fennel"
    listeners: ClassVar = [Preload()]
    fastapi_apps: ClassVar = [{"app": LazyPage(), "url_prefix": PREFIX, "name": "Fennel"}]
    external_views: ClassVar = [
        {
            "name": name,
            "href": f"{PREFIX}/{path}",
            "destination": "nav",
            "category": "browse",
            # No `url_route`: it would show the page in a sandboxed frame, in which links to DAG
            # runs do not work.
        }
        for name, path in (
            ("Fennel commits", "commits"),
            ("Fennel offline queries", "offline_queries"),
            ("Fennel expectations", "expectations"),
        )
    ]
