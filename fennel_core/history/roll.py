"""Turn file slices into objects: what a Python worker of Spark does with its share of a batch.

Theory. To roll is to write the records of a topic's partition into an immutable file. A worker
decodes, sorts, writes Parquet and uploads; it never touches the database. An uploaded file is a
proposal to the driver, which adds the rows. However often Spark repeats a task, each attempt writes
objects under keys of its own, and a row is added for only one of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl
import pyarrow as pa

from fennel_core.history import parquet
from fennel_core.history.file_slices import FileSlice, TopicRecord, split_into_files
from fennel_core.history.store import HistoryFile
from fennel_core.vocab import position
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName, TopicPartition
from fennel_core.vocab.versions import POS

PREFIX: Final = "history"
Put = Callable[[str, bytes], None]
"""Writes a new object: key, content."""

PROPOSAL_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("part", pa.int32()),
        ("first_offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("object_key", pa.string()),
        ("row_count", pa.int64()),
        ("size_bytes", pa.int64()),
        ("min_ts", pa.int64()),
        ("max_ts", pa.int64()),
        ("min_stamp", pa.int64()),
    ]
)
"""The rows that a worker returns to the driver: one `HistoryFile` each."""


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """The columns that a topic's files depend on.

    `keys`: the columns whose bytes choose the partition; empty without a key. `timestamp`: the
    column of the event time.
    """

    keys: tuple[str, ...]
    timestamp: str


@dataclass(frozen=True, slots=True)
class RollPlan:
    """One batch: where the rows and the batch's ranges end, the topics' layouts, the file size."""

    history_ends: Mapping[TopicPartition, Offset]
    batch_ends: Mapping[TopicPartition, Offset]
    layouts: Mapping[TopicName, TopicLayout]
    file_bytes: int


def topic_prefix(topic: TopicName) -> str:
    """Return the prefix of a topic's objects."""
    return f"{PREFIX}/{topic}/"


def object_key(topic: TopicName, part: PartitionIndex, first: Offset, unique: str) -> str:
    """Return the key of a file's object; `unique` is used once."""
    return f"{topic_prefix(topic)}{part}/{first:020d}-{unique}.parquet"


def topic_of_key(key: str) -> TopicName:
    """Return the topic of an object: the inverse of `topic_prefix`, for any key below it."""
    return TopicName(key.split("/")[1])


def roll(records: Iterable[TopicRecord], plan: RollPlan, put: Put) -> Iterator[HistoryFile]:
    """Upload the data records of a batch and yield the files, one in memory at a time."""
    for each in split_into_files(records, plan.history_ends, plan.batch_ends, plan.file_bytes):
        yield _upload(each, plan.layouts[each.partition[0]], put)


def _upload(content: FileSlice, layout: TopicLayout, put: Put) -> HistoryFile:
    topic, part = content.partition
    frame = parquet.file_frame(content.records, layout.keys)
    body = parquet.encode_file(frame)
    key = object_key(topic, part, content.first_offset, uuid.uuid4().hex)
    put(key, body)
    times = frame.select(
        smallest=pl.col(layout.timestamp).min().to_physical(),
        largest=pl.col(layout.timestamp).max().to_physical(),
    )
    smallest, largest = times.row(0)
    return HistoryFile(
        topic,
        part,
        content.first_offset,
        content.next_offset,
        key,
        frame.height,
        len(body),
        None if smallest is None else Micros(smallest),
        None if largest is None else Micros(largest),
        min_stamp=earliest_stamp(frame),
    )


def earliest_stamp(frame: pl.DataFrame) -> int:
    """Return the stamp of the row that was accepted first; 0 without positions."""
    first = frame[POS].min() if POS in frame.columns else None
    return position.hlc_of(first) if isinstance(first, bytes) else 0


def records_of(batches: Iterable[pa.RecordBatch]) -> Iterator[TopicRecord]:
    """Yield rows of Spark's Kafka source (topic, partition, offset, value) as records."""
    for batch in batches:
        columns = [
            batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "value")
        ]
        for topic, part, offset, value in zip(*columns, strict=True):
            yield TopicRecord((TopicName(topic), PartitionIndex(part)), Offset(offset), value)


def encode_proposals(files: Iterable[HistoryFile]) -> Iterator[pa.RecordBatch]:
    """Yield files as rows for the driver, each as soon as it is uploaded."""
    for file in files:
        yield pa.RecordBatch.from_pylist(
            [{name: getattr(file, name) for name in PROPOSAL_SCHEMA.names}], schema=PROPOSAL_SCHEMA
        )


def decode_proposals(table: pa.Table) -> list[HistoryFile]:
    """Return the files in `table`, in the order in which their rows must be added."""
    files = [HistoryFile(**row) for row in table.to_pylist()]
    return sorted(files, key=lambda file: (file.topic, file.part, file.first_offset))
