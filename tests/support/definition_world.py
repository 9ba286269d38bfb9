"""A definition server without a network: in-memory stores, simulated engines, and recorded commits
of the real client.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from fennel_core.definition.commit_request import CommitRequest
from fennel_core.definition.commit_service import CommitService
from fennel_core.definition.commit_steps import CommitSteps
from fennel_core.definition.orchestrator import CommitOrchestrator, InlineOrchestrator
from fennel_core.ledger.store import CommitOptions
from fennel_core.vocab.ids import MAIN_BRANCH, BranchName, CommitId
from fennel_core.wire.gen import services_pb2
from tests.support.commit_changes import PolledChanges
from tests.support.executors import run_client_program
from tests.support.ledger_world import SHOP, World

GOLDEN = Path(__file__).parents[1] / "golden" / "wire"


def recorded(subject: str) -> bytes:
    """Return a commit as the client sent it."""
    return (GOLDEN / f"{subject}.binpb").read_bytes()


def changed(body: bytes, change: Callable[[services_pb2.SyncRequest], None]) -> bytes:
    """Return the commit after `change` was applied to its message."""
    message = services_pb2.SyncRequest.FromString(body)
    change(message)
    return bytes(message.SerializeToString(deterministic=True))


def request(
    body: bytes,
    branch: BranchName = MAIN_BRANCH,
    *,
    incremental: bool = False,
    backfill: bool = True,
) -> CommitRequest:
    return CommitRequest(SHOP, branch, body, CommitOptions(incremental, backfill))


class CommitServerWorld:
    """The commit service over a `World`, whose clock advances only in `sleep`."""

    def __init__(
        self,
        world: World,
        orchestrate: Callable[
            [Callable[[CommitId], Awaitable[None]]], CommitOrchestrator
        ] = InlineOrchestrator,
        partitions_setting: int = 2,
    ) -> None:
        self.world = world
        self.steps = CommitSteps(
            replace(world.context(), sleep=self.sleep),
            run_client_program,
            new_workspace_partitions=partitions_setting,
            warm_seconds=5,
        )
        numbers = itertools.count(len(world.ledger.state.commits) + 1)
        self.orchestrator = orchestrate(self.steps.run)
        self.commits = CommitService(
            self.steps,
            self.orchestrator,
            lambda: CommitId(f"c{next(numbers)}"),
            lambda: world.now_ms / 1000,
            timeout_seconds=20,
            changes=PolledChanges(self.sleep),
            warming=None
            if isinstance(self.orchestrator, InlineOrchestrator)
            else InlineOrchestrator(self.steps.warm),
        )

    async def sleep(self, seconds: float) -> None:
        """Advance the simulated clock, and wait briefly for compilation in a real thread."""
        await self.world.sleep(seconds)
        await asyncio.sleep(0.002)  # the compiler runs in a real thread

    @classmethod
    async def open(
        cls,
        orchestrate: Callable[
            [Callable[[CommitId], Awaitable[None]]], CommitOrchestrator
        ] = InlineOrchestrator,
    ) -> CommitServerWorld:
        world = World()
        await world.open()
        return cls(world, orchestrate)

    @property
    def states(self) -> list[str]:
        return [str(row.state) for row in self.world.ledger.state.commits.values()]
