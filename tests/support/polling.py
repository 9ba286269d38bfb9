"""Wait for a condition instead of sleeping for a fixed time.

Both functions return the first true outcome of the condition, so a condition may fetch what the
test needs next: `rows = await eventually(read_rows)`. A condition may raise: `AssertionError` and
every other exception end the wait at once.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

INTERVAL_S = 0.01


async def eventually(
    condition: Callable[[], object] | Callable[[], Awaitable[object]],
    *,
    within_s: float = 10.0,
    what: str = "",
    interval_s: float = INTERVAL_S,
) -> Any:
    """Return the first true outcome of `condition()`; AssertionError after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while True:
        outcome = condition()
        if inspect.isawaitable(outcome):
            outcome = await outcome
        if outcome:
            return outcome
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what or condition}"
        await asyncio.sleep(interval_s)


def eventually_sync(
    condition: Callable[[], object],
    *,
    within_s: float = 10.0,
    what: str = "",
    interval_s: float = INTERVAL_S,
) -> Any:
    """As `eventually`, for tests without an event loop."""
    deadline = time.monotonic() + within_s
    while not (outcome := condition()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what or condition}"
        time.sleep(interval_s)
    return outcome
