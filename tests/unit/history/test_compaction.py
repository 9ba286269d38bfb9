"""Which small files become one, and what a merged file contains."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.history import merging, parquet
from fennel_core.history.compaction import CompactionRule, Merge, plan_merges
from fennel_core.history.merging import MergeRefused, merge_files
from fennel_core.history.roll import TopicLayout
from fennel_core.history.store import HistoryFile
from fennel_core.vocab.ids import Micros, Offset, PartitionIndex
from tests.support.history_world import LAYOUT, TOPIC, batch

RULE = CompactionRule(file_bytes=16, file_rows=1000)


def files(*sizes: int, span: int = 0, gap_before: int | None = None) -> list[HistoryFile]:
    """Return adjacent files of ten offsets and of these sizes; file n begins at time 100 n."""
    return [
        HistoryFile(
            TOPIC,
            PartitionIndex(0),
            Offset(10 * n + (gap_before == n)),
            Offset(10 * n + 10),
            f"{n}",
            5,
            size,
            Micros(100 * n),
            Micros(100 * n + span),
        )
        for n, size in enumerate(sizes)
    ]


def planned(of: Sequence[HistoryFile], rule: CompactionRule = RULE) -> list[list[int]]:
    """Return the numbers of the files of each merge."""
    return [[int(file.object_key) for file in merge.files] for merge in plan_merges(of, rule)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), []),
        ((3,), []),
        ((3, 3), [[0, 1]]),
        ((9, 1, 1, 1, 20), [[1, 2, 3]]),
        ((9, 1, 1, 8), [[1, 2]]),
        ((4, 2, 2, 4, 4, 4), [[0, 1, 2, 3, 4]]),
        ((16, 16, 1, 1), [[2, 3]]),
        ((8, 4, 2, 1), []),
        ((8, 4, 2, 1, 1), [[0, 1, 2, 3, 4]]),
    ],
)
def test_a_file_is_rewritten_only_with_others_of_as_many_bytes(
    sizes: tuple[int, ...], expected: list[list[int]]
) -> None:
    assert planned(files(*sizes)) == expected


def test_neither_rows_nor_time_nor_a_gap_are_exceeded() -> None:
    five = files(1, 1, 1, 1, 1)
    assert planned(five, CompactionRule(16, 10)) == [[0, 1], [2, 3]], "five rows each"
    assert planned(five, CompactionRule(16, 1000, span_us=250)) == [[0, 1, 2], [3, 4]]
    with_gap = files(1, 1, 1, 1, 1, gap_before=2)
    assert planned(with_gap) == [[0, 1], [2, 3, 4]]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 20), max_size=30))
def test_repeated_merges_end_and_rewrite_a_row_a_few_times_only(sizes: list[int]) -> None:
    """A list of (size, rewrites of its rows at most)."""
    left = [(size, 0) for size in sizes]
    while True:
        merges = planned(files(*(size for size, _ in left)))
        if not merges:
            break
        kept = [[n] for n in range(len(left)) if not any(n in merge for merge in merges)]
        left = [
            left[numbers[0]]
            if len(numbers) == 1
            else (
                sum(left[n][0] for n in numbers),
                1 + max(left[n][1] for n in numbers),
            )
            for numbers in sorted(kept + merges)
        ]
    assert sum(size for size, _ in left) == sum(sizes)
    assert all(size <= 16 for size, rewrites in left if rewrites)
    assert max((rewrites for _, rewrites in left), default=0) <= 4, "2 ** 4 is the largest file"
    for pair in pairwise(size for size, _ in left):
        assert sum(pair) > 16 or pair[0] != pair[1], "equal neighbours that fit are one"


def rolled(
    records: list[tuple[Offset, bytes]], following: int, layout: TopicLayout = LAYOUT
) -> tuple[HistoryFile, bytes]:
    frame = parquet.file_frame(records, layout.keys)
    body = parquet.encode_file(frame)
    key = f"history/{TOPIC}/0/{records[0][0]}"
    times = (Micros(1), Micros(2)) if frame.height else (None, None)
    file = HistoryFile(
        TOPIC,
        PartitionIndex(0),
        records[0][0],
        Offset(following),
        key,
        frame.height,
        len(body),
        *times,
    )
    return file, body


def test_a_merged_file_is_what_one_roll_would_have_made() -> None:
    records = [(Offset(n), batch(10 * n, n % 4)) for n in range(9)]
    parts = [rolled(records[a:b], b) for a, b in ((0, 1), (1, 4), (4, 9))]
    stored = {file.object_key: body for file, body in parts}
    made = merge_files(Merge(tuple(file for file, _ in parts)), stored.get, stored.__setitem__)
    assert isinstance(made, HistoryFile)
    whole = parquet.file_frame(records, LAYOUT.keys)
    assert parquet.decode_file(stored[made.object_key]).equals(whole)
    assert (made.first_offset, made.next_offset, made.row_count) == (0, 9, whole.height)
    assert (made.min_ts, made.max_ts) == (1, 2), "the file without rows has no times"
    assert made.size_bytes == len(stored[made.object_key])
    assert made.object_key.startswith(f"history/{TOPIC}/0/{0:020d}-")


def test_files_that_do_not_fit_are_refused_and_nothing_is_written() -> None:
    first, second = (rolled([(Offset(n), batch(10 * n, 3))], n + 1) for n in range(2))
    other = parquet.encode_file(parquet.decode_file(second[1]).rename({"k": "other"}))
    fewer = parquet.encode_file(parquet.decode_file(second[1])[:2])
    for body, reason in ((None, "missing"), (other, "other columns"), (fewer, "has 2 rows")):
        stored = {first[0].object_key: first[1]}
        if body is not None:
            stored[second[0].object_key] = body
        before = set(stored)
        refused = merge_files(Merge((first[0], second[0])), stored.get, stored.__setitem__)
        assert isinstance(refused, MergeRefused)
        assert reason in refused.reason
        assert set(stored) == before


def test_rows_that_do_not_fit_in_memory_together_are_merged_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = [rolled([(Offset(n), batch(10 * n, rows))], n + 1) for n, rows in enumerate((90, 9, 9))]
    stored = {file.object_key: body for file, body in parts}
    sizes = [parquet.decode_file(body).estimated_size() for _, body in parts]
    merge = Merge(tuple(file for file, _ in parts))
    monkeypatch.setattr(merging, "DECODED_BYTES", sizes[0] + 1)
    made = merge_files(merge, stored.get, stored.__setitem__)
    assert isinstance(made, HistoryFile)
    assert (made.first_offset, made.next_offset, made.row_count) == (1, 3, 18)
    monkeypatch.setattr(merging, "DECODED_BYTES", sizes[0] + sizes[1])
    made = merge_files(merge, stored.get, stored.__setitem__)
    assert isinstance(made, HistoryFile)
    assert (made.first_offset, made.next_offset, made.row_count) == (0, 2, 99)
    monkeypatch.setattr(merging, "DECODED_BYTES", 1)
    refused = merge_files(merge, stored.get, stored.__setitem__)
    assert isinstance(refused, MergeRefused)
    assert refused.large


def test_a_damaged_file_is_refused() -> None:
    first, second = (rolled([(Offset(n), batch(10 * n, 3))], n + 1) for n in range(2))
    stored = {first[0].object_key: first[1], second[0].object_key: b"PAR1 damaged PAR1"}
    refused = merge_files(Merge((first[0], second[0])), stored.get, stored.__setitem__)
    assert isinstance(refused, MergeRefused)
    assert "cannot be read" in refused.reason


def test_a_merge_has_no_gap() -> None:
    with pytest.raises(AssertionError, match="leaves no gap"):
        Merge(tuple(files(1, 1, gap_before=1)))
