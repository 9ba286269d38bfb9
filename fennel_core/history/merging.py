"""Make one file of several: what a task of a compaction does.

Theory. The rows of a file are sorted by key group and offset, and the files of a merge have
disjoint, growing offsets. So a stable sort of all rows by both gives the file that a roll of the
whole range would have made. Like a roll, a merge only proposes: the object counts when the driver
has replaced the rows of the index.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import polars as pl

from fennel_core.history import parquet
from fennel_core.history.compaction import Merge
from fennel_core.history.errors import FileUnusable
from fennel_core.history.parquet import GROUP, OFFSET
from fennel_core.history.roll import Put, object_key
from fennel_core.history.store import NO_DATASET, HistoryFile, searched_upto

DECODED_BYTES: Final = 256 << 20
"""Rows that a task merges in memory; it needs about three times as much."""
Get = Callable[[str], bytes | None]
"""Returns the content of an object, None if there is none."""


@dataclass(frozen=True, slots=True)
class MergeRefused:
    """The files are not merged and stay as they are. `large`: because any two are large enough."""

    reason: str
    large: bool = False


def read_file(file: HistoryFile, get: Get) -> pl.DataFrame:
    """Return the rows of a file. Raises FileUnusable."""
    body = get(file.object_key)
    if body is None:
        raise FileUnusable(f"object {file.object_key} is missing from the bucket")
    try:
        frame = parquet.decode_file(body)
    except (pl.exceptions.PolarsError, OSError, ValueError) as broken:
        raise FileUnusable(f"object {file.object_key} cannot be read: {broken}") from broken
    if frame.height != file.row_count:
        raise FileUnusable(
            f"object {file.object_key} has {frame.height} rows, and its row says {file.row_count}"
        )
    return frame


def merge_files(merge: Merge, get: Get, put: Put) -> HistoryFile | MergeRefused:
    """Upload one file of the first files of a merge that are small enough, and return it.

    In a file some kinds of rows have a hundredth of their size in memory, which is known only here.
    """
    chosen: list[HistoryFile] = []
    frames: list[pl.DataFrame] = []
    for file in merge.files:
        try:
            frame = read_file(file, get)
        except FileUnusable as unusable:
            return MergeRefused(str(unusable))
        if frames and frame.schema != frames[0].schema:
            return MergeRefused(f"object {file.object_key} has other columns than those before it")
        if frames and sum(each.estimated_size() for each in (*frames, frame)) > DECODED_BYTES:
            if len(frames) > 1:
                break
            chosen, frames = [], []
        chosen.append(file)
        frames.append(frame)
    if len(frames) < 2:
        return MergeRefused("no two of the files fit in memory together", large=True)
    rows = pl.concat(frames).sort(GROUP, OFFSET, maintain_order=True)
    first, last = chosen[0], chosen[-1]
    # A file without rows says nothing about those of the others.
    full = [file for file in chosen if file.row_count] or chosen
    searched = {file.searched_for for file in full}
    dataset = searched.pop() if len(searched) == 1 else NO_DATASET
    body = parquet.encode_file(rows)
    key = object_key(first.topic, first.part, first.first_offset, uuid.uuid4().hex)
    put(key, body)
    return HistoryFile(
        first.topic,
        first.part,
        first.first_offset,
        last.next_offset,
        key,
        rows.height,
        len(body),
        min((file.min_ts for file in chosen if file.min_ts is not None), default=None),
        max((file.max_ts for file in chosen if file.max_ts is not None), default=None),
        min(searched_upto(file, dataset) for file in full),
        sum(file.removed_rows for file in chosen),
        min(file.min_stamp for file in full),
        dataset,
        sum(file.expired_rows for file in chosen),
        max(file.expired_to for file in chosen),
        min(file.expiry_searched_to for file in full),
    )
