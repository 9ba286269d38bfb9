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

import polars as pl

from fennel_core.history import parquet
from fennel_core.history.compaction import Merge
from fennel_core.history.parquet import GROUP, OFFSET
from fennel_core.history.roll import Put, object_key
from fennel_core.history.store import HistoryFile

Get = Callable[[str], bytes | None]
"""Returns the content of an object, None if there is none."""


@dataclass(frozen=True, slots=True)
class MergeRefused:
    """The files cannot be merged and stay as they are."""

    reason: str


def merge_files(merge: Merge, get: Get, put: Put) -> HistoryFile | MergeRefused:
    """Upload the file of a merge and return it."""
    frames: list[pl.DataFrame] = []
    for file in merge.files:
        body = get(file.object_key)
        if body is None:
            return MergeRefused(f"object {file.object_key} is missing from the bucket")
        frame = parquet.decode_file(body)
        if frame.height != file.row_count:
            return MergeRefused(
                f"object {file.object_key} has {frame.height} rows, and its row says "
                f"{file.row_count}"
            )
        if frames and frame.schema != frames[0].schema:
            return MergeRefused(f"object {file.object_key} has other columns than those before it")
        frames.append(frame)
    rows = pl.concat(frames).sort(GROUP, OFFSET, maintain_order=True)
    first, last = merge.files[0], merge.files[-1]
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
        min((file.min_ts for file in merge.files if file.min_ts is not None), default=None),
        max((file.max_ts for file in merge.files if file.max_ts is not None), default=None),
    )
