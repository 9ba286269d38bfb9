"""Decide which small files of history become one. Pure.

Theory. A partition with few messages makes a small file every few minutes, and each costs every
later reader a request and every reader of the index a row. Adjacent files are merged: the new file
has exactly their records and their range of offsets, so whatever was true of the rows stays true.

A file is rewritten only together with others that have at least as many bytes. So each rewrite at
least doubles the size of the file that a row is in, and a row is rewritten a number of times that
is logarithmic in the largest size, however often this runs.

Topics whose oldest files are deleted by age (requests, query logs) bound the time that a file
spans: a file is deleted when its youngest row is old enough.

Example, at most 16 MiB: of files with 9, 1, 1, 1 and 20 MiB the three of 1 MiB become one. With the
9 MiB they have 12 MiB, more than half of which would be the 9 MiB again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fennel_core.history.store import HistoryFile

MOST_FILES: Final = 256
"""Files of one merge: bounds the requests of a task. The result is merged again by a later run."""
SPANS_PER_RETENTION: Final = 10
"""Merged files of a topic with a retention span at most this part of it."""


@dataclass(frozen=True, slots=True)
class CompactionRule:
    """The largest file that a merge makes: bytes (as the sum of its parts) and rows.

    `span_us`: the longest time between its rows; None: any.
    """

    file_bytes: int
    file_rows: int
    span_us: int | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """Adjacent files of one partition, in order of offsets, that become one."""

    files: tuple[HistoryFile, ...]

    def __post_init__(self) -> None:
        assert len(self.files) > 1, "a merge has several files"
        for before, after in zip(self.files, self.files[1:], strict=False):
            assert adjacent(before, after), "a merge leaves no gap and crosses none"

    @property
    def row_count(self) -> int:
        return sum(file.row_count for file in self.files)


def adjacent(before: HistoryFile, after: HistoryFile) -> bool:
    """Return whether `after` begins where `before` ends."""
    same = (before.topic, before.part) == (after.topic, after.part)
    return same and before.next_offset == after.first_offset


def plan_merges(files: Sequence[HistoryFile], rule: CompactionRule) -> list[Merge]:
    """Return what to merge of the files of a partition, which are in order of offsets."""
    found, start = [], 0
    while start < len(files):
        run = _longest_run(files[start : start + MOST_FILES], rule)
        if run:
            found.append(Merge(tuple(run)))
        start += len(run) or 1
    return found


def _longest_run(files: Sequence[HistoryFile], rule: CompactionRule) -> Sequence[HistoryFile]:
    """Return the longest run from the first file on that is worth a merge; empty without one."""
    size = rows = largest = best = 0
    times: list[int] = []
    for count, file in enumerate(files, 1):
        size, rows = size + file.size_bytes, rows + file.row_count
        largest = max(largest, file.size_bytes)
        if file.min_ts is not None and file.max_ts is not None:
            times = [min([*times, file.min_ts]), max([*times, file.max_ts])]
        too_long = rule.span_us is not None and times and times[1] - times[0] > rule.span_us
        gap = count > 1 and not adjacent(files[count - 2], file)
        if size > rule.file_bytes or rows > rule.file_rows or too_long or gap:
            break
        if count > 1 and 2 * largest <= size:
            best = count
    return files[:best]
