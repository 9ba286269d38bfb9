"""From a cut to an object: what a Python worker of Spark does with its partition's part of a batch.

Theory. A worker decodes, sorts, writes Parquet and uploads; it never touches the database. What it
uploaded is a proposal, told to the driver, which adds the rows. So however often Spark repeats a
task, each attempt leaves objects of its own names, and only one of them is ever named by a row.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl
import pyarrow as pa

from fennel_core.history import parquet
from fennel_core.history.backlog import FileSlice, TopicRecord, split_into_files
from fennel_core.history.store import HistoryFile
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName, TopicPartition

PREFIX: Final = "history"
Put = Callable[[str, bytes], None]
"""Write a new object of this key."""

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
    ]
)
"""What a worker tells the driver: a `HistoryFile` per row."""


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """What a file of a topic needs to know: the columns whose bytes choose the partition (none: no
    key), and the event time's column.
    """

    keys: tuple[str, ...]
    timestamp: str


@dataclass(frozen=True, slots=True)
class RollPlan:
    """One batch: where rows end, where the batch's ranges end, and how the topics are laid out."""

    floors: Mapping[TopicPartition, Offset]
    ends: Mapping[TopicPartition, Offset]
    layouts: Mapping[TopicName, TopicLayout]
    file_bytes: int


def topic_prefix(topic: TopicName) -> str:
    """Where a topic's objects are."""
    return f"{PREFIX}/{topic}/"


def topic_of_key(key: str) -> TopicName:
    """The inverse of `topic_prefix`, for any key below it."""
    return TopicName(key.split("/")[1])


def roll(messages: Iterable[TopicRecord], plan: RollPlan, put: Put) -> Iterator[HistoryFile]:
    """Upload the data records of a batch, file by file; lazy, so that one file at a time is in
    memory.
    """
    for cut in split_into_files(messages, plan.floors, plan.ends, plan.file_bytes):
        yield _uploaded(cut, plan.layouts[cut.place[0]], put)


def _uploaded(cut: FileSlice, layout: TopicLayout, put: Put) -> HistoryFile:
    topic, part = cut.place
    frame = parquet.file_frame(cut.messages, layout.keys)
    body = parquet.encode_file(frame)
    key = f"{topic_prefix(topic)}{part}/{cut.first:020d}-{uuid.uuid4().hex}.parquet"
    put(key, body)
    times = frame.select(
        least=pl.col(layout.timestamp).min().to_physical(),
        largest=pl.col(layout.timestamp).max().to_physical(),
    )
    least, largest = times.row(0)
    bounds = (None, None) if least is None else (Micros(least), Micros(largest))
    return HistoryFile(topic, part, cut.first, cut.following, key, frame.height, len(body), *bounds)


def records_of(batches: Iterable[pa.RecordBatch]) -> Iterator[TopicRecord]:
    """Rows of Spark's Kafka source (topic, partition, offset, value) as messages."""
    for batch in batches:
        columns = [
            batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "value")
        ]
        for topic, part, offset, value in zip(*columns, strict=True):
            yield TopicRecord((TopicName(topic), PartitionIndex(part)), Offset(offset), value)


def encode_proposals(files: Iterable[HistoryFile]) -> Iterator[pa.RecordBatch]:
    """Files as rows for the driver, each as soon as it is uploaded."""
    for file in files:
        yield pa.RecordBatch.from_pylist(
            [{name: getattr(file, name) for name in PROPOSAL_SCHEMA.names}], schema=PROPOSAL_SCHEMA
        )


def decode_proposals(table: pa.Table) -> list[HistoryFile]:
    """The inverse of `encode_proposals`, in the order in which rows must be added."""
    files = [HistoryFile(**row) for row in table.to_pylist()]
    return sorted(files, key=lambda file: (file.topic, file.part, file.first_offset))
