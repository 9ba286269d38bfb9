"""Decide which rows of a source are accepted: lateness, end of a source, erasure, sampling.

*Lateness* is decided once, here, and recorded by whether the row is on the topic; nothing
downstream drops late rows. The watermark W of a source is the largest event time accepted *before
the last accepted request*, and a row is late when it is older than W - disorder. The delay of one
request is the smallest leniency under which the client's own watermark test passes. Example, with a
disorder of 14 days: a row of today, then a request with rows of 16 days ago, which are all kept;
only a later request drops rows of 40 days ago. W never runs ahead of the database's clock: a row
stamped in the future is no evidence that time has passed, and must not make all later rows late.

A *bounded* source ends when it has accepted nothing for `idleness`. It never accepts rows again,
because the time of its last accepted row cannot change any more. Rows with *erased* keys are never
accepted. *Sampling* hashes the key bytes of the named columns, so every server keeps or drops a key
as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import polars as pl

from fennel_core.connections.erasures import ErasedKeys
from fennel_core.vocab.ids import Identity, Micros
from fennel_core.vocab.keys import key_bytes
from fennel_core.wire.connectors import Sampling, Source

HASH_SPACE = 1 << 32


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Largest event times that a source has accepted; all None before its first row.

    `watermark_us` excludes the last accepted request, `latest_us` includes it. `last_rows_us` is
    the database's clock when that request was recorded.
    """

    watermark_us: Micros | None = None
    latest_us: Micros | None = None
    last_rows_us: Micros | None = None


@dataclass(frozen=True, slots=True)
class SourceAdvance:
    """The effect of one transaction on a source.

    `latest_us` is the largest event time it accepted (None: no row), `discarded` the number of late
    rows it dropped.
    """

    identity: Identity
    latest_us: Micros | None
    discarded: int


def oldest_accepted(progress: SourceProgress, source: Source, now_us: Micros) -> int | None:
    """Return the smallest event time that is not late; None before the first watermark.

    `now_us` is the database's clock when the stamp was taken.
    """
    return (
        None
        if progress.watermark_us is None
        else min(progress.watermark_us, now_us) - source.disorder_us
    )


def advance_progress(
    progress: SourceProgress, latest_us: Micros | None, now_us: Micros
) -> SourceProgress:
    """Return the progress after a transaction whose largest accepted event time is `latest_us`.

    The previous `latest_us` becomes the watermark.
    """
    if latest_us is None:
        return progress
    latest = latest_us if progress.latest_us is None else max(progress.latest_us, latest_us)
    return SourceProgress(progress.latest_us, Micros(latest), now_us)


def needs_recording(progress: SourceProgress, advance: SourceAdvance, source: Source) -> bool:
    """Return whether an advance changes the stored progress; saves writes for quiet sources."""
    if advance.discarded:
        return True
    if advance.latest_us is None:
        return False
    return (
        source.bounded
        or progress.latest_us is None
        or advance.latest_us > progress.latest_us
        or progress.watermark_us != progress.latest_us
    )


def has_ended(progress: SourceProgress, source: Source, now_us: Micros) -> bool:
    """Return whether a bounded source has exceeded its idleness. It has to have a row first."""
    if not source.bounded or source.idleness_us is None or progress.last_rows_us is None:
        return False
    return now_us - progress.last_rows_us > source.idleness_us


def within_bounds(times_us: pl.Series, source: Source) -> pl.Series | None:
    """Return a mask of event times (µs) within `since` and `until`, both inclusive.

    None: the source has no bounds.
    """
    if source.since_us is None and source.until_us is None:
        return None
    low = source.since_us if source.since_us is not None else times_us.min()
    high = source.until_us if source.until_us is not None else times_us.max()
    return times_us.is_between(low, high)


def not_erased(rows: pl.DataFrame, erased: Sequence[ErasedKeys]) -> pl.Series | None:
    """Return a mask of rows without an erased key; None when no row has one."""
    erased_rows = np.zeros(len(rows), dtype=np.bool_)
    for each in erased:
        # An older version of the dataset may have had other keys.
        if set(each.columns) <= set(rows.columns):
            erased_rows |= np.fromiter(
                map(each.keys.__contains__, key_bytes(rows, each.columns)),
                dtype=np.bool_,
                count=len(rows),
            )
    return pl.Series(~erased_rows) if erased_rows.any() else None


def sampled(rows: pl.DataFrame, sampling: Sampling | None) -> pl.Series | None:
    """Return a mask of the rows in the sample; None when it keeps all rows."""
    if sampling is None or sampling.rate >= 1.0:
        return None
    keys: Sequence[bytes] = key_bytes(rows, sampling.columns)
    # The comparison below uses the high bits: the low ones choose the partition.
    hashes = np.fromiter(map(crc32, keys), dtype=np.uint64, count=len(keys))
    return pl.Series(hashes < np.uint64(sampling.rate * HASH_SPACE))
