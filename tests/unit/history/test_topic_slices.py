"""Slices of topics: what is read of a partition, in which pieces, and what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.history.store import HistoryFile
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex, TopicName

TOPIC = TopicName("w.topic.abc.1")


def file(first: int, following: int, min_ts: int | None = 0) -> HistoryFile:
    ts = None if min_ts is None else Micros(min_ts)
    rows = 0 if min_ts is None else 5
    return HistoryFile(
        TOPIC, PartitionIndex(0), Offset(first), Offset(following), f"f-{first}", rows, 1, ts, ts
    )


def slice_of(*files: HistoryFile, tail_first: int, end: int) -> TopicSlice:
    return TopicSlice((TOPIC, PartitionIndex(0)), files, Offset(tail_first), Offset(end), "root/")


def test_the_pieces_are_each_file_and_the_tail() -> None:
    whole = slice_of(file(0, 40), file(40, 75), tail_first=75, end=90)
    pieces = whole.pieces()
    assert [piece.files for piece in pieces] == [(whole.files[0],), (whole.files[1],), ()]
    assert [(piece.tail_first, piece.end) for piece in pieces] == [(90, 90), (90, 90), (75, 90)]


def test_files_without_rows_and_an_empty_tail_are_no_pieces() -> None:
    assert slice_of(file(0, 40, None), tail_first=40, end=40).pieces() == ()


def test_a_file_with_later_rows_only_is_left_out() -> None:
    whole = slice_of(file(0, 40, 7), file(40, 75, 8), file(75, 80, None), tail_first=80, end=80)
    assert whole.until(Micros(7)).files == whole.files[:1]


@pytest.mark.parametrize(
    ("part", "begins", "gap"),
    [
        (slice_of(file(0, 40), tail_first=40, end=90), 0, None),
        (slice_of(file(10, 40), tail_first=40, end=90), 10, None),
        (slice_of(file(0, 40), tail_first=50, end=90), 0, (40, 50)),
        (slice_of(file(0, 40), file(45, 60), tail_first=60, end=90), 0, (40, 45)),
        (slice_of(tail_first=0, end=90), 0, None),
        (slice_of(tail_first=50, end=90), 50, None),
        (slice_of(file(0, 95), tail_first=90, end=90), 0, None),
    ],
    ids=["complete", "pruned", "gap", "old-gap", "no-history", "expired", "rolled-further"],
)
def test_what_is_missing_is_known(
    part: TopicSlice, begins: int, gap: tuple[int, int] | None
) -> None:
    assert (part.begins, part.gap) == (begins, gap)
    assert replace(part, root="").begins == begins


@pytest.mark.parametrize(
    ("offset", "gap"),
    [(0, (10, 20)), (19, (10, 20)), (20, (150, 200)), (199, (150, 200)), (200, (300, 310))],
)
def test_each_gap_behind_an_offset_is_known(offset: int, gap: tuple[int, int]) -> None:
    files = file(0, 10), file(20, 150), file(200, 300)
    assert slice_of(*files, tail_first=310, end=400).gap_behind(offset) == gap
    assert slice_of(*files, tail_first=310, end=400).gap_behind(310) is None
