"""Wait for a condition instead of sleeping for a fixed time."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

INTERVAL_S = 0.01


async def eventually(
    condition: Callable[[], object] | Callable[[], Awaitable[object]],
    *,
    within_s: float = 10.0,
    what: str = "",
) -> None:
    """Return once `condition()` is true; AssertionError after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while True:
        outcome = condition()
        if inspect.isawaitable(outcome):
            outcome = await outcome
        if outcome:
            return
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what or condition}"
        await asyncio.sleep(INTERVAL_S)


def eventually_sync(
    condition: Callable[[], object], *, within_s: float = 10.0, what: str = ""
) -> None:
    """As `eventually`, for tests without an event loop."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what or condition}"
        time.sleep(INTERVAL_S)
