"""The queue of backfill requests in Postgres."""

from __future__ import annotations

from fennel_core.connections.postgres import pool
from fennel_core.engine.backfill.queue import BackfillQueue, BackfillRequest
from fennel_core.vocab.ids import JobId, PartitionIndex

JOB, OTHER = JobId("w.job.a.1"), JobId("w.job.b.1")


async def test_the_rows_of_several_partitions_are_read_together(database: str) -> None:
    first, second = (JOB, PartitionIndex(0)), (OTHER, PartitionIndex(3))
    async with pool(database, name="test", size=1) as opened:
        queue = BackfillQueue(opened)
        for partition in (first, second, (OTHER, PartitionIndex(0))):
            await queue.request(*partition, 10)
        assert len(await queue.claim()) == 3
        await queue.fail(*first, "KeyError: 'x'")
        await queue.complete(*second, "backfill/m")
        assert await queue.find_all([first, second, (JOB, PartitionIndex(9))]) == {
            first: BackfillRequest("failed", None, "KeyError: 'x'"),
            second: BackfillRequest("staged", "backfill/m", None),
        }
        assert await queue.find(*second) == BackfillRequest("staged", "backfill/m", None)
        assert await queue.find(JOB, PartitionIndex(9)) is None
        assert await queue.claim() == [], "a failed request waits until its owner repeats it"
