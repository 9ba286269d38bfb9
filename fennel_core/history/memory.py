"""The index of history in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fennel_core.history.store import HistoryFile, HistoryTotals
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition


class MemoryHistoryFiles:
    """`HistoryFiles` in memory."""

    def __init__(self) -> None:
        self._rows: dict[TopicPartition, list[HistoryFile]] = {}

    async def ends(self, topics: Collection[TopicName]) -> Mapping[TopicPartition, Offset]:
        return {
            partition: rows[-1].next_offset
            for partition, rows in self._rows.items()
            if partition[0] in topics
        }

    async def files(
        self, topic: TopicName, part: PartitionIndex, upto: Offset | None = None
    ) -> tuple[HistoryFile, ...]:
        return tuple(
            row
            for row in self._rows.get((topic, part), ())
            if upto is None or row.first_offset < upto
        )

    async def add(self, file: HistoryFile) -> bool:
        rows = self._rows.get((file.topic, file.part), [])
        if file in rows:
            return True
        taken = any(
            row.object_key == file.object_key for others in self._rows.values() for row in others
        )
        if taken or file.first_offset != (rows[-1].next_offset if rows else 0):
            return False
        self._rows[file.topic, file.part] = [*rows, file]
        return True

    async def keys(self, topic: TopicName) -> frozenset[str]:
        return frozenset(
            row.object_key
            for partition, rows in self._rows.items()
            if partition[0] == topic
            for row in rows
        )

    async def totals(self) -> Mapping[TopicName, HistoryTotals]:
        files = [file for rows in self._rows.values() for file in rows]
        by_topic = {
            topic: [file for file in files if file.topic == topic] for topic, _ in self._rows
        }
        return {
            topic: HistoryTotals(
                len(of), sum(f.row_count for f in of), sum(f.size_bytes for f in of)
            )
            for topic, of in by_topic.items()
        }

    async def remove_before(
        self, topic: TopicName, part: PartitionIndex, offset: Offset
    ) -> list[str]:
        rows = self._rows.get((topic, part), [])
        gone = [row for row in rows[:-1] if row.next_offset <= offset]
        if gone:
            self._rows[topic, part] = rows[len(gone) :]
        return [row.object_key for row in gone]

    async def remove(self, topics: Sequence[TopicName]) -> None:
        self._rows = {
            partition: rows for partition, rows in self._rows.items() if partition[0] not in topics
        }
