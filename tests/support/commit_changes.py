"""Changes of commits without a database: waits that end after a short time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fennel_core.definition.commit_changes import CommitWatch
from fennel_core.vocab.ids import CommitId


@dataclass(frozen=True, slots=True)
class PolledChanges:
    """Ends every wait after 50 ms of the clock of `sleep`."""

    sleep: Callable[[float], Awaitable[None]]

    @contextmanager
    def watch(self, commit: CommitId) -> Iterator[CommitWatch]:
        yield self

    async def wait(self, seconds: float) -> None:
        await self.sleep(0.05)  # of a simulated clock
