"""Decide which rows of a source come in time: lateness, and the end of a source.

*Lateness* is decided once, here, and recorded by whether the row is on the topic; nothing
downstream drops late rows. The watermark W of a source is the largest event time accepted *before
the last accepted request*, and a row is late when it is older than W - disorder. The delay of one
request is the smallest leniency under which the client's own watermark test passes. Example, with a
disorder of 14 days: a row of today, then a request with rows of 16 days ago, which are all kept;
only a later request drops rows of 40 days ago. W never runs ahead of the database's clock: a row
stamped in the future is no evidence that time has passed, and must not make all later rows late.

A *bounded* source ends when it has accepted nothing for `idleness`. It never accepts rows again,
because the time of its last accepted row cannot change any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from fennel_core.vocab.ids import Identity, Micros
from fennel_core.wire.connectors import Source


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
