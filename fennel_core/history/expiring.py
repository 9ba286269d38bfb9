"""Remove the rows of a file of history that are older than `history`: what a task of a maintenance
run does.

Theory. A row has expired when both its event time and the time at which it was accepted are before
the oldest time that is needed. By event time alone, an import of old rows would be gone a week
later; by the other alone, rows that are dated in the future. Like any rewriting this only proposes.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from fennel_core.history import parquet
from fennel_core.history.errors import FileUnusable
from fennel_core.history.merging import Get, MergeRefused, read_file
from fennel_core.history.roll import Put, earliest_stamp, object_key
from fennel_core.history.store import HistoryFile
from fennel_core.vocab.ids import Micros
from fennel_core.vocab.position import COUNTER_BITS
from fennel_core.vocab.versions import POS

PARTS_OF_HISTORY: Final = 10


@dataclass(frozen=True, slots=True)
class TopicExpiry:
    """Which rows of a topic have expired: those before `oldest` by the column `timestamp` that were
    also accepted before. `kept_us`: for how long rows are needed.
    """

    timestamp: str
    oldest: Micros
    kept_us: int

    def is_due(self, file: HistoryFile) -> bool:
        """Return whether a file is to be searched.

        It is when rows of it may have expired a tenth of `kept_us` ago, and once in that time: a
        file whose rows expire one by one is written again ten times, not with every run.
        """
        before = self.oldest - self.kept_us // PARTS_OF_HISTORY
        return (
            file.min_ts is not None
            and file.min_ts < before
            and accepted_us(file.min_stamp) < before
            and file.expiry_searched_to <= before
        )

    def left(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows that are needed."""
        first_ms = -(-self.oldest // 1000)
        stamp = (max(first_ms, 0) << COUNTER_BITS).to_bytes(8, "big")
        expired = pl.col(self.timestamp).to_physical() < self.oldest
        return rows.filter(~(expired & (pl.col(POS) < pl.lit(stamp, pl.Binary))))


def accepted_us(stamp: int) -> int:
    """Return when a row with this stamp was accepted, µs since 1970."""
    return (stamp >> COUNTER_BITS) * 1000


def remove_expired(
    file: HistoryFile, expiry: TopicExpiry, get: Get, put: Put
) -> HistoryFile | MergeRefused:
    """Return the file without expired rows, under a new key if it had any."""
    searched = replace(file, expiry_searched_to=max(file.expiry_searched_to, expiry.oldest))
    try:
        frame = read_file(file, get)
    except FileUnusable as unusable:
        return MergeRefused(str(unusable))
    rows = expiry.left(frame)
    if rows.height == frame.height:
        return searched
    body = parquet.encode_file(rows)
    key = object_key(file.topic, file.part, file.first_offset, uuid.uuid4().hex)
    put(key, body)
    times = rows[expiry.timestamp].to_physical()
    return replace(
        searched,
        object_key=key,
        row_count=rows.height,
        size_bytes=len(body),
        min_ts=Micros(int(times.min())) if rows.height else None,  # type: ignore[arg-type]  # integers
        max_ts=Micros(int(times.max())) if rows.height else None,  # type: ignore[arg-type]  # integers
        min_stamp=earliest_stamp(rows) if rows.height else file.min_stamp,
        expired_rows=file.expired_rows + frame.height - rows.height,
        expired_to=max(file.expired_to, expiry.oldest),
    )
