"""Topics in memory: files of history with small row groups, and a tail."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from hypothesis import strategies as st

from fennel_core.dataframes.parts import TopicInput
from fennel_core.history import parquet
from fennel_core.history.parquet import RowFilter
from fennel_core.history.roll import TopicLayout
from fennel_core.history.store import HistoryFile
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName, TopicPartition
from fennel_core.vocab.keys import key_bytes, partition_of
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import decode, encode_frame
from tests.support.histories import History, as_frame

TOPIC = TopicName("w.topic.abc.1")
PARTITIONS = 2


@dataclass
class MemoryVersions:
    """Implements `VersionStore`. `read_rows`: how many rows were read of files."""

    objects: dict[str, bytes] = field(default_factory=dict)
    messages: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    read_rows: int = 0

    def batches(
        self, part: TopicSlice, columns: Sequence[str], rows: RowFilter
    ) -> Iterator[pl.DataFrame]:
        for file in part.files:
            below = part.end if file.next_offset > part.end else None
            opened = CountedRows(rows)
            yield from parquet.file_batches(
                io.BytesIO(self.objects[file.object_key]), columns, opened, below
            )
            self.read_rows += opened.count
        for value in self.messages[part.partition][part.tail_first : part.end]:
            yield rows.kept(decode(value)).select(columns)


@dataclass
class CountedRows:
    """A filter that counts the rows it is given."""

    inner: RowFilter
    count: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return self.inner.names

    def may_keep(self, group: Any) -> bool:
        return self.inner.may_keep(group)

    def kept(self, rows: pl.DataFrame) -> pl.DataFrame:
        self.count += rows.height
        return self.inner.kept(rows)


def topic_of(
    history: History, schema: Schema, keys: tuple[str, ...], cuts: Sequence[int] = ()
) -> tuple[MemoryVersions, TopicInput]:
    """Return a topic with the versions of a history.

    `cuts`: how many messages the files of each partition have; what is left is the tail. `keys`:
    the columns that choose the partition.
    """
    store = MemoryVersions()
    places = [(TOPIC, PartitionIndex(number)) for number in range(PARTITIONS)]
    store.messages = {place: [] for place in places}
    for batch in history.batches:
        frame = as_frame(schema, batch)
        numbers = (
            [partition_of(key, PARTITIONS) for key in key_bytes(frame, keys)]
            if keys
            else [position[-1] % PARTITIONS for position in frame["__pos"]]
        )
        for place in places:
            mine = frame.filter(pl.Series([each == place[1] for each in numbers]))
            if not mine.is_empty():
                store.messages[place].append(encode_frame(mine))
    slices = tuple(_slice(store, place, schema.timestamp, keys, cuts) for place in places)
    return store, TopicInput(slices, TopicLayout(keys, schema.timestamp))


def _slice(
    store: MemoryVersions,
    place: TopicPartition,
    timestamp: str,
    keys: tuple[str, ...],
    cuts: Sequence[int],
) -> TopicSlice:
    first, files, messages = 0, list[HistoryFile](), store.messages[place]
    for count in cuts:
        taken = list(enumerate(messages))[first : first + count]
        if not taken:
            break
        frame = parquet.file_frame([(Offset(o), value) for o, value in taken], keys)
        sink = io.BytesIO()
        frame.write_parquet(sink, row_group_size=2, statistics=True)
        key = f"{place[1]}-{first}"
        store.objects[key] = sink.getvalue()
        times = frame[timestamp].to_physical().to_list()
        stop = Offset(first + len(taken))
        least, most = Micros(min(times)), Micros(max(times))
        files.append(HistoryFile(*place, Offset(first), stop, key, frame.height, 1, least, most))
        first = stop
    return TopicSlice(place, tuple(files), Offset(first), Offset(len(messages)), "")


CUTS = st.lists(st.integers(1, 3), max_size=4)
