"""Remove the rows of erased keys from a file of history: what a task of a maintenance run does.

Theory. Readers hide the rows of erased keys already, so a file without them gives the same content
at every time. A file keeps its range of offsets; it says how many rows it has lost, because a
recompute that reads it does without them, and up to which erasure its rows were searched. Numbers
of erasures grow in the order in which erasures become visible, so a file is searched again only
after a later one.

Like a merge this only proposes: the driver changes the index. A file without such rows is returned
as it is, with the number of the erasure.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

import polars as pl

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.history import parquet
from fennel_core.history.errors import FileUnusable
from fennel_core.history.merging import Get, MergeRefused, read_file
from fennel_core.history.roll import Put, object_key
from fennel_core.history.store import HistoryFile
from fennel_core.vocab.ids import DatasetName
from fennel_core.vocab.keys import key_bytes


@dataclass(frozen=True, slots=True)
class TopicErasures:
    """The erased keys of a dataset, up to the erasure with the number `newest`."""

    dataset: DatasetName
    keys: tuple[ErasedKeys, ...]
    newest: int


def remove_erased(
    file: HistoryFile, erasures: TopicErasures, get: Get, put: Put
) -> HistoryFile | MergeRefused:
    """Return the file without rows of erased keys, under a new key if it had any."""
    searched = replace(file, searched_to=erasures.newest, searched_for=erasures.dataset)
    if not file.row_count:
        return searched
    try:
        frame = read_file(file, get)
    except FileUnusable as unusable:
        return MergeRefused(str(unusable))
    rows = frame
    for erased in erasures.keys:
        rows = _without(rows, erased)
    if rows.height == frame.height:
        return searched
    body = parquet.encode_file(rows)
    key = object_key(file.topic, file.part, file.first_offset, uuid.uuid4().hex)
    put(key, body)
    return replace(
        searched,
        object_key=key,
        row_count=rows.height,
        size_bytes=len(body),
        # The other times stay as bounds: their column is not known here.
        min_ts=file.min_ts if rows.height else None,
        max_ts=file.max_ts if rows.height else None,
        removed_rows=file.removed_rows + frame.height - rows.height,
    )


def _without(rows: pl.DataFrame, erased: ErasedKeys) -> pl.DataFrame:
    """Return the rows that an erasure leaves; all if they lack a column, as reads do."""
    columns = list(erased.columns)
    if not set(columns) <= set(rows.columns) or rows.is_empty():
        return rows
    distinct = rows.select(columns).unique()
    gone = distinct.filter(
        pl.Series([key in erased.keys for key in key_bytes(distinct, erased.columns)])
    )
    if gone.is_empty():
        return rows
    return rows.join(gone, on=columns, how="anti", nulls_equal=True, maintain_order="left")
