"""Periodic checks of the definition server."""

from __future__ import annotations

import asyncio

import pytest

from fennel_core.definition.periodic import run_periodically


async def test_a_check_that_fails_does_not_end_the_loop() -> None:
    runs = 0
    again = asyncio.Event()

    async def check() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("no response")
        again.set()

    loop = asyncio.create_task(run_periodically(check, "drills", 0))
    async with asyncio.timeout(10):
        await again.wait()
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
