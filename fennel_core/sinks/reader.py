"""Read the versions of a topic from a position on: files of history, then the log of Kafka.

Offsets that history has are read there, so a sink that starts late reads what Kafka has deleted;
the log is read behind them. Which files there are is asked once, when the reader is opened: what
history takes over later is still in the log, whose records are deleted only when history has them.
A reader that is overtaken by that fails, and the next one reads history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import polars as pl
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as RdTopicPartition

from fennel_core.connections.errors import SystemUnavailable
from fennel_core.connections.kafka import CONTROL_HEADER, consumer_config
from fennel_core.history.topic_slices import TopicSlice, version_batches
from fennel_core.operators.rows import output_names
from fennel_core.settings.model import Settings
from fennel_core.sinks.changes import OFFSET, PART
from fennel_core.sinks.errors import SinkAhead, SinkRowsLost
from fennel_core.sinks.writer import Versions
from fennel_core.vocab.schema import Schema
from fennel_core.vocab.versions import arrow_schema, decode

MAX_ROWS: Final = 20_000
"""Rows of a small batch, and so of a transaction, unless one message has more."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a batch, as its rows are in memory, unless one message has more."""
MAX_MESSAGES: Final = 2_000
"""Messages of a small batch of the log."""
WAIT_S: Final = 1.0
"""How long a read waits for the first message."""
GATHER_S: Final = 0.05
"""How long it waits for more: a transaction costs about as much."""
FETCH_WAIT_MS: Final = 500
"""How long the broker holds an empty fetch: an idle sink costs two requests per second."""
QUEUE_KBYTES: Final = 16_384
PlanSlices = Callable[[], Sequence[TopicSlice]]
"""Returns the slices of every partition of the topic as of now; blocks."""


