"""Evaluate expectations on the batches of topics, pass by pass.

Theory. A pass reads each partition from the stored offset to the end that it had when the pass
began, at most `MESSAGES_PER_PASS` of them, so a pass is bounded and the next one continues. Counts
and the offset that they reach change together. So each written row is counted once, whatever dies
and however many processes count: a job that replays after a crash writes no row again, and a
dataset that is computed again writes to another topic, whose counts begin at nothing. Nothing waits
for a pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

import polars as pl

from fennel_core.connections.errors import ConnectionsError
from fennel_core.data_quality.failures import Failures
from fennel_core.data_quality.suites import Suites, TopicExpectations
from fennel_core.history.file_slices import TopicRecord
from fennel_core.history.kafka import LogBounds
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import Offset, TopicName, TopicPartition
from fennel_core.vocab.versions import IS_TOMBSTONE, SIGN, decode

log = logger(__name__)
MESSAGES_PER_PASS: Final = 5_000
"""Of one partition: bounds how long a pass takes after an outage."""
ROWS_AT_ONCE: Final = 50_000
"""Rows that are evaluated together: enough to be vectorized, and few enough to fit in memory."""
BYTES_AT_ONCE: Final = 64 << 20
"""Of these rows: of their messages, or of the columns that expectations read if that is more."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows that an expectation considered, and those of them that were not as expected."""

    evaluated: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class EvaluatedRange:
    """The counts of one range of a partition, by the digests of expectations."""

    source: TopicPartition
    first: Offset
    next_offset: Offset
    counts: Mapping[str, RowCounts]
    raised: Mapping[str, BaseException] = field(default_factory=dict)
    """What expectations raised for rows that they have not counted."""


class QualityCounts(Protocol):
    """The stored counts. Every method raises SystemUnavailable."""

    async def positions(self) -> Mapping[TopicPartition, Offset]:
        """Return the offset that the counts of each partition reach; absent: 0."""
        ...

    async def add(self, evaluated: EvaluatedRange, suite: TopicExpectations) -> bool:
        """Add the counts of a range if it begins at the stored offset; False if it does not."""
        ...

    async def keep_only(self, suites: Suites) -> None:
        """Forget the counts of topics and expectations that no branch has any more."""
        ...


class RowTopics(Protocol):
    """The topics; `history.kafka.TopicReader` is the real implementation. Its methods block."""

    def permitted_bounds(self, topics: Collection[TopicName]) -> Mapping[TopicPartition, LogBounds]:
        """Return the bounds of those topics that exist and can be read."""
        ...

    def tail(self, partition: TopicPartition, first: Offset, end: Offset) -> Iterator[TopicRecord]:
        """Yield the data records of [first, end)."""
        ...


async def evaluate_new_rows(
    counts: QualityCounts, suites: Suites, topics: RowTopics, failures: Failures
) -> int:
    """Evaluate what is not evaluated yet; return the number of messages.

    Whatever else a partition raises does not stop the others. Raises SystemUnavailable.
    """
    await counts.keep_only(suites)
    if not suites:
        return 0
    positions = await counts.positions()
    bounds = await asyncio.to_thread(topics.permitted_bounds, list(suites))
    failures.keep_only(suites, bounds.keys())
    messages = 0
    for source, bound in sorted(bounds.items()):
        position = positions.get(source, Offset(0))
        if position >= bound.end:
            continue
        suite = suites[source[0]]
        try:
            found = await asyncio.to_thread(_evaluate_range, topics, suite, source, position, bound)
            is_added = await counts.add(found, suite)
        except ConnectionsError:
            raise
        # The last line of one partition. A panic of Polars is not an `Exception`.
        except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  # isolated, and repeated
            failures.failed(source, suite, error)
            continue
        failures.evaluated(source, suite, found.raised)
        if is_added:
            messages += found.next_offset - position
    return messages


def _evaluate_range(
    topics: RowTopics,
    suite: TopicExpectations,
    source: TopicPartition,
    position: Offset,
    bound: LogBounds,
) -> EvaluatedRange:
    """Evaluate from the stored offset on. Blocks."""
    first = max(position, bound.first)
    if first > position > 0:
        log.warning(
            "rows were deleted before their expectations were evaluated",
            topic=source[0],
            part=source[1],
            first=position,
            next=first,
        )
    if first >= bound.end:
        return EvaluatedRange(source, position, bound.end, {})
    read, last = 0, first
    counts: dict[str, RowCounts] = dict.fromkeys(suite.expected, RowCounts())
    raised: dict[str, BaseException] = {}
    columns = frozenset[str]().union(*(each.columns for each in suite.expected.values()))
    waiting: list[pl.DataFrame] = []
    rows, size_bytes = 0, 0
    for record in islice(topics.tail(source, first, bound.end), MESSAGES_PER_PASS):
        read, last = read + 1, record.offset
        frame = _written_rows(decode(record.value), columns)
        waiting.append(frame)
        rows += frame.height
        size_bytes += max(len(record.value), int(frame.estimated_size()))
        if rows >= ROWS_AT_ONCE or size_bytes >= BYTES_AT_ONCE:
            raised |= _add(counts, suite, waiting)
            waiting, rows, size_bytes = [], 0, 0
    raised |= _add(counts, suite, waiting)
    end = bound.end if read < MESSAGES_PER_PASS else Offset(last + 1)
    return EvaluatedRange(source, position, end, counts, raised)


def _written_rows(versions: pl.DataFrame, columns: Collection[str]) -> pl.DataFrame:
    """Return the rows that were written: no retractions, and no marks of deleted keys."""
    written = versions.filter((pl.col(SIGN) > 0) & ~pl.col(IS_TOMBSTONE))
    return written.select([name for name in written.columns if name in columns])


def _add(
    counts: dict[str, RowCounts], suite: TopicExpectations, frames: Sequence[pl.DataFrame]
) -> dict[str, BaseException]:
    """Add the counts of rows; return what expectations raised instead of counting them."""
    raised: dict[str, BaseException] = {}
    if not frames:
        return raised
    rows = pl.concat(frames)
    for digest, expected in suite.expected.items():
        try:
            evaluated, failed = expected.apply(rows)
        # The last line of one expectation. A panic of Polars is not an `Exception`.
        except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  # isolated, and reported
            raised[digest] = error
            continue
        known = counts[digest]
        counts[digest] = RowCounts(known.evaluated + evaluated, known.failed + failed)
    return raised
