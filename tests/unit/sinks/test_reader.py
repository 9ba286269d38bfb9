"""A reader knows what it cannot read, and how far it is behind while it reads the log."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from fennel_core.history.store import HistoryFile
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.settings.model import Settings
from fennel_core.sinks import reader
from fennel_core.sinks.errors import SinkRowsLost
from fennel_core.sinks.reader import TopicVersions
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName
from fennel_core.vocab.versions import encode_frame
from tests.support.sink_world import USERS, frame

PLACE = TopicName("w.topic.abc.1"), PartitionIndex(0)


class QuietLog:
    """A consumer of a log that grew to offset 9, whose messages have not arrived."""

    def __init__(self, _: object) -> None: ...

    def assign(self, _: object) -> None: ...

    def consume(self, *_: object) -> list[object]:
        return []

    def get_watermark_offsets(self, _: object, *, cached: bool) -> tuple[int, int]:
        assert cached, "no request for each read"
        return 0, 9


class Message:
    """A message of partition 0, or the end of a partition."""

    def __init__(self, part: int, offset: int, value: bytes | None) -> None:
        self._part, self._offset, self._value = part, offset, value

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self._value is None else None

    def partition(self) -> int:
        return self._part

    def offset(self) -> int:
        return self._offset

    def headers(self) -> None:
        return None

    def value(self) -> bytes | None:
        return self._value


class EndedLog(QuietLog):
    """A consumer whose queue has the ends of partitions before a message, and after it."""

    def __init__(self, _: object) -> None:
        value = encode_frame(frame([(1, 10, 5, 1, 1)]))
        self._queue = [Message(0, 4, None)] * 9 + [Message(0, 4, value), Message(0, 5, None)]

    def consume(self, count: int, _: float) -> list[Message]:
        taken, self._queue = self._queue[:count], self._queue[count:]
        return taken


def test_ends_of_partitions_hold_up_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "Consumer", EndedLog)
    log = opened(4, 4)
    read = log.read()
    assert read.frame["user"].to_list() == [1]
    assert read.following == {0: 5}
    assert log.read().frame.is_empty()


def opened(following: int, end: int, *files: HistoryFile) -> TopicVersions:
    slices = [TopicSlice(PLACE, files, Offset(end), Offset(end), "root/")]
    return TopicVersions(Settings(), "out/users", USERS, lambda: slices, {0: following})


def test_it_is_behind_by_what_arrived_since_it_was_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "Consumer", QuietLog)
    log = opened(4, 4)
    assert log.behind() == 0
    assert log.read().frame.is_empty()
    assert log.behind() == 5


def test_each_gap_stops_it() -> None:
    files = [
        HistoryFile(*PLACE, Offset(first), Offset(end), "f", 0, 1, None, None)
        for first, end in ((0, 10), (20, 150), (200, 300))
    ]
    for following, lost in ((5, "10 to 19"), (100, "150 to 199"), (170, "170 to 199")):
        with pytest.raises(SinkRowsLost, match=f"the records {lost} of partition 0"):
            opened(following, 300, *files)
    assert opened(200, 300, *files).behind() == 100
