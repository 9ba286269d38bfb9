"""What is decided about history without touching anything: which partitions to roll now, how to cut
them into files, what to delete.

Theory. Small files cost every later reader, late files cost nothing (what is not in history is read
from the topic). So a partition waits until it has enough for a file worth writing, or has waited
long enough. Within a batch a file ends where it is full, and the last one where the batch ends:
then control records and transaction markers at the end are covered too, and a partition that stands
still is not behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from fennel_core.vocab.ids import Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class RollRule:
    """`enough_records`: messages that are worth a file; `wait_s`: a partition with fewer waits this
    long at most.
    """

    enough_records: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """What history lacks of a partition: records of [start, end), there since `since_s`
    (monotonic).
    """

    start: Offset
    end: Offset
    since_s: float

    @property
    def records(self) -> int:
        return self.end - self.start


def backlogs(
    starts: Mapping[TopicPartition, Offset],
    ends: Mapping[TopicPartition, Offset],
    before: Mapping[TopicPartition, Backlog],
    now_s: float,
) -> dict[TopicPartition, Backlog]:
    """The partitions that are behind. One that has not moved since `before` keeps its age."""
    found = {}
    for place, end in ends.items():
        start = starts.get(place, Offset(0))
        if start < end:
            known = before.get(place)
            found[place] = Backlog(
                start, end, known.since_s if known is not None and known.start == start else now_s
            )
    return found


def due_partitions(
    behind: Mapping[TopicPartition, Backlog], rule: RollRule, now_s: float
) -> dict[TopicPartition, Backlog]:
    """Those to be rolled now."""
    return {
        place: each
        for place, each in behind.items()
        if each.records >= rule.enough_records or now_s - each.since_s >= rule.wait_s
    }


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """One data record of a topic."""

    place: TopicPartition
    offset: Offset
    value: bytes


@dataclass(frozen=True, slots=True)
class FileSlice:
    """What one file shall hold: all data records of offsets [first, following)."""

    place: TopicPartition
    first: Offset
    following: Offset
    messages: tuple[tuple[Offset, bytes], ...]


def split_into_files(
    messages: Iterable[TopicRecord],
    floors: Mapping[TopicPartition, Offset],
    ends: Mapping[TopicPartition, Offset],
    file_bytes: int,
) -> Iterator[FileSlice]:
    """A batch as files. Lazy: no more than one file's messages are held.

    `messages`: the data records that some offset ranges hold, each partition's side by side and in
    order; `floors`: where each partition's rows end (0 when absent), so what lies below is there
    already; `ends`: where each partition's range ends. A range without data records makes no file:
    the next one that has some begins at the floor.
    """
    held: list[tuple[Offset, bytes]] = []
    place: TopicPartition | None = None
    first, size = Offset(0), 0
    for message in messages:
        if message.place != place:
            if place is not None and held:
                yield FileSlice(place, first, ends[place], tuple(held))
            place, held, size = message.place, [], 0
            first = floors.get(place, Offset(0))
        assert message.offset < ends[message.place], "a batch holds nothing beyond its end"
        assert not held or held[-1][0] < message.offset, "records come in order of offsets"
        if message.offset < first:
            continue
        if held and size + len(message.value) > file_bytes:
            following = Offset(held[-1][0] + 1)
            yield FileSlice(message.place, first, following, tuple(held))
            held, size, first = [], 0, following
        held.append((message.offset, message.value))
        size += len(message.value)
    if place is not None and held:
        yield FileSlice(place, first, ends[place], tuple(held))


def strays(
    written: Mapping[str, datetime], named: Collection[str], grace: timedelta, now: datetime
) -> list[str]:
    """Keys of objects that no row names and that no writer can be about to name, by when they were
    written.
    """
    return [key for key, at in written.items() if key not in named and at < now - grace]
