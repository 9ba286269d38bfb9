"""A world in memory for the laws of history: a log with gaps and control records, a bucket, and
rollers that may die anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from fennel_core.history import parquet
from fennel_core.history.backlog import Backlog, TopicRecord
from fennel_core.history.kafka import LogBounds
from fennel_core.history.roll import RollPlan, TopicLayout, roll
from fennel_core.history.store import HistoryFiles
from fennel_core.history.writer import BatchPublisher, RollFailed
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition
from fennel_core.vocab.versions import encode_frame

TOPIC = TopicName("w.topic.abc.1")
LAYOUT = TopicLayout(("k",), "at")


class Died(Exception):
    """The process is gone; what it had in memory with it."""


def batch(first: int, rows: int) -> bytes:
    """The value of a message of `rows` rows numbered from `first`."""
    numbers = list(range(first, first + rows))
    columns = {
        "k": [n % 5 for n in numbers],
        "at": numbers,
        "__pos": [n.to_bytes(14, "big") for n in numbers],
    }
    types = {"k": pl.Int64, "at": pl.Datetime("us", "UTC"), "__pos": pl.Binary}
    frame = pl.DataFrame(columns, schema=types).with_columns(
        pl.lit(1, pl.Int8).alias("__sign"),
        pl.lit(False).alias("__tombstone"),  # a literal column
    )
    return encode_frame(frame)


@dataclass
class MemoryLog:
    """One topic: per partition its records by offset (None: a control record or marker, which
    nobody is handed) and where it ends.
    """

    records: dict[TopicPartition, list[bytes | None]] = field(default_factory=dict)
    written: int = 0

    def append(self, part: int, sizes: Sequence[int | None]) -> None:
        """Add messages of so many rows; None: something without data."""
        here = self.records.setdefault((TOPIC, PartitionIndex(part)), [])
        for size in sizes:
            here.append(None if size is None else batch(self.written, size))
            self.written += size or 0

    def bounds(self, topics: Sequence[TopicName]) -> dict[TopicPartition, LogBounds]:
        return {
            place: LogBounds(Offset(0), Offset(len(here)))
            for place, here in self.records.items()
            if place[0] in topics
        }

    def read(self, place: TopicPartition, first: int, end: int) -> Iterator[TopicRecord]:
        for offset, value in enumerate(self.records[place][first:end], first):
            if value is not None:
                yield TopicRecord(place, Offset(offset), value)


@dataclass
class MemoryRoller:
    """See `history.flow.Roller`: batches of at most `batch_records` messages over all partitions,
    as Spark divides a backlog.

    `fate` counts down at every step that a process may not survive: an upload, a row, the end of a
    batch.
    """

    log: MemoryLog
    objects: dict[str, bytes]
    batch_records: int
    file_bytes: int
    fate: Iterator[bool]

    def _step(self) -> None:
        if next(self.fate, False):
            raise Died

    async def roll(
        self,
        due: Mapping[TopicPartition, Backlog],
        layouts: Mapping[TopicName, TopicLayout],
        rows: BatchPublisher,
    ) -> None:
        at = {place: backlog.start for place, backlog in due.items()}
        goal = {place: Offset(len(self.log.records[place])) for place in due}
        while at != goal:
            ends, room = dict(at), self.batch_records
            for place in at:
                ends[place] = Offset(min(goal[place], at[place] + room))
                room -= ends[place] - at[place]
            plan = RollPlan(await rows.floors(list(ends)), ends, layouts, self.file_bytes)
            messages = (
                message
                for place in ends
                for message in self.log.read(place, at[place], ends[place])
            )
            proposed = list(roll(messages, plan, self._put))
            for file in sorted(
                proposed, key=lambda file: (file.topic, file.part, file.first_offset)
            ):
                self._step()
                await rows.publish([file], {})
            await rows.publish([], ends)
            self._step()
            at = ends

    def _put(self, key: str, body: bytes) -> None:
        assert key not in self.objects, "names are unique"
        self._step()
        self.objects[key] = body


async def content(
    files: HistoryFiles, objects: Mapping[str, bytes], place: TopicPartition
) -> list[tuple[int, bytes]]:
    """(offset, position) of every row of a partition's history in order; AssertionError when its
    files leave a gap.
    """
    end, found = 0, []
    for file in await files.files(*place):
        assert file.first_offset == end
        end = file.next_offset
        frame = parquet.decode_file(objects[file.object_key])
        assert frame.height == file.row_count
        found += frame.select(parquet.OFFSET, "__pos").rows()
    return sorted(found)


__all__ = ["LAYOUT", "TOPIC", "Died", "MemoryLog", "MemoryRoller", "RollFailed", "batch", "content"]
