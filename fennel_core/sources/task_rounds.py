"""Rounds of one task, as often as `every` says: how files and Delta tables are read.

The task lists what is left, reads and writes, and reports in one batch what became of rows and what
is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pyarrow as pa
import structlog

from fennel_core.sources.feeds import FeedProgress
from fennel_core.sources.kafka import read_positions
from fennel_core.sources.kinds import StartedBy
from fennel_core.sources.rounds import RoundFailed, Rounds
from fennel_core.sources.store import FeedPartition
from fennel_core.sources.task import COUNTS, COUNTS_DDL

ROUND_S: Final = 20.0
"""How long a round reads before it gives way to other sources."""
READ, LEFT, WAITING, UNREAD, FAILED = "read", "left", "waiting", "unread", "failed"
ROUND_DDL: Final = (
    f"{COUNTS_DDL}, {READ} bigint, {LEFT} bigint, {WAITING} bigint, {UNREAD} array<string>, "
    f"{FAILED} string"
)
ROUND: Final = pa.schema(
    [
        *COUNTS,
        (READ, pa.int64()),
        (LEFT, pa.int64()),
        (WAITING, pa.int64()),
        (UNREAD, pa.list_(pa.string())),
        (FAILED, pa.string()),
    ]
)
"""What became of rows, and in the last row how many were read, and what is left, files or versions:
of them `WAITING` could not be read, for reasons of which some are `UNREAD`. `FAILED`: why a round
of a limited source was not read to its end.
"""
NAMED: Final = 10
"""Files that could not be read whose reasons are logged."""
MICROS: Final = 1e6
log = structlog.get_logger(__name__)


def rewinds_of(by: StartedBy, partition: FeedPartition) -> int:
    """Return the rewinds of the position that a feed begins at; blocks."""
    at = partition.position_partition
    position = read_positions(by.settings, by.feed.positions, at).get(partition.key)
    return 0 if position is None else position.rewinds


class TaskRounds(Rounds):
    """Runs the rounds of a feed; `read` returns rows of `ROUND`, and runs in a worker."""

    def __init__(self, by: StartedBy, read: Callable[[], pa.RecordBatch]) -> None:
        every_s = (by.feed.every_us or 0) / MICROS
        self._pause_s = max(by.settings.source_trigger_ms / 1000, every_s)
        self._task, self._more = round_task(read), False
        super().__init__(by, str(by.feed.raw_topic))

    def read(self) -> FeedProgress:
        """Run a round; what is left and can be read is read at once."""
        frame = self.by.spark.range(1, numPartitions=1).mapInArrow(self._task, ROUND_DDL)
        found = frame.toArrow()
        left = found.column(LEFT)
        self.by.count_rows(found.filter(left.is_null()).select(COUNTS.names))
        (end,) = found.filter(left.is_valid()).drop_columns(COUNTS.names).to_pylist()
        if end[FAILED] is not None:
            raise RoundFailed(end[FAILED], end[READ])
        if end[WAITING]:
            log.warning(
                "files of a source could not be read; they are tried again",
                source=self.by.feed.title,
                workspace=self.by.feed.workspace,
                files=end[WAITING],
                reasons=end[UNREAD],
            )
        self._more = end[LEFT] > end[WAITING]
        return FeedProgress(end[LEFT], rows=end[READ])

    def rest(self, took_s: float) -> None:
        self.stopped.wait(0.0 if self._more else max(0.0, self._pause_s - took_s))


def round_task(
    read: Callable[[], pa.RecordBatch],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that a worker runs for a round."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield read()

    return run


def round_end(
    counts: pa.RecordBatch, rows: int, left: int | str, unread: Mapping[str, str]
) -> pa.RecordBatch:
    """Return the rows of `ROUND`. `rows`: that were read; `left`: how much is, or why the round
    failed; `unread`: why files were not read, by key.
    """
    reasons = [f"{key}: {reason}" for key, reason in list(unread.items())[:NAMED]]
    failed = left if isinstance(left, str) else None
    of = 0 if isinstance(left, str) else left
    end = {READ: rows, LEFT: of, WAITING: len(unread), UNREAD: reasons, FAILED: failed}
    return pa.RecordBatch.from_pylist([*counts.to_pylist(), end], schema=ROUND)
