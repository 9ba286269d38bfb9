"""A shop that moves to its other version while faults are injected, and what must hold after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from tests.e2e.faults.world import ANSWERS, OTHER, ObservedResponses, World
from tests.support.polling import eventually

BACK_SECONDS = 120.0


@dataclass(frozen=True)
class Move:
    """A shop about to move from one version to the other, and the responses to a client that
    queries it all the time.
    """

    world: World
    before: str
    after: str
    target: str
    responses: ObservedResponses

    def commit(self) -> asyncio.Task[tuple[int, str]]:
        """Commit the other version through Airflow, as a client does."""
        return asyncio.create_task(self.world.commit(self.after))

    async def undone(self) -> None:
        """Check that the commit had no effect: the version before has served every query, and
        nothing of the new one is left.
        """
        await self.world.at_rest()
        assert self.world.newest()[1] in ("rejected", "rolled_back")
        assert self.world.target() == self.target
        assert await self.world.version() == self.before
        assert (self.responses.versions(), self.responses.refused) == ([ANSWERS[self.before]], [])

    async def is_committed(self) -> None:
        """Check that the commit succeeded: reads have moved once, and nothing of the version before
        is left.
        """
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


async def back(url: str) -> None:
    """Wait until the watchdog has restarted the service and it responds."""
    async with aiohttp.ClientSession() as session:

        async def responds() -> bool:
            try:
                async with session.get(url) as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False  # it is still starting

        await eventually(responds, within_s=BACK_SECONDS, interval_s=0.2, what=f"{url} responds")
