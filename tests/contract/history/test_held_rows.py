"""Which workspaces keep rows older than `history`, over a real Postgres."""

from __future__ import annotations

import asyncio

from fennel_core.connections.postgres import Pool, pool
from fennel_core.history.held_rows import HELD, HeldRowsReport, Reason, held_rows
from tests.support.erased_dataset import commit_dataset


async def execute(connections: Pool, statement: str, *values: object) -> None:
    async with connections.connection() as connection:
        await connection.execute(statement, values)  # type: ignore[arg-type]  # constants of tests


async def add_commit(connections: Pool, id_: str, state: str, minutes_ago: int) -> None:
    await execute(
        connections,
        "INSERT INTO commit (id, workspace, branch, state, digest, options, created_at) "
        "VALUES (%s, 'w', 'main', %s, '', '{}', now() - make_interval(mins => %s))",
        *(id_, state, minutes_ago),
    )


async def test_a_workspace_says_why_it_keeps_old_rows(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        await commit_dataset(connections, 1)

        async def reasons() -> list[str]:
            return [each.reason for each in await held_rows(connections)]

        assert await reasons() == []
        await execute(connections, "UPDATE workspace SET keeps_old_rows = true")
        assert await reasons() == [Reason.UNCONFIRMED]
        await execute(
            connections,
            "UPDATE workspace SET keeps_old_rows = false, "
            "old_rows_held_until = now() + interval '1 hour'",
        )
        (grace,) = await held_rows(connections)
        assert grace.reason is Reason.GRACE
        assert grace.at is not None
        await execute(connections, "UPDATE workspace SET old_rows_held_until = now()")
        assert await reasons() == []


async def test_the_oldest_commit_that_has_not_finished_is_named_when_it_is_stuck(
    database: str,
) -> None:
    async with pool(database, name="test", size=2) as connections:
        await commit_dataset(connections, 1)
        await add_commit(connections, "waits", "received", 60)
        await add_commit(connections, "warms", "warming", 60)
        await add_commit(connections, "quick", "created", 1)
        assert await held_rows(connections) == []
        await add_commit(connections, "young", "created", 20)
        await add_commit(connections, "stuck", "reserved", 30)
        (found,) = await held_rows(connections)
        assert (found.workspace, found.reason, found.commit) == ("w", Reason.COMMIT, "stuck")
        await execute(connections, "UPDATE commit SET finished_at = now()")
        assert await held_rows(connections) == []
        await execute(connections, "UPDATE commit SET finished_at = NULL")
        await execute(connections, "UPDATE workspace SET state = 'deleting', keeps_old_rows = true")
        assert await held_rows(connections) == [], "its history is deleted as a whole"


async def test_a_metric_has_the_reasons_until_they_end(database: str) -> None:
    def values() -> dict[tuple[str, ...], float]:
        (family,) = HELD.collect()
        return {
            (each.labels["workspace"], each.labels["reason"]): each.value for each in family.samples
        }

    async with pool(database, name="test", size=2) as connections:
        await commit_dataset(connections, 1)
        await execute(connections, "UPDATE workspace SET keeps_old_rows = true")
        await add_commit(connections, "stuck", "created", 30)
        report = HeldRowsReport(connections, retention=True)
        await report.read()
        assert values() == {("w", "unconfirmed"): 1, ("w", "commit"): 1}
        unconfirmed, stuck = report.rows()
        assert unconfirmed == {
            "workspace": "w",
            "reason": "unconfirmed",
            "at": None,
            "commit": None,
        }
        assert stuck["commit"] == "stuck"
        await execute(connections, "UPDATE workspace SET keeps_old_rows = false")
        await report.read()
        assert values() == {("w", "commit"): 1}
        await execute(connections, "UPDATE commit SET finished_at = now()")
        await report.read()
        assert (values(), report.rows()) == ({}, [])


async def test_nothing_is_reported_while_the_setting_is_off(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        await commit_dataset(connections, 1)
        await execute(connections, "UPDATE workspace SET keeps_old_rows = true")
        for retention in (False, True):
            report = HeldRowsReport(connections, retention=retention)
            reading = asyncio.create_task(report.run())
            await asyncio.wait([reading], timeout=0.5)
            assert not reading.done()
            reading.cancel()
            assert bool(report.rows()) is retention
        await execute(connections, "UPDATE workspace SET keeps_old_rows = false")
        await report.read()
