"""What ingest decides without touching the world: who is late, when a source has ended, which rows
a sample keeps.

Theory. *Lateness* is decided once, here, and recorded by the row being on the topic or not; nothing
downstream drops. W of a source is the largest event time accepted **before the last request that
was accepted**, and a row is late when it is older than W − disorder. The one request of delay is
the narrowest leniency under which the client's own watermark test holds: there a row of now and
then, in the next request, rows of 16 days ago (disorder 14 days) are all kept, and only a request
after them drops what is 40 days old. W never runs ahead of the database's clock: a row stamped in
the future is no evidence that time has passed, and must not close the door on everybody else for
good.

A *bounded* source ends when it accepted nothing for `idleness`; it then accepts nothing for ever,
because the time of the last accepted row never moves again. *Erased* keys are never taken again.
*Sampling* hashes the key bytes of the named columns, so a key is kept whole or not at all, whatever
server it meets.
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
    """What a source has accepted so far. Both times of events are None before its first row;
    `last_rows_us` is the database's clock.
    """

    watermark_us: Micros | None = None
    latest_us: Micros | None = None
    last_rows_us: Micros | None = None


@dataclass(frozen=True, slots=True)
class SourceAdvance:
    """What one transaction changed of a source: the largest event time it accepted (None: no row),
    and rows dropped as late.
    """

    identity: Identity
    latest_us: Micros | None
    discarded: int


def oldest_accepted(progress: SourceProgress, source: Source, now_us: Micros) -> int | None:
    """Event time from which on rows are in time; None while everything is. `now_us`: the database's
    clock when the stamp was taken.
    """
    return (
        None
        if progress.watermark_us is None
        else min(progress.watermark_us, now_us) - source.disorder_us
    )


def advance_progress(
    progress: SourceProgress, latest_us: Micros | None, now_us: Micros
) -> SourceProgress:
    """Progress after a transaction whose largest accepted event time is `latest_us`: what was the
    latest now counts for lateness.
    """
    if latest_us is None:
        return progress
    latest = latest_us if progress.latest_us is None else max(progress.latest_us, latest_us)
    return SourceProgress(progress.latest_us, Micros(latest), now_us)


def needs_recording(progress: SourceProgress, advance: SourceAdvance, source: Source) -> bool:
    """Does the advance say anything that is not recorded yet? (A quiet source costs no write.)"""
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
    """Has a bounded source been idle for longer than it may? A source ends only after its first
    row.
    """
    if not source.bounded or source.idleness_us is None or progress.last_rows_us is None:
        return False
    return now_us - progress.last_rows_us > source.idleness_us


def within_bounds(times_us: pl.Series, source: Source) -> pl.Series | None:
    """Which event times (integers, µs) lie within `since` and `until` (inclusive); None when all
    do.
    """
    if source.since_us is None and source.until_us is None:
        return None
    low = source.since_us if source.since_us is not None else times_us.min()
    high = source.until_us if source.until_us is not None else times_us.max()
    return times_us.is_between(low, high)


def not_erased(rows: pl.DataFrame, erased: Sequence[ErasedKeys]) -> pl.Series | None:
    """Which rows have no erased key; None when none has."""
    banned = np.zeros(len(rows), dtype=np.bool_)
    for each in erased:
        if set(each.columns) <= set(
            rows.columns
        ):  # an older version of the dataset may have had other keys
            banned |= np.fromiter(
                map(each.keys.__contains__, key_bytes(rows, each.columns)),
                dtype=np.bool_,
                count=len(rows),
            )
    return pl.Series(~banned) if banned.any() else None


def sampled(rows: pl.DataFrame, sampling: Sampling | None) -> pl.Series | None:
    """Which rows the sample keeps; None when it keeps all."""
    if sampling is None or sampling.rate >= 1.0:
        return None
    keys: Sequence[bytes] = key_bytes(rows, sampling.columns)
    hashes = np.fromiter(
        map(crc32, keys), dtype=np.uint64, count=len(keys)
    )  # its high bits: the low ones choose the partition
    return pl.Series(hashes < np.uint64(sampling.rate * HASH_SPACE))
