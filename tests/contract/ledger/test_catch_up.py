"""What the new jobs of a warming commit must apply, and what their owners report as applied."""

from __future__ import annotations

import asyncio

from fennel_core.bank.postgres_registry import PostgresRegistry
from fennel_core.bank.registry import PartitionReport, Slot
from fennel_core.blueprints.spec import Job
from fennel_core.connections.postgres import pool
from fennel_core.ledger.lifecycle import CommitState
from fennel_core.ledger.postgres import PostgresLedger
from fennel_core.ledger.store import (
    CatchUp,
    Commit,
    CommitOptions,
    Ledger,
    LedgerTransaction,
    PartitionProgress,
)
from fennel_core.operators.spec import TableSpec
from fennel_core.vocab.ids import (
    MAIN_BRANCH,
    CommitId,
    EngineId,
    Epoch,
    JobId,
    Millis,
    Offset,
    PartitionIndex,
    SlotId,
    SlotName,
    TopicName,
    WorkspaceId,
)
from tests.support.toy_commits import SCHEMA

SHOP, FIRST = WorkspaceId("shop"), CommitId("c1")
ORDERS = TopicName("shop.topic.orders.1")
JOB = Job(JobId("j"), SHOP, (ORDERS,), (), TableSpec(SCHEMA), ORDERS, ORDERS, 1, "orders: table")
PART = PartitionIndex(0)
SLOT = Slot(SlotId("s"), EngineId("e"), "run/s.sock", SlotName("e-0"))
LONG, SHORT = Millis(60_000), Millis(300)


async def test_what_must_be_applied_is_kept_with_the_commit(ledger: Ledger) -> None:
    row = Commit(FIRST, SHOP, MAIN_BRANCH, CommitState.RECEIVED, "d", CommitOptions(), None)
    known = CatchUp({(ORDERS, 0): Offset(7), (ORDERS, 1): Offset(0)}, 5, 12)

    async def work(tx: LedgerTransaction) -> list[CatchUp]:
        await tx.add_commit(row, b"")
        before = await tx.catch_up(FIRST)
        await tx.set_catch_up(FIRST, known)
        return [before, await tx.catch_up(FIRST)]

    assert await ledger.run(work) == [CatchUp(), known]


async def test_a_report_counts_while_its_owner_has_a_lease(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        ledger, registry = PostgresLedger(connections), PostgresRegistry(connections)
        await ledger.run(lambda tx: tx.add_jobs([JOB]))

        async def progress() -> list[PartitionProgress]:
            return await ledger.run(lambda tx: tx.partition_progress([JOB.id]))

        nothing = [PartitionProgress(JOB.id, PART, "idle", None)]
        assert await progress() == nothing
        await registry.heartbeat(SLOT, LONG)
        await registry.claim([((JOB.id, PART), Epoch(0))], SLOT.id, LONG)
        applied = {ORDERS: Offset(7)}
        running = PartitionReport("running", 0, None, applied)
        await registry.report({(JOB.id, PART): (Epoch(1), running)}, SLOT.id)
        assert await progress() == [PartitionProgress(JOB.id, PART, "running", None, applied)]
        await registry.heartbeat(SLOT, SHORT)
        # The lease ends by Postgres's own clock, so the test has to wait for it.
        await asyncio.sleep((SHORT + 100) / 1000)
        assert await progress() == nothing
