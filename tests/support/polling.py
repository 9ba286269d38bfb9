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
    what: str | Callable[[], object] = "",
    interval_s: float = INTERVAL_S,
) -> Any:
    """Return the first true outcome of `condition()`; AssertionError after `within_s` seconds.

    `what` describes the condition in the error; a function is called when the time is over.
    """
    deadline = time.monotonic() + within_s
    while True:
        outcome = condition()
        if inspect.isawaitable(outcome):
            outcome = await outcome
        if outcome:
            return outcome
        assert time.monotonic() < deadline, _message(condition, within_s, what)
        await asyncio.sleep(interval_s)


def eventually_sync(
    condition: Callable[[], object],
    *,
    within_s: float = 10.0,
    what: str | Callable[[], object] = "",
    interval_s: float = INTERVAL_S,
) -> Any:
    """As `eventually`, for tests without an event loop."""
    deadline = time.monotonic() + within_s
    while not (outcome := condition()):
        assert time.monotonic() < deadline, _message(condition, within_s, what)
        time.sleep(interval_s)
    return outcome


def _message(condition: object, within_s: float, what: str | Callable[[], object]) -> str:
    return f"not within {within_s:g} s: {what() if callable(what) else what or condition}"
