"""What is needed is one cut through versions and jobs, and still true when a file is replaced."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from fennel_core.blueprints import stored_names
from fennel_core.connections.postgres import Pool, pool
from fennel_core.history import row_needs
from fennel_core.history.expired_topics import expiries_now
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.row_needs import CHANGING, STEP, RowNeedsReader
from fennel_core.history.store import HistoryFile
from fennel_core.ingest.postgres import PostgresIngestClock
from fennel_core.ledger.lifecycle import BETWEEN_T1_AND_T2
from fennel_core.vocab.ids import DatasetName, Micros, Offset, PartitionIndex
from tests.support.erased_dataset import (
    CLICKS,
    HISTORY_US,
    WORKSPACE,
    accept,
    commit_dataset,
    erase,
    longer_version,
)

KEPT = timedelta(hours=1)
WHOLE = HistoryFile(
    CLICKS, PartitionIndex(0), Offset(0), Offset(1), "whole", 20, 1, Micros(5), Micros(6)
)
HALF = replace(WHOLE, object_key="half", row_count=10, expired_rows=10)


async def execute(connections: Pool, statement: str, *values: object) -> None:
    async with connections.connection() as connection:
        await connection.execute(statement, values)  # type: ignore[arg-type]  # constants of tests


async def add_version(
    connections: Pool, held_s: int | None, state: str = "finished", *, is_open: bool = False
) -> None:
    """Store a version that no branch has, and that keeps clicks ten times as long; `held_s`: for
    how long it holds rows.
    """
    await execute(
        connections,
        "INSERT INTO commit (id, workspace, branch, state, digest, options, catalog, finished_at, "
        "rows_held_until) VALUES ('other', 'w', 'main', %s, '', '{}', %s, "
        "CASE WHEN %s THEN NULL ELSE now() END, now() + make_interval(secs => %s))",
        state,
        stored_names.dumps(longer_version(10)),
        is_open,
        held_s,
    )


async def needed_us(needs: RowNeedsReader) -> int | None:
    """Return for how long clicks are needed; None: for ever."""
    found = (await expiries_now(needs)).topics.get(CLICKS)
    return None if found is None else found.kept_us


def test_a_commit_that_changes_what_is_needed_is_known_by_its_state() -> None:
    assert set(CHANGING) == {str(state) for state in BETWEEN_T1_AND_T2}


async def test_a_replaced_version_holds_rows_for_its_grace_period(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        await commit_dataset(connections, 1, clicks=True)
        await accept(connections)
        needs = RowNeedsReader(connections)
        assert await needed_us(needs) == HISTORY_US
        await add_version(connections, 3600)
        assert await needed_us(needs) == 10 * HISTORY_US
        await execute(connections, "UPDATE commit SET rows_held_until = now() WHERE id = 'other'")
        assert await needed_us(needs) == HISTORY_US
        await execute(connections, "UPDATE commit SET rows_held_until = NULL WHERE id = 'other'")
        assert await needed_us(needs) == HISTORY_US


async def test_nothing_leaves_while_a_commit_is_between_t1_and_t2(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        await commit_dataset(connections, 1, clicks=True)
        await accept(connections)
        needs = RowNeedsReader(connections)
        await add_version(connections, None, "created", is_open=True)
        assert await needed_us(needs) is None
        await execute(connections, "UPDATE commit SET state = 'warming' WHERE id = 'other'")
        assert await needed_us(needs) == 10 * HISTORY_US


async def test_an_older_workspace_keeps_its_rows(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        await commit_dataset(connections, 1, clicks=True)
        await accept(connections)
        needs = RowNeedsReader(connections)
        await execute(connections, "UPDATE workspace SET keeps_old_rows = true")
        assert await needed_us(needs) is None


async def test_a_file_is_only_replaced_while_the_same_versions_and_jobs_read(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        files = PostgresHistoryFiles(connections)
        await commit_dataset(connections, 1, clicks=True)
        await accept(connections)
        assert await files.add(WHOLE)
        before = (await expiries_now(RowNeedsReader(connections))).readers_of(CLICKS)
        later = await files.now() + KEPT
        await add_version(connections, 3600)
        assert not await files.replace([WHOLE], HALF, later, KEPT, before)
        assert await files.files(CLICKS, PartitionIndex(0)) == (WHOLE,)
        after = (await expiries_now(RowNeedsReader(connections))).readers_of(CLICKS)
        job = "INSERT INTO job (id, workspace, spec) VALUES ('job', 'w', '')"
        await execute(connections, job)
        assert not await files.replace([WHOLE], HALF, later, KEPT, after)
        await execute(connections, "UPDATE job SET desired = 'remove'")
        assert await files.replace([WHOLE], HALF, later, KEPT, after)


async def test_a_commit_comes_before_or_after_a_file_is_replaced(database: str) -> None:
    async with pool(database, name="test", size=3) as connections:
        files = PostgresHistoryFiles(connections)
        await commit_dataset(connections, 1, clicks=True)
        await accept(connections)
        assert await files.add(WHOLE)
        readers = (await expiries_now(RowNeedsReader(connections))).readers_of(CLICKS)
        later = await files.now() + KEPT
        async with connections.connection() as commit, commit.transaction():
            await commit.execute("SELECT FROM workspace FOR NO KEY UPDATE")  # as T1 does
            replacing = asyncio.create_task(files.replace([WHOLE], HALF, later, KEPT, readers))
            done, _ = await asyncio.wait([replacing], timeout=0.3)
            assert not done, "it waits for the commit"
            await commit.execute("INSERT INTO job (id, workspace, spec) VALUES ('job', 'w', '')")
        assert not await replacing


class Slow:
    """The module `time` of a machine whose clock is behind by `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def time(self) -> float:
        return time.time() - self._seconds


DAY_US, SLACK_US = 86_400e6, 60e6
STEP_US = STEP.total_seconds() * 1e6


async def behind_us(connections: Pool, *, dry_run: bool = False) -> float:
    """Return how far the clock that ages clicks is behind now."""
    found = (await expiries_now(RowNeedsReader(connections), dry_run=dry_run)).topics[CLICKS]
    now = (await PostgresHistoryFiles(connections).now()).timestamp() * 1e6
    return now - HISTORY_US - found.oldest


async def set_clock(connections: Pool, days_behind: int, hours_ago: int) -> None:
    """Let the clock be so far behind, and have been moved last so long ago (negative: later)."""
    await execute(
        connections,
        "UPDATE workspace SET aged_to = now() - make_interval(days => %s), "
        "aged_at = now() - make_interval(hours => %s)",
        days_behind,
        hours_ago,
    )


async def test_a_run_moves_the_clock_of_a_workspace_by_one_step_at_most(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        await commit_dataset(connections, 1, clicks=True)
        await accept(connections)
        needs = RowNeedsReader(connections)
        await set_clock(connections, 10, 24 * 30)
        assert abs(await behind_us(connections) - 10 * DAY_US) < SLACK_US
        assert abs(await behind_us(connections, dry_run=True) - (10 * DAY_US - STEP_US)) < SLACK_US
        await needs.advance_clocks()
        assert abs(await behind_us(connections) - (10 * DAY_US - STEP_US)) < SLACK_US
        await execute(connections, "UPDATE workspace SET aged_at = now() - interval '1 day'")
        await needs.advance_clocks()
        assert abs(await behind_us(connections)) < SLACK_US
        await accept(connections, seconds_ago=3600)
        await needs.advance_clocks()
        assert abs(await behind_us(connections) - 3600e6) < SLACK_US, "rows of a quiet one stay"


async def test_repeated_runs_move_the_clock_of_a_workspace_no_further(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        await commit_dataset(connections, 1, clicks=True)
        await accept(connections)
        needs = RowNeedsReader(connections)
        await set_clock(connections, 100, 24 * 30)
        for _ in range(10):
            await needs.advance_clocks()
        assert abs(await behind_us(connections) - (100 * DAY_US - STEP_US)) < SLACK_US
        assert abs(await behind_us(connections, dry_run=True) - 93 * DAY_US) < SLACK_US
        await set_clock(connections, 100, 6)
        for _ in range(10):
            await needs.advance_clocks()
        quarter = STEP_US / 4
        assert abs(await behind_us(connections) - (100 * DAY_US - quarter)) < SLACK_US


async def test_a_clock_that_is_set_right_holds_the_clock_of_a_workspace_for_one_run(
    database: str,
) -> None:
    async with pool(database, name="test", size=2) as connections:
        await commit_dataset(connections, 1, clicks=True)
        await accept(connections)
        needs = RowNeedsReader(connections)
        await set_clock(connections, 3, -24 * 365)
        await needs.advance_clocks()
        assert abs(await behind_us(connections) - 3 * DAY_US) < SLACK_US
        await execute(connections, "UPDATE workspace SET aged_at = aged_at - interval '1 hour'")
        await needs.advance_clocks()
        hour = STEP_US / 24
        assert abs(await behind_us(connections) - (3 * DAY_US - hour)) < SLACK_US


async def test_the_clock_of_this_machine_bounds_the_clock_of_a_workspace(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool(database, name="test", size=2) as connections:
        await commit_dataset(connections, 1, clicks=True)
        await accept(connections)
        monkeypatch.setattr(row_needs, "time", Slow(2 * 86_400))
        needs = RowNeedsReader(connections)
        await set_clock(connections, 5, 24 * 30)
        await needs.advance_clocks()
        assert abs(await behind_us(connections) - 2 * DAY_US) < SLACK_US, "it is behind by two days"
        await set_clock(connections, 5, 24 * 2)
        await needs.advance_clocks()
        assert abs(await behind_us(connections) - 5 * DAY_US) < SLACK_US, "no time has passed by it"


async def test_every_source_of_rows_moves_the_clock_of_accepted_rows(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        await commit_dataset(connections, 1, clicks=True)
        needs = RowNeedsReader(connections)
        await erase(connections, [1])
        assert (await needs.read()).clocks == {}, "an erasure accepts no rows"
        # What readers of streams, tables and files call, and replays of dead letters.
        await PostgresIngestClock(connections).begin(WORKSPACE, ())
        assert set((await needs.read()).clocks) == {WORKSPACE}
        assert (await needs.read()).kept[CLICKS].datasets == (DatasetName("Clicks"),)
