"""Where the rows of a check end while transactions are open."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import polars as pl
import pytest

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.history.kafka import LogBounds
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.integrity import topic_history
from fennel_core.integrity.erased_groups import keys_not_erased
from fennel_core.integrity.errors import RowsUnreadable
from fennel_core.integrity.topic_history import HistoryRows, hidden_groups
from fennel_core.vocab.ids import Offset, PartitionIndex, TopicName, TopicPartition
from fennel_core.vocab.keys import key_bytes

PARTITION = (TopicName("w.topic.a.1"), PartitionIndex(0))


class OpenTransactions:
    """A topic with 9 records, of which readers see one more at each look."""

    looks = 0
    at_most = 9

    def __init__(self, settings: Any) -> None:
        """Need no settings."""

    def bounds(self, topics: Collection[TopicName]) -> Mapping[TopicPartition, LogBounds]:
        if PARTITION[0] not in topics:
            return {}
        type(self).looks += 1
        return {PARTITION: LogBounds(Offset(0), Offset(min(4 + self.looks, self.at_most)))}

    def high_watermark(self, partition: TopicPartition) -> Offset:
        return Offset(9)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> HistoryRows:
    monkeypatch.setattr(topic_history, "TopicReader", OpenTransactions)
    monkeypatch.setattr(topic_history, "SETTLING_PAUSE_S", 0.001)
    monkeypatch.setattr(OpenTransactions, "looks", 0)
    unused: Any = None
    return HistoryRows(unused, unused, unused, 1000)


def test_an_output_is_read_when_no_transaction_hides_what_was_written(rows: HistoryRows) -> None:
    assert rows.settled_end(PARTITION) == 9
    assert OpenTransactions.looks == 5


def test_a_transaction_that_stays_open_ends_the_check_of_its_partition(
    rows: HistoryRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenTransactions, "at_most", 8)
    monkeypatch.setattr(topic_history, "SETTLING_S", 0.01)
    with pytest.raises(RowsUnreadable, match=r"in w.topic.a.1\[0\] has stayed open"):
        rows.settled_end(PARTITION)


def test_the_end_of_a_topic_that_is_gone_is_no_offset(rows: HistoryRows) -> None:
    with pytest.raises(RowsUnreadable, match="does not exist"):
        rows.end((TopicName("gone"), PartitionIndex(0)))


PART = TopicSlice(PARTITION, (), Offset(0), Offset(9), "")


def erased(*columns: str) -> ErasedKeys:
    return ErasedKeys(columns, frozenset([b"key"]))


@pytest.mark.parametrize("groups", [("a",), ("b", "a")])
def test_groups_of_erased_keys_are_left_out(groups: tuple[str, ...]) -> None:
    assert hidden_groups(PART, [erased("a")], groups) == (erased("a"),)


@pytest.mark.parametrize(
    ("columns", "groups"), [([], ("a",)), ([("a",)], ()), ([("a",), ("a", "b")], ("a",))]
)
def test_nothing_is_compared_where_any_group_may_have_lost_rows(
    columns: list[tuple[str, ...]], groups: tuple[str, ...]
) -> None:
    with pytest.raises(RowsUnreadable, match="0 rows of erased keys were removed"):
        hidden_groups(PART, [erased(*each) for each in columns], groups)


def test_only_keys_that_are_not_erased_are_checked_again() -> None:
    frame = pl.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    known = frozenset(key_bytes(frame, ("a", "b")))
    one, two = (
        ErasedKeys(names, frozenset(key_bytes(frame[row : row + 1], names)))
        for names, row in ((("b",), 0), (("b", "a"), 1))
    )
    other = ErasedKeys(("c",), frozenset(key_bytes(frame, ("b",))))
    left = keys_not_erased(known, ("a", "b"), [one, two, other])
    assert left == frozenset(key_bytes(frame[2:], ("a", "b")))
