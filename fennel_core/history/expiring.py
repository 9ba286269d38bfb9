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
    also accepted before. `kept_us`: for how long rows are needed. `keys`: the key columns of a
    keyed dataset, of which the last expired version of each key stays (`replaced_versions`).
    """

    timestamp: str
    oldest: Micros
    kept_us: int
    keys: tuple[str, ...] = ()

    @property
    def due_before(self) -> Micros:
        """The event time that a row must have, and be accepted before, for its file to be due."""
        return Micros(self.oldest - self.kept_us // PARTS_OF_HISTORY)

    def is_due(self, file: HistoryFile) -> bool:
        """Return whether a file is to be searched.

        It is when rows of it may have expired a tenth of `kept_us` ago, and once in that time: a
        file whose rows expire one by one is written again ten times, not with every run.
        """
        return may_have(file, self.due_before) and file.expiry_searched_to <= self.due_before

    def expired(self) -> pl.Expr:
        """Return which rows have expired."""
        first_ms = -(-self.oldest // 1000)
        stamp = (max(first_ms, 0) << COUNTER_BITS).to_bytes(8, "big")
        older = pl.col(self.timestamp).to_physical() < self.oldest
        return older & (pl.col(POS) < pl.lit(stamp, pl.Binary))


def may_have(file: HistoryFile, before: Micros) -> bool:
    """Return whether a file may have a row from before a time that was also accepted before."""
    return file.min_ts is not None and file.min_ts < before and accepted_us(file) < before


def accepted_us(file: HistoryFile) -> int:
    """Return before when no row of a file was accepted, µs since 1970."""
    return (file.min_stamp >> COUNTER_BITS) * 1000


def remove_expired(
    file: HistoryFile, expiry: TopicExpiry, get: Get, put: Put
) -> HistoryFile | MergeRefused:
    """Return the file without expired rows, under a new key if it had any."""
    try:
        frame = read_file(file, get)
    except FileUnusable as unusable:
        return MergeRefused(str(unusable))
    return with_rows(file, frame.filter(~expiry.expired()), expiry, put)


def with_rows(file: HistoryFile, rows: pl.DataFrame, expiry: TopicExpiry, put: Put) -> HistoryFile:
    """Return a file with the rows that are left of it, under a new key if they are fewer."""
    searched = replace(file, expiry_searched_to=max(file.expiry_searched_to, expiry.oldest))
    if rows.height == file.row_count:
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
        expired_rows=file.expired_rows + file.row_count - rows.height,
        expired_to=max(file.expired_to, expiry.oldest),
    )
