"""The index of history in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from fennel_core.history.store import (
    HistoryFile,
    HistoryTotals,
    Readers,
    SearchedFiles,
    require_replaceable,
    searched_upto,
)
from fennel_core.vocab.ids import (
    DatasetName,
    Micros,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
    WorkspaceId,
)

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class MemoryHistoryFiles:
    """`HistoryFiles` in memory."""

    def __init__(self, now: Callable[[], datetime] = lambda: EPOCH) -> None:
        """`now`: a clock that tests control."""
        self._now = now
        self.readers: dict[WorkspaceId, frozenset[str]] = {}
        """The ids of the versions and jobs of each workspace, which the ledgers decide."""
        self._rows: dict[TopicPartition, list[HistoryFile]] = {}
        self._retired: dict[str, tuple[HistoryFile, datetime]] = {}
        self._skipped: dict[TopicPartition, list[tuple[Offset, Offset]]] = {}
        """What was lost before history had it: first and following offsets, in order."""

    async def ends(self, topics: Collection[TopicName]) -> Mapping[TopicPartition, Offset]:
        return {
            partition: self._end(partition)
            for partition in self._rows.keys() | self._skipped.keys()
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
        if any(row.object_key == file.object_key and _range(row) == _range(file) for row in rows):
            return True
        taken = any(
            row.object_key == file.object_key for others in self._rows.values() for row in others
        )
        if taken or file.first_offset != self._end((file.topic, file.part)):
            return False
        self._rows[file.topic, file.part] = [*rows, file]
        return True

    async def skip(
        self, topic: TopicName, part: PartitionIndex, first: Offset, following: Offset
    ) -> bool:
        assert first < following, "what is skipped has records"
        if first != self._end((topic, part)):
            return False
        self._skipped.setdefault((topic, part), []).append((first, following))
        return True

    def _end(self, partition: TopicPartition) -> Offset:
        rows = self._rows.get(partition, [])
        skipped = self._skipped.get(partition, [])
        return max(
            rows[-1].next_offset if rows else Offset(0), skipped[-1][1] if skipped else Offset(0)
        )

    async def partitions(self, least_files: int) -> list[TopicPartition]:
        return sorted(at for at, rows in self._rows.items() if len(rows) >= least_files)

    async def now(self) -> datetime:
        return self._now()

    async def replace(
        self,
        old: Sequence[HistoryFile],
        new: HistoryFile,
        deadline: datetime,
        kept: timedelta,
        readers: Readers | None = None,
    ) -> bool:
        require_replaceable(old, new)
        if readers is not None and readers.ids != self.readers.get(readers.workspace, frozenset()):
            return False
        rows = self._rows.get((new.topic, new.part), [])
        keys = [row.object_key for row in rows]
        if self._now() > deadline or not {file.object_key for file in old} <= set(keys):
            return False
        first = keys.index(old[0].object_key)
        self._rows[new.topic, new.part] = [*rows[:first], new, *rows[first + len(old) :]]
        for file in rows[first : first + len(old)]:
            self._retired[file.object_key] = (file, self._now() + kept)
        return True

    async def mark_searched(self, keys: Sequence[str], dataset: DatasetName, upto: int) -> None:
        for rows in self._rows.values():
            rows[:] = [
                replace(
                    row,
                    searched_to=max(searched_upto(row, dataset), upto),
                    searched_for=dataset,
                )
                if row.object_key in keys
                else row
                for row in rows
            ]

    async def mark_expired(self, keys: Sequence[str], to: Micros) -> None:
        for rows in self._rows.values():
            rows[:] = [
                replace(row, expiry_searched_to=max(row.expiry_searched_to, to))
                if row.object_key in keys
                else row
                for row in rows
            ]

    async def searched(self, topic: TopicName) -> list[SearchedFiles]:
        files = [file for at, rows in self._rows.items() if at[0] == topic for file in rows]
        gone = [file for file, _ in self._retired.values() if file.topic == topic]
        found = []
        for retired, those in ((False, files), (True, gone)):
            for at in sorted({(file.searched_for, file.searched_to) for file in those}):
                of = [file for file in those if (file.searched_for, file.searched_to) == at]
                full = [file for file in of if retired or file.row_count]
                counts = (0, 0)
                if not retired:
                    counts = sum(f.row_count for f in of), sum(f.removed_rows for f in of)
                stamp = min((file.min_stamp for file in full), default=0)
                found.append(SearchedFiles(*at, retired, len(full), *counts, stamp))
        return found

    async def keys(self, topic: TopicName) -> frozenset[str]:
        retired = frozenset(key for key, (of, _) in self._retired.items() if of.topic == topic)
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
        topics = {topic for topic, _ in self._rows.keys() | self._skipped.keys()}
        by_topic = {topic: [file for file in files if file.topic == topic] for topic in topics}
        return {
            topic: HistoryTotals(
                len(of),
                sum(f.row_count for f in of),
                sum(f.size_bytes for f in of),
                sum(
                    following - first
                    for (name, _), ranges in self._skipped.items()
                    for first, following in ranges
                    if name == topic
                ),
                sum(f.expired_rows for f in of),
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
        self._retired = {key: of for key, of in self._retired.items() if of[0].topic not in topics}
        self._skipped = {at: of for at, of in self._skipped.items() if at[0] not in topics}


def _range(file: HistoryFile) -> tuple[Offset, Offset]:
    return file.first_offset, file.next_offset
