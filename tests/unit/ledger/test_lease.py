"""The lease of a commit while a step works on it, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ledger.context import LedgerContext, LedgerTimings
from fennel_core.ledger.lease import keep_lease
from fennel_core.ledger.lifecycle import CommitState
from fennel_core.ledger.memory import MemoryLedger
from fennel_core.ledger.store import Commit, CommitOptions, LedgerTransaction
from fennel_core.ledger.topics import MemoryTopicAdmin
from fennel_core.vocab.ids import MAIN_BRANCH, CommitId, Millis, WorkspaceId
from tests.sim.engine.virtual_time import now_ms, run

ID, LEASE_MS = CommitId("c1"), Millis(60_000)
ROW = Commit(
    ID, WorkspaceId("shop"), MAIN_BRANCH, CommitState.RECEIVED, "digest", CommitOptions(), None
)


def context(ledger: MemoryLedger) -> LedgerContext:
    timings = LedgerTimings(lease_ms=LEASE_MS)
    return LedgerContext(ledger, MemoryTopicAdmin(), asyncio.sleep, timings)


async def ledger_with_commit() -> MemoryLedger:
    ledger = MemoryLedger(now_ms)

    async def add(tx: LedgerTransaction) -> None:
        await tx.add_commit(ROW, b"")
        await tx.extend_lease(ID, LEASE_MS)

    await ledger.run(add)
    return ledger


async def taken_during(ledger: MemoryLedger, minutes: int) -> int:
    """Return how often reconcile could take the lease, asked every second."""
    taken = 0
    for _ in range(minutes * 60):
        await asyncio.sleep(1)  # virtual time
        taken += await ledger.run(lambda tx: tx.take_expired_lease(ID, Millis(0)))
    return taken


def test_a_step_of_ten_minutes_keeps_its_lease_and_gives_it_up_at_its_end() -> None:
    async def main() -> tuple[int, int]:
        ledger = await ledger_with_commit()
        async with keep_lease(context(ledger), ID):
            during = await taken_during(ledger, 10)
        return during, await taken_during(ledger, 2)

    during, after = run(main())
    assert during == 0
    assert after > 0, "the renewals end with the work"


def test_a_database_that_is_away_for_less_than_a_lease_does_not_end_the_renewals() -> None:
    async def main() -> int:
        ledger = await ledger_with_commit()
        inner = ledger.run

        async def away(work: Callable[[LedgerTransaction], Awaitable[object]]) -> object:
            if now_ms() % 60_000 < 25_000:
                raise SystemUnavailable("away")
            return await inner(work)

        flickering = context(ledger)
        flickering.ledger.run = away
        async with keep_lease(flickering, ID):
            ledger.run = away
            taken = 0
            for _ in range(600):
                await asyncio.sleep(1)  # virtual time
                taken += await inner(lambda tx: tx.take_expired_lease(ID, Millis(0)))
        return taken

    assert run(main()) == 0
