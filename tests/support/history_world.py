"""A log with gaps and control records, objects, and rollers that may die anywhere, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from fennel_core.history import parquet
from fennel_core.history.backlog import Backlog
from fennel_core.history.file_slices import TopicRecord
from fennel_core.history.kafka import LogBounds
from fennel_core.history.roll import RollPlan, TopicLayout, roll
from fennel_core.history.store import HistoryFiles
from fennel_core.history.writer import BatchPublisher
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition
from fennel_core.vocab.versions import encode_frame

TOPIC = TopicName("w.topic.abc.1")
LAYOUT = TopicLayout(("k",), "at")


class Died(Exception):
    """The process died and its memory is lost."""


def batch(first: int, rows: int) -> bytes:
    """Return the value of a message of `rows` rows numbered from `first`."""
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
    """One topic: the records of each partition by offset.

    None is a control record or transaction marker, which readers do not receive.
    """

    records: dict[TopicPartition, list[bytes | None]] = field(default_factory=dict)
    written: int = 0
    first: dict[TopicPartition, Offset] = field(default_factory=dict)
    """The first offsets of the partitions whose oldest records were deleted."""

    def append(self, part: int, sizes: Sequence[int | None]) -> None:
        """Append records of these numbers of rows; None: a record without data."""
        here = self.records.setdefault((TOPIC, PartitionIndex(part)), [])
        for size in sizes:
            here.append(None if size is None else batch(self.written, size))
            self.written += size or 0

    def delete_before(self, part: int, offset: int) -> None:
        """Delete the oldest records of a partition."""
        self.first[TOPIC, PartitionIndex(part)] = Offset(offset)

    def bounds(self, topics: Sequence[TopicName]) -> dict[TopicPartition, LogBounds]:
        return {
            partition: LogBounds(self.first.get(partition, Offset(0)), Offset(len(here)))
            for partition, here in self.records.items()
            if partition[0] in topics
        }

    def read(self, partition: TopicPartition, first: int, end: int) -> Iterator[TopicRecord]:
        for offset, value in enumerate(self.records[partition][first:end], first):
            if value is not None:
                yield TopicRecord(partition, Offset(offset), value)


@dataclass
class MemoryRoller:
    """A `Roller` in this process: batches of at most `batch_records` records over all partitions,
    as Spark divides a backlog.

    `fate` yields, for every step that a process may not survive (an upload, a row, the end of a
    batch), whether it dies there.
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
        publisher: BatchPublisher,
    ) -> None:
        at = {partition: backlog.start for partition, backlog in due.items()}
        goal = {partition: Offset(len(self.log.records[partition])) for partition in due}
        while at != goal:
            ends, budget = dict(at), self.batch_records
            for partition in at:
                ends[partition] = Offset(min(goal[partition], at[partition] + budget))
                budget -= ends[partition] - at[partition]
            plan = RollPlan(
                await publisher.history_ends(list(ends)), ends, layouts, self.file_bytes
            )
            records = (
                record
                for partition in ends
                for record in self.log.read(partition, at[partition], ends[partition])
            )
            proposed = list(roll(records, plan, self._put))
            for file in sorted(
                proposed, key=lambda file: (file.topic, file.part, file.first_offset)
            ):
                self._step()
                await publisher.publish([file], {})
            await publisher.publish([], ends)
            self._step()
            at = ends

    def _put(self, key: str, body: bytes) -> None:
        assert key not in self.objects, "names are unique"
        self._step()
        self.objects[key] = body


async def content(
    files: HistoryFiles, objects: Mapping[str, bytes], partition: TopicPartition
) -> list[tuple[int, bytes]]:
    """Return (offset, position) of every row of a partition's history, in order.

    AssertionError if its files leave a gap.
    """
    end, found = 0, []
    for file in await files.files(*partition):
        assert file.first_offset == end
        end = file.next_offset
        frame = parquet.decode_file(objects[file.object_key])
        assert frame.height == file.row_count
        found += frame.select(parquet.OFFSET, "__pos").rows()
    return sorted(found)


__all__ = ["LAYOUT", "TOPIC", "Died", "MemoryLog", "MemoryRoller", "batch", "content"]
