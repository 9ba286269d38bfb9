"""Reload views until that has succeeded.

A notification, a reconnection of the listener and a forwarded commit each request the reload of
branches. A reload that fails is tried again with increasing pauses, one branch at a time and each
with a pause of its own, so that an unreadable branch makes no other one stale. Meanwhile queries
use the view in memory; its age is a metric.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from fennel_core.query.view import BranchKey, Views
from fennel_core.telemetry import metrics
from fennel_core.telemetry.logs import logger

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
log = logger(__name__)


@dataclass(slots=True)
class _Request:
    """A branch whose view is to be reloaded: since when, and how its attempts are spaced."""

    since: float
    due: float
    pause_s: float = FIRST_PAUSE_S


class ViewRefresher:
    """Reloads requested views; `run` does the work. Use from one event loop."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._requests: dict[BranchKey, _Request] = {}
        self._woken = asyncio.Event()

    def request(self, key: BranchKey) -> None:
        """Reload the branch, if it is cached, from a read that begins after this call."""
        now = asyncio.get_running_loop().time()
        earlier = self._requests.get(key)
        self._requests[key] = _Request(now if earlier is None else earlier.since, now)
        self._woken.set()

    def request_all(self) -> None:
        """Reload every cached branch, because notifications may have been missed."""
        for key in list(self._views.known()):
            self.request(key)

    def oldest_s(self) -> float:
        """Return for how long the longest-waiting view has not been reloaded, s."""
        now = asyncio.get_running_loop().time()
        return max((now - each.since for each in self._requests.values()), default=0.0)

    async def run(self) -> None:
        """Reload what is requested, without end."""
        while True:
            metrics.VIEW_AGE.set(self.oldest_s())
            due = min((each.due for each in self._requests.values()), default=None)
            try:
                async with asyncio.timeout_at(due):
                    await self._woken.wait()
            except TimeoutError:
                pass  # A pause is over.
            self._woken.clear()
            now = asyncio.get_running_loop().time()
            for key, request in list(self._requests.items()):
                if request.due <= now:
                    await self._reload(key, request)

    async def _reload(self, key: BranchKey, request: _Request) -> None:
        try:
            await self._views.refresh(key)
        # Outermost loop: a branch that cannot be read is tried again and stops no other.
        except Exception as failed:
            log.error("view could not be reloaded", branch=key, exc_info=failed)
            request.due = asyncio.get_running_loop().time() + request.pause_s
            request.pause_s = min(2 * request.pause_s, LONGEST_PAUSE_S)
        else:
            # A request that arrived since is served by a read that begins after it.
            if self._requests.get(key) is request:
                del self._requests[key]
