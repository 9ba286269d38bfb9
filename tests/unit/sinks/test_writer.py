"""A sink refuses to go on where it would write twice, and deletes what is erased."""

from __future__ import annotations

import json

import polars as pl
import pytest

from fennel_core.sinks.errors import SinkPositionsLost, SinkTopicReplaced
from fennel_core.sinks.positions import SinkPosition, SinkRewind
from fennel_core.sinks.writer import NO_ERASURES, KeyErasures
from fennel_core.vocab import dtypes as d
from fennel_core.vocab.dtypes import Field
from fennel_core.vocab.keys import key_bytes
from fennel_core.vocab.schema import Schema
from tests.support.sink_world import USERS, MemoryTopic, SinkWorld, frame, shown

ONE = frame([(1, 10, 5, 1, 1)])
TWO = frame([(2, 20, 5, 2, 1)])
KEYS = key_bytes(frame([(1, 0, 0, 0, 1)]), ["user"])


def test_an_idle_sink_writes_nothing() -> None:
    sink = SinkWorld(MemoryTopic([[]]))
    assert sink.writer().step(NO_ERASURES).idle
    assert sink.log.positions == []


def test_a_topic_that_was_created_again_is_not_written() -> None:
    sink = SinkWorld(MemoryTopic([[ONE]]))
    sink.writer().step(NO_ERASURES)
    sink.log.origin = "cluster/other"
    with pytest.raises(SinkTopicReplaced, match=r"cluster/topic.*cluster/other"):
        sink.writer().step(NO_ERASURES)


def test_a_cluster_that_forgot_positions_is_not_written() -> None:
    sink = SinkWorld(MemoryTopic([[ONE, TWO]]))
    sink.writer().step(NO_ERASURES)
    sink.log.positions.clear()
    with pytest.raises(SinkPositionsLost, match=r"position 0 of partition 0, but had 2"):
        sink.writer().step(NO_ERASURES)
    assert len(sink.log.records) == 2


def test_a_copy_that_is_older_does_no_harm() -> None:
    sink = SinkWorld(MemoryTopic([[ONE, TWO]]))
    sink.writer().step(NO_ERASURES)
    sink.copy.position = SinkPosition("cluster/topic", {0: 1})
    assert sink.writer().step(NO_ERASURES).idle


def test_an_erased_key_is_deleted_once_and_never_written_again() -> None:
    topic = MemoryTopic([[ONE, TWO]])
    sink = SinkWorld(topic)
    writer = sink.writer()
    writer.step(NO_ERASURES)
    erased = KeyErasures(4, [(4, ("user",), KEYS[0])])
    writer.step(erased)
    topic.partitions = [[ONE, TWO, frame([(1, 11, 6, 3, 1), (2, 21, 6, 4, 1)])]]
    assert writer.step(erased).events == 1
    assert sink.writer().step(erased).idle
    assert shown(sink.log.records) == [
        (1, "c", None, 10),
        (2, "c", None, 20),
        (1, "d", None, None),
        (1, None),
        (2, "c", None, 21),
    ]
    deleted = json.loads(sink.log.records[2].value or b"")
    assert deleted["before"] == {"user": 1, "age": None, USERS.timestamp: None}


def test_nothing_is_written_with_erasures_that_are_older_than_the_sink() -> None:
    sink = SinkWorld(MemoryTopic([[ONE]]))
    erased = KeyErasures(4, [(4, ("user",), KEYS[0])])
    first = sink.writer()
    first.step(NO_ERASURES)
    first.step(erased)
    written = len(sink.log.records)
    sink.topic.partitions = [[ONE, frame([(1, 11, 6, 3, 1)])]]
    late = sink.writer()
    assert late.step(NO_ERASURES).events == 0
    assert late.position is not None
    assert late.position.erased == 4, "its host reads the erasures again"
    assert late.step(erased).events == 0
    assert len(sink.log.records) == written


