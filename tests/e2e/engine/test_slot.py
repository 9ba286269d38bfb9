"""A slot over real Kafka, Postgres and RocksDB: ownership, lookups, waits and hand-over."""

from __future__ import annotations

import pytest

from fennel_core.connections.frames import Channel, RemoteError
from fennel_core.connections.slot_protocol import RefusalCode
from tests.e2e.engine.slot_bench import (
    NOW_US,
    USERS,
    Bench,
    key,
    read_everywhere,
    slot,
    visible,
)
from tests.support.installation import own_state
from tests.support.polling import eventually

pytestmark = pytest.mark.platform


async def test_written_rows_are_served_through_two_jobs_and_survive_a_change_of_owners(
    bench: Bench,
) -> None:
    async with slot(bench, 0):
        owners = await bench.owned(bench.jobs[1], slots=1)
        mapped = await bench.owned(bench.jobs[0], slots=1)
        targets = await bench.write(USERS, "Rome")
        await visible(bench, targets, mapped, bench.jobs[0])
        await read_everywhere(bench, USERS, owners, "Rome")

        async with slot(bench, 1):
            spread = await bench.owned(bench.jobs[1], slots=2)
            assert await bench.owned(bench.jobs[0], slots=2)
            await read_everywhere(bench, USERS, spread, "Rome")
            await bench.write(USERS, "Oslo")
            await read_everywhere(bench, USERS, spread, "Oslo")

        alone = await bench.owned(bench.jobs[1], slots=1)
        await read_everywhere(bench, USERS, alone, "Oslo")


async def test_a_slot_refuses_a_partition_that_it_does_not_own(bench: Bench) -> None:
    async with slot(bench, 0):
        owners = await bench.owned(bench.jobs[1], slots=1)
        channel = await Channel.open(owners[0])
        with pytest.raises(RemoteError) as refused:
            await channel.call("lookup", {"items": [["unknown-job", 0, [key(1)], NOW_US]]})
        assert refused.value.remote_code == RefusalCode.NOT_OWNER
        await channel.close()


async def test_a_wait_that_times_out_names_the_partition_that_lags(bench: Bench) -> None:
    async with slot(bench, 0):
        owners = await bench.owned(bench.jobs[1], slots=1)
        channel = await Channel.open(owners[2])
        items = [[bench.jobs[1].id, 2, {bench.jobs[1].inputs[0]: 1_000}]]
        assert await channel.call("wait", {"items": items, "timeout_ms": 100}) == [
            [bench.jobs[1].id, 2]
        ]
        await channel.close()


async def test_a_removed_job_stops_and_leaves_no_local_state(bench: Bench) -> None:
    async with slot(bench, 0):
        await bench.owned(bench.jobs[1], slots=1)
        state = own_state(bench.settings) / bench.jobs[1].id
        assert state.exists()
        async with bench.pool.connection() as connection:
            await connection.execute(
                "UPDATE job SET desired = 'remove' WHERE id = %s", (bench.jobs[1].id,)
            )

        async def disowned() -> bool:
            return not await bench.owners(bench.jobs[1])

        await eventually(disowned)
        async with bench.pool.connection() as connection:
            await connection.execute("DELETE FROM job WHERE id = %s", (bench.jobs[1].id,))
        await eventually(lambda: not state.exists())
