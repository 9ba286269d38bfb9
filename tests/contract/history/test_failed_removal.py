"""A removal of erased rows that fails stops no compaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.postgres import Pool, pool
from fennel_core.history.compaction import Merge
from fennel_core.history.maintenance import remove_and_merge
from fennel_core.history.merging import MergeRefused
from fennel_core.history.postgres import PostgresHistoryFiles
from fennel_core.history.store import HistoryFile
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicPartition
from tests.support.erased_dataset import commit_dataset, erase
from tests.support.history_world import TOPIC


class Worker:
    """Merges without objects, and searches nothing."""

    async def merge(self, merges: Sequence[Merge]) -> Sequence[HistoryFile | MergeRefused]:
        made = []
        for merge in merges:
            first, last = merge.files[0], merge.files[-1]
            place = (TOPIC, PartitionIndex(0), first.first_offset, last.next_offset)
            rows = sum(each.row_count for each in merge.files)
            made.append(HistoryFile(*place, "merged", rows, 1, Micros(1), Micros(2)))
        return made

    async def remove_erased(self, files: Sequence[HistoryFile], erasures: Any) -> Any:
        raise AssertionError("the offsets that jobs need are not known")

    async def remove_expired(self, files: Sequence[HistoryFile], expiries: Any) -> Any:
        raise AssertionError("the offsets that jobs need are not known")


async def unavailable(settings: Settings, connections: Pool) -> Mapping[TopicPartition, Offset]:
    raise SystemUnavailable("Kafka is away")


async def test_files_are_merged_although_no_row_can_be_removed(database: str) -> None:
    async with pool(database, name="test", size=2) as connections:
        files = PostgresHistoryFiles(connections)
        await commit_dataset(connections, 1)
        await erase(connections, [1])
        for first in range(0, 40, 4):
            place = (TOPIC, PartitionIndex(0), Offset(first), Offset(first + 4), f"{first}")
            assert await files.add(HistoryFile(*place, 3, 1, Micros(1), Micros(2)))
        with pytest.raises(SystemUnavailable, match="Kafka is away"):
            await remove_and_merge(Settings(), connections, Worker(), unavailable)
        assert [each.object_key for each in await files.files(TOPIC, PartitionIndex(0))] == [
            "merged"
        ]
