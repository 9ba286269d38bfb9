"""Rows leave history by their age only with the setting; a dry run shows them without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from fennel_core.apps import state_commands
from fennel_core.connections.postgres import Pool, pool
from fennel_core.history.errors import CompactionFailed
from fennel_core.history.expired_topics import expiries_now
from fennel_core.history.expiring import TopicExpiry
from fennel_core.history.maintenance import MaintenanceResult, remove_rows
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.removals import RemovedRows, sums
from fennel_core.history.row_needs import RowNeedsReader
from fennel_core.history.store import HistoryFile
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName, TopicPartition
from tests.support.erased_dataset import CLICKS, HISTORY_US, accept, commit_dataset, erase

PART = PartitionIndex(0)


class HalfWorker:
    """Removes half of the rows of each file, without objects."""

    async def remove_erased(self, files: Sequence[HistoryFile], erasures: object) -> list[None]:
        raise AssertionError("no key is erased")

    async def remove_expired(
        self, files: Sequence[HistoryFile], expiries: Mapping[TopicName, TopicExpiry]
    ) -> list[HistoryFile]:
        return [
            replace(each, object_key="half", row_count=each.row_count // 2, expired_rows=10)
            for each in files
        ]


async def everything(settings: Settings, connections: Pool) -> Mapping[TopicPartition, Offset]:
    return {(CLICKS, PART): Offset(1)}


@pytest.mark.parametrize(
    ("retention", "dry_run", "rows", "left"),
    [(False, False, 0, 20), (False, True, 10, 20), (True, True, 10, 20), (True, False, 10, 10)],
)
async def test_old_rows_leave_only_with_the_setting(
    database: str, retention: bool, dry_run: bool, rows: int, left: int
) -> None:
    async with pool(database, name="test", size=2) as connections:
        files = PostgresHistoryFiles(connections)
        await commit_dataset(connections, 1, clicks=True)
        await accept(connections)
        place = (CLICKS, PART, Offset(0), Offset(1), "whole", 20, 1, Micros(5), Micros(6))
        assert await files.add(HistoryFile(*place))
        settings = Settings(history_retention=retention)
        worker = HalfWorker()
        done = await remove_rows(settings, connections, worker, everything, dry_run=dry_run)  # type: ignore[arg-type]  # its erased rows are never asked for
        assert sums(done[1].values()).rows == rows
        (file,) = await files.files(CLICKS, PART)
        assert file.row_count == left


def test_a_result_says_that_the_setting_is_off() -> None:
    expired = {CLICKS: RemovedRows(searched=2, rewritten=1, rows=3)}
    off = str(MaintenanceResult(RemovedRows(), expired, None, retention=False))
    assert "`history` kept, because FENNEL_HISTORY_RETENTION is off: 3 from 1 of 2" in off
    on = str(MaintenanceResult(RemovedRows(), expired, None, retention=True))
    assert "`history` removed: 3 from 1 of 2" in on


def test_the_setting_is_on_by_default() -> None:
    assert Settings().history_retention


async def test_rows_age_by_the_last_acceptance_of_rows_whatever_is_erased(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        await commit_dataset(connections, 1, clicks=True)
        await erase(connections, [1])
        needs = RowNeedsReader(connections)
        assert (await expiries_now(needs)).topics == {}, "no row was accepted"
        await accept(connections, seconds_ago=3600)
        found = (await expiries_now(needs)).topics
        now = await PostgresHistoryFiles(connections).now()
        age_us = now.timestamp() * 1_000_000 - found[CLICKS].oldest - HISTORY_US
        assert 3_600_000_000 <= age_us < 3_660_000_000


def test_a_dry_run_with_a_damaged_file_reports_before_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expired = {CLICKS: RemovedRows(searched=2, rewritten=1, rows=3, refused=1)}

    async def dry(*_: object, **__: object) -> MaintenanceResult:
        return MaintenanceResult(RemovedRows(), expired, None, retention=False)

    class Connection:
        def close(self) -> None:
            """Close nothing."""

    monkeypatch.setattr(state_commands, "maintain_history", dry)
    monkeypatch.setattr(state_commands.postgres, "connect", lambda *_, **__: Connection())
    lines: list[str] = []
    with pytest.raises(CompactionFailed, match="1 files or merges were refused"):
        state_commands.show_removable_rows(Settings(), lines.append)
    assert lines[0].startswith(f"{CLICKS}: 3 rows older than `history` would leave 1 files")
    assert "FENNEL_HISTORY_RETENTION is off" in lines[1]