def test_an_erased_key_is_deleted_whatever_the_order_of_its_columns() -> None:
    two = Schema((Field("a", d.Int()), Field("b", d.Str())), (Field("c", d.Int()),), "at")
    rows = pl.DataFrame({"a": [1], "b": ["x"]})
    erased = KeyErasures(4, [(4, ("b", "a"), key_bytes(rows, ["b", "a"])[0])])
    assert erased.since(3, two) == key_bytes(rows, ["a", "b"])
    assert erased.since(4, two) == []


def test_a_new_sink_deletes_nothing_that_it_never_wrote() -> None:
    sink = SinkWorld(MemoryTopic([[ONE, TWO]]))
    sink.writer().step(KeyErasures(4, [(4, ("user",), KEYS[0])]))
    assert shown(sink.log.records) == [(2, "c", None, 20)]


def test_an_erasure_by_other_columns_hides_rows_and_deletes_none() -> None:
    sink = SinkWorld(MemoryTopic([[ONE]]))
    writer = sink.writer()
    writer.step(NO_ERASURES)
    by_age = KeyErasures(9, [(9, ("age",), key_bytes(ONE, ["age"])[0])])
    assert writer.step(by_age).events == 0
    assert sink.log.positions[-1].erased == 9


def test_a_rewind_is_carried_out_once_and_writes_again_from_there() -> None:
    sink = SinkWorld(MemoryTopic([[ONE, TWO]]))
    writer = sink.writer()
    writer.step(NO_ERASURES)
    order = SinkRewind(7, {0: 1}, whole=False)
    assert writer.step(NO_ERASURES, order).events == 1
    assert sink.writer().step(NO_ERASURES, order).idle
    assert shown(sink.log.records) == [(1, "c", None, 10), (2, "c", None, 20), (2, "c", None, 20)]
    assert sink.log.positions[-1].next == {0: 2}


def test_a_rewind_never_skips_changes() -> None:
    sink = SinkWorld(MemoryTopic([[ONE, TWO]], lambda: 1))
    writer = sink.writer()
    writer.step(NO_ERASURES)
    writer.step(NO_ERASURES, SinkRewind(7, {0: 2}, whole=False))
    assert shown(sink.log.records) == [(1, "c", None, 10), (2, "c", None, 20)]


def test_only_a_rewind_of_everything_goes_on_where_the_positions_were_lost() -> None:
    for damage in ("positions", "topic"):
        sink = SinkWorld(MemoryTopic([[ONE, TWO]]))
        sink.writer().step(NO_ERASURES)
        if damage == "positions":
            sink.log.positions.clear()
        else:
            sink.log.origin = "cluster/other"
        with pytest.raises((SinkPositionsLost, SinkTopicReplaced)):
            sink.writer().step(NO_ERASURES, SinkRewind(1, {0: 0}, whole=False))
        whole = SinkRewind(2, {0: 0}, whole=True)
        assert sink.writer().step(NO_ERASURES, whole).events == 2
        assert sink.writer().step(NO_ERASURES, whole).idle
        assert len(sink.log.records) == 4


def test_a_new_sink_is_at_its_beginning_and_carries_out_no_earlier_rewind() -> None:
    sink = SinkWorld(MemoryTopic([[ONE, TWO]]))
    assert sink.writer().step(NO_ERASURES, SinkRewind(7, {0: 1}, whole=False)).events == 2
    assert sink.writer().step(NO_ERASURES, SinkRewind(7, {0: 1}, whole=False)).idle


def test_positions_that_are_older_than_a_rewind_are_lost() -> None:
    sink = SinkWorld(MemoryTopic([[ONE, TWO]]))
    order = SinkRewind(7, {0: 1}, whole=False)
    for rewind in (None, order):
        sink.writer().step(NO_ERASURES, rewind)
    assert sink.copy.position == sink.log.positions[-1]
    sink.log.positions[:] = [SinkPosition("cluster/topic", {0: 1}, rewound=7)]
    with pytest.raises(SinkPositionsLost, match=r"position 1 of partition 0, but had 2"):
        sink.writer().step(NO_ERASURES, order)