class TopicVersions:
    """See `writer.ChangeReader`. `following`: the next offset of each partition (absent: 0).

    `larger`: how many times larger its batches are than the smallest that are worth a transaction.
    """

    def __init__(
        self,
        settings: Settings,
        title: str,
        schema: Schema,
        plan: PlanSlices,
        following: Mapping[int, int],
        larger: int = 1,
    ) -> None:
        self._settings, self._schema = settings, schema
        self._max_rows, self._max_messages = larger * MAX_ROWS, larger * MAX_MESSAGES
        slices = plan()
        if not slices:
            raise SystemUnavailable(f"sink {title}: the topic of the dataset does not exist")
        self._next = {int(each.partition[1]): 0 for each in slices} | dict(following)
        for each in slices:
            _require_readable(title, each, self._next[each.partition[1]])
        self._ends = {int(each.partition[1]): int(each.end) for each in slices}
        self._history = self._of_history(slices)
        self._topic = slices[0].partition[0]
        self._consumer: Any = None

    def read(self) -> Versions:
        found = next(self._history, None)
        return self._of_log() if found is None else found

    def behind(self) -> int:
        return sum(max(0, end - self._next[part]) for part, end in self._ends.items())

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _of_history(self, slices: Sequence[TopicSlice]) -> Iterator[Versions]:
        """Yield the rest of the files of each partition, one file in memory at a time."""
        names = [*output_names(self._schema), OFFSET]
        for each in slices:
            part = int(each.partition[1])
            for file in each.files:
                if file.next_offset <= self._next[part]:
                    continue
                one = replace(each, files=(file,), tail_first=each.end)
                batches = list(version_batches(self._settings, one, names))
                first, behind = self._next[part], min(int(file.next_offset), int(each.end))
                if batches:
                    rows = pl.concat(batches).filter(pl.col(OFFSET) >= first)
                    for frame in _pieces(rows.sort(OFFSET, maintain_order=True), self._max_rows):
                        # The last piece ends where the file ends.
                        after = int(frame[OFFSET][-1]) + 1
                        self._next[part] = after
                        located = frame.with_columns(pl.lit(part, pl.Int64).alias(PART))
                        yield Versions(located, dict(self._next), full=True)
                self._next[part] = behind
            self._next[part] = max(self._next[part], int(each.tail_first))

    def _of_log(self) -> Versions:
        if self._consumer is None:
            config = consumer_config(self._settings, fetch_wait_ms=FETCH_WAIT_MS)
            self._consumer = Consumer(config | {"queued.max.messages.kbytes": QUEUE_KBYTES})
            self._consumer.assign(
                [RdTopicPartition(self._topic, part, at) for part, at in self._next.items()]
            )
        frames: list[pl.DataFrame] = []
        rows, size, wait_s, until_s = 0, 0, WAIT_S, time.monotonic() + WAIT_S
        try:
            while rows < self._max_rows and size < MAX_BYTES:
                # Messages of one call are all used, so their number bounds what is in memory.
                messages = self._consumer.consume(1 if not frames else MAX_MESSAGES, wait_s)
                if not messages:
                    break
                found = [frame for each in messages if (frame := self._taken(each)) is not None]
                frames += found
                rows += sum(frame.height for frame in found)
                size += sum(int(frame.estimated_size()) for frame in found)
                # Ends of partitions are no messages: what follows them is read in the same call.
                left_s = max(0.0, until_s - time.monotonic())
                wait_s = GATHER_S if frames else left_s
                if len(frames) >= self._max_messages or not (found or left_s):
                    break
        except KafkaException as failed:
            raise SystemUnavailable(f"Kafka: {failed}") from failed
        for part, end in self._ends.items():
            # What the last fetch said: no request.
            at = RdTopicPartition(self._topic, part)
            _, newest = self._consumer.get_watermark_offsets(at, cached=True)
            self._ends[part] = max(end, newest)
        empty = _no_versions(self._schema) if not frames else pl.concat(frames)
        full = rows >= self._max_rows or size >= MAX_BYTES or len(frames) >= self._max_messages
        return Versions(empty, dict(self._next), full)

    def _taken(self, message: Message) -> pl.DataFrame | None:
        """Return the versions of a message, None if it has none; move behind it."""
        error, part, offset = message.error(), message.partition(), message.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise SystemUnavailable(f"Kafka: `{self._topic}`[{part}]: {error.str()}")
        assert part is not None, "a message has a partition"
        assert offset is not None, "a message and the end of a partition have an offset"
        self._next[part] = max(self._next[part], offset if error is not None else offset + 1)
        self._ends[part] = max(self._ends[part], self._next[part])
        headers = message.headers() or ()
        if error is not None or any(name == CONTROL_HEADER for name, _ in headers):
            return None
        value = message.value()
        assert value is not None, "messages of a dataset have a value"
        return (
            decode(value)
            .select(output_names(self._schema))
            .with_columns(
                pl.lit(part, pl.Int64).alias(PART), pl.lit(offset, pl.Int64).alias(OFFSET)
            )
        )


def _no_versions(schema: Schema) -> pl.DataFrame:
    """Return no versions of a dataset."""
    frame = pl.from_arrow(arrow_schema(schema).empty_table())
    assert isinstance(frame, pl.DataFrame), "an Arrow table is read as a frame"
    nothing = pl.lit(0, pl.Int64)
    return frame.with_columns(nothing.alias(PART), nothing.alias(OFFSET))


def _pieces(rows: pl.DataFrame, max_rows: int) -> Iterator[pl.DataFrame]:
    """Yield the rows, in order of offsets, in pieces of about `max_rows` with whole messages."""
    max_rows = max(1, min(max_rows, MAX_BYTES * rows.height // max(1, int(rows.estimated_size()))))
    first = 0
    while first < rows.height:
        end = min(first + max_rows, rows.height)
        if end < rows.height:
            last = rows[OFFSET][end - 1]
            end += int((rows[OFFSET][end:] == last).sum())
        yield rows[first:end]
        first = end


def _require_readable(title: str, of: TopicSlice, following: int) -> None:
    """Raise unless history and log have every record from `following` on."""
    part = int(of.partition[1])
    if following > of.end:
        raise SinkAhead(title, part, following, int(of.end))
    if of.begins > following:
        raise SinkRowsLost(title, part, following, int(of.begins))
    if (gap := of.gap_behind(following)) is not None:
        raise SinkRowsLost(title, part, max(following, int(gap[0])), int(gap[1]))
