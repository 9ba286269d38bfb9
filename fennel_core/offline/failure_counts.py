"""Count the rows of a query that fail in tasks, while its job runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import polars as pl

from fennel_core.offline.rows import REASON


class FailureCount(Protocol):
    """An accumulator of Spark: sums up over the tasks that have ended.

    A task that Spark repeats counts its rows again.
    """

    @property
    def value(self) -> int:
        """The sum, in the driver."""
        ...

    def add(self, term: int) -> None:
        """Add to it, in a task."""
        ...


class NewFailures:
    """Counts the rows that fail in a task: those that leave it with a reason and came without."""

    count = 0

    def before(self, frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Yield the batches that come."""
        for frame in frames:
            self.count -= _failed(frame)
            yield frame

    def after(self, frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Yield the batches that leave."""
        for frame in frames:
            self.count += _failed(frame)
            yield frame


def _failed(frame: pl.DataFrame) -> int:
    return frame.height - frame[REASON].null_count() if REASON in frame.columns else 0
