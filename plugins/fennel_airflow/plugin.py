"""Airflow's plugin: a menu entry that shows commits and their ledgers, and a scheduler that forks
tasks with the platform already imported.

Airflow executes this file in every one of its processes, tasks included, so it imports nothing
heavy. The page is built at its first request, in the one process that serves it. The platform's
modules (0.6 s of a core) are imported once, by the scheduler before it forks LocalExecutor's
workers, so that the four tasks of a commit find them in memory; nothing is computed there, so no
pool of threads is inherited half-alive. A task that finds a source file changed since then drops
what it inherited and imports for itself.
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
OURS: Final = ("fennel_core", "fennel_airflow")
PRELOADED: Final = ("fennel_airflow.run", "fennel_airflow.tasks", "fennel_airflow.factory")
"""What the steps need, and what the DAG files import from Airflow (its operators take 0.1 s
more).
"""
PROTOCOL: Final = "fennel_core.wire.gen"


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


class Preload:
    """Hears the scheduler start, and each task that it forked."""

    @hookimpl
    def on_starting(self, component: object) -> None:
        # Airflow calls this before its job knows what kind of job it is; the command line does.
        # Tasks inherit that, but are no jobs.
        if sys.argv[1:2] != [SCHEDULER]:
            return
        if getattr(component, "__tablename__", None) == "job":
            as_of_ns = newest_change_ns()
            preload()
            fennel_airflow.as_of_ns = as_of_ns
        elif fennel_airflow.as_of_ns is not None and newest_change_ns() > fennel_airflow.as_of_ns:
            forget(set())


def preload() -> None:
    """Import what tasks run, or nothing: half of an import that failed would stay in memory and
    fail every task that is forked.
    """
    before = set(sys.modules)
    try:
        for name in PRELOADED:
            importlib.import_module(name)
    except ImportError:
        forget(before)
        raise


def forget(kept: set[str]) -> None:
    """Have our modules but `kept` imported anew where they are next used. Protocol classes stay:
    they may be registered only once.
    """
    for name in set(sys.modules) - kept:
        if name.partition(".")[0] in OURS and not name.startswith(PROTOCOL):
            del sys.modules[name]


def newest_change_ns() -> int:
    """When a source file of ours was last changed, ns: a few milliseconds for some hundred
    files.
    """
    root = Path(__file__).parents[2]
    return max(
        file.stat().st_mtime_ns
        for folder in ("fennel_core", "plugins")
        for file in (root / folder).rglob("*.py")
    )


class FennelPlugin(AirflowPlugin):
    """What Airflow finds here."""

    name = "fennel"
    listeners: ClassVar = [Preload()]
    fastapi_apps: ClassVar = [{"app": LazyPage(), "url_prefix": PREFIX, "name": "Fennel commits"}]
    external_views: ClassVar = [
        {
            "name": "Fennel commits",
            "href": f"{PREFIX}/commits",
            "destination": "nav",
            "category": "browse",
            # No `url_route`: that would show the page in a sandboxed frame, from which its links to
            # DAG runs lead nowhere.
        }
    ]
