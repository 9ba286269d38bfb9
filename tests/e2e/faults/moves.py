"""A shop that moves to its other version while faults are injected, and what must hold after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from tests.e2e.faults.world import ANSWERS, OTHER, ObservedResponses, World

BACK_SECONDS = 120.0


@dataclass(frozen=True)
class Move:
    """A shop about to move from the version it stands at to the other, and what somebody sees who
    asks all the time.
    """

    world: World
    before: str
    after: str
    target: str
    responses: ObservedResponses

    def commit(self) -> asyncio.Task[tuple[int, str]]:
        """As a client does, through Airflow."""
        return asyncio.create_task(self.world.commit(self.after))

    async def undone(self) -> None:
        """The commit did not happen: the version before answers, as it did all the time, and
        nothing else is left.
        """
        await self.world.at_rest()
        assert self.world.newest()[1] in ("rejected", "rolled_back")
        assert self.world.target() == self.target
        assert await self.world.version() == self.before
        assert (self.responses.versions(), self.responses.refused) == ([ANSWERS[self.before]], [])

    async def is_committed(self) -> None:
        """The commit happened: reads have moved once, and nothing of the version before is left."""
        await self.world.at_rest()
        id_, state, _ = self.world.newest()
        assert (state, self.world.target()) == ("finished", id_)
        assert await self.world.version() == self.after
        assert self.responses.refused == []
        assert self.responses.versions() in (
            [ANSWERS[self.before]],
            [ANSWERS[self.before], ANSWERS[self.after]],
        )


@asynccontextmanager
async def move(world: World) -> AsyncIterator[Move]:
    before = await world.version()
    async with world.asked() as responses:
        yield Move(world, before, OTHER[before], world.target(), responses)


async def back(world: World, url: str) -> None:
    """Until the watch has started the part again and it answers."""
    deadline = time.monotonic() + BACK_SECONDS
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass  # it is not there yet
            await asyncio.sleep(0.2)
    raise AssertionError(f"{url} did not come back")
