"""What Airflow's DAGs have slots do in the simulated world: copies of what they own, pruning, and orders to rebuild."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from fennel_core.snapshots.flow import prune
from fennel_core.snapshots.recovery import State
from fennel_core.snapshots.store import StoreError
from tests.sim.engine.parts import Died, Process

if TYPE_CHECKING:
    from tests.sim.engine.world import Living, World

KEPT: Final = 1
GRACE: Final = timedelta(seconds=25)
"""Of snapshots; longer than anybody here stands still."""


class Dags:
    """They run on a machine of their own; `asked` holds the calls that are on their way."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.asked: set[asyncio.Task[None]] = set()

    async def archive(self) -> None:
        """Every now and then a slot is asked to copy what it owns, and what nobody needs is deleted."""
        world, dag = self._world, Process(self._world.dice)
        while True:
            await asyncio.sleep(world.dice.random.choice([1.0, 3.0, 6.0]))
            for living in world.slots:
                items = [list(key) for key in living.supervisor.hosted]
                if items and world.dice.random.random() < 0.5:
                    self._in_the_background(self._copied(living, items))
            try:
                await prune(world.archive.tools(dag), KEPT, GRACE)
            except StoreError:
                continue  # the next round tries again

    def rebuild(self, living: Living) -> None:
        """Somebody wants what this slot runs rebuilt, from any snapshot or from an old one."""
        before = self._world.dice.random.choice([None, None, 2, 4])
        items = [list(key) for key in living.supervisor.hosted]
        self._in_the_background(self._rebuilt(living, items, before))

    def _in_the_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.asked.add(task)
        task.add_done_callback(self.asked.discard)

    async def _copied(self, living: Living, items: list[list[Any]]) -> None:
        try:
            await living.process.gate()
            for job, part, code, text, _ in cast(list[list[str]], await living.service("snapshot", {"items": items})):
                if code not in ("taken", "unchanged", "moved", "parked", "failed"):
                    self._world.broken.append(f"a snapshot of {job}[{part}] was answered with {code}: {text}")
        except Died:
            self._world.say(f"{living.slot.id} died while it copied")

    async def _rebuilt(self, living: Living, items: list[list[Any]], before: int | None) -> None:
        try:
            await living.process.gate()
            epochs = cast(list[int | None], await living.service("rebuild", {"items": items, "why": "an order", "before": before}))
            await living.process.delay()
            await living.process.gate()
            states = cast(list[State | None], await living.service("states", {"items": items}))
            for (job, part), epoch, state in zip(items, epochs, states, strict=True):
                if state is not None and epoch is not None and state.epoch < epoch:
                    self._world.broken.append(f"{job}[{part}] was rebuilt under epoch {epoch} and is now at {state}")
        except Died:
            self._world.say(f"{living.slot.id} died while it was told to rebuild")
