"""The index of history in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from fennel_core.history.store import HistoryFile, HistoryTotals, require_replaceable
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class MemoryHistoryFiles:
    """`HistoryFiles` in memory."""

    def __init__(self, now: Callable[[], datetime] = lambda: EPOCH) -> None:
        """`now`: a clock that tests control."""
        self._now = now
        self._rows: dict[TopicPartition, list[HistoryFile]] = {}
        self._retired: dict[str, tuple[TopicName, datetime]] = {}

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

    async def partitions(self, least_files: int) -> list[TopicPartition]:
        return sorted(at for at, rows in self._rows.items() if len(rows) >= least_files)

    async def now(self) -> datetime:
        return self._now()

    async def replace(
        self, old: Sequence[HistoryFile], new: HistoryFile, deadline: datetime, kept: timedelta
    ) -> bool:
        require_replaceable(old, new)
        rows = self._rows.get((new.topic, new.part), [])
        if self._now() > deadline or not set(old) <= set(rows):
            return False
        first = rows.index(old[0])
        self._rows[new.topic, new.part] = [*rows[:first], new, *rows[first + len(old) :]]
        for file in old:
            self._retired[file.object_key] = (file.topic, self._now() + kept)
        return True

    async def keys(self, topic: TopicName) -> frozenset[str]:
        retired = frozenset(key for key, (of, _) in self._retired.items() if of == topic)
        return retired | frozenset(
            row.object_key
            for partition, rows in self._rows.items()
            if partition[0] == topic
            for row in rows
        )

    async def retired(self) -> frozenset[str]:
        return frozenset(self._retired)

    async def due(self, limit: int) -> list[str]:
        now = self._now()
        return sorted(key for key, (_, after) in self._retired.items() if after < now)[:limit]

    async def forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._retired.pop(key, None)

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
        self._retired = {key: of for key, of in self._retired.items() if of[0] not in topics}
