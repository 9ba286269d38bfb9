"""What is looked at again and again."""

from __future__ import annotations

import asyncio

import pytest

from fennel_core.definition.periodic import run_periodically


async def test_a_look_that_fails_does_not_end_the_watch() -> None:
    taken = 0
    again = asyncio.Event()

    async def look() -> None:
        nonlocal taken
        taken += 1
        if taken == 1:
            raise ValueError("no answer")
        again.set()

    watching = asyncio.create_task(run_periodically(look, "drills", 0))
    async with asyncio.timeout(10):
        await again.wait()
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
