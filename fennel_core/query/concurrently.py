"""Run coroutines side by side, so that none outlives the others' failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def gather_or_cancel(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in order; the first failure cancels the rest and is raised.

    `asyncio.gather` leaves the rest running, and a task group raises an exception group.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            # Their own failures no longer matter; gather has marked them as retrieved.
            await asyncio.wait(left)
