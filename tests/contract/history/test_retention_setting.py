"""Rows leave history by their age only with the setting; a dry run shows them without it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from fennel_core.connections.postgres import Pool, pool
from fennel_core.history.expiring import TopicExpiry
from fennel_core.history.maintenance import MaintenanceResult, remove_rows
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.removals import RemovedRows, sums
from fennel_core.history.store import HistoryFile
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName, TopicPartition
from fennel_core.vocab.position import COUNTER_BITS
from tests.support.erased_dataset import CLICKS, commit_dataset

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


async def accepted_now(connections: Pool) -> None:
    """Let the workspace accept a row."""
    stamp = int(time.time() * 1000) << COUNTER_BITS
    async with connections.connection() as connection:
        await connection.execute(
            "INSERT INTO ingest_clock (workspace, hlc) VALUES ('w', %s) "
            "ON CONFLICT (workspace) DO UPDATE SET hlc = excluded.hlc",
            (stamp,),
        )


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
        await accepted_now(connections)
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


def test_the_setting_is_off_by_default() -> None:
    assert not Settings().history_retention
