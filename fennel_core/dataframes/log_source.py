"""What there is to read of the query log of a workspace, and which part of it a read selects.

It has no Spark: the definition server plans reads of programs that have only a token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from fennel_core.connections import erasures
from fennel_core.connections.postgres import Pool
from fennel_core.dataframes.planning import SliceReader
from fennel_core.history.errors import ReadFailed
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.vocab import query_log_blocks
from fennel_core.vocab.ids import Micros, TopicName, WorkspaceId
from fennel_core.vocab.query_log_blocks import BRANCH, FIRST, LAST, TIMESTAMP, WORKFLOW

TOPIC: Final = "SELECT id FROM asset WHERE workspace = %s AND kind = 'querylog' AND state = 'live'"


@dataclass(frozen=True, slots=True)
class LogSelection:
    """The rows that a read selects: of a workflow (all if empty) and a branch, in [from, until)."""

    workflow: str
    branch: str
    from_us: Micros | None
    until_us: Micros | None
    features: tuple[str, ...]
    """The features to read, in order; empty: all that the selected rows have."""

    def may_overlap(self, first_us: int, last_us: int) -> bool:
        """Return whether a time range, including its ends, has a selected moment."""
        return (self.until_us is None or first_us < self.until_us) and (
            self.from_us is None or last_us >= self.from_us
        )

    def of_blocks(self) -> pl.Expr:
        """Return which blocks of a frame may have selected rows."""
        chosen = pl.col(BRANCH) == self.branch
        if self.workflow:
            chosen &= pl.col(WORKFLOW) == self.workflow
        if self.from_us is not None:
            chosen &= pl.col(LAST).to_physical() >= self.from_us
        if self.until_us is not None:
            chosen &= pl.col(FIRST).to_physical() < self.until_us
        return chosen

    def of_rows(self) -> pl.Expr:
        """Return which rows of such a block are selected."""
        chosen = pl.lit(True)  # a literal column
        if self.from_us is not None:
            chosen &= pl.col(TIMESTAMP).to_physical() >= self.from_us
        if self.until_us is not None:
            chosen &= pl.col(TIMESTAMP).to_physical() < self.until_us
        return chosen


@dataclass(frozen=True, slots=True)
class LogSource:
    """What there is to read of a query log, and the subjects whose rows are left out."""

    slices: tuple[TopicSlice, ...]
    erased: frozenset[bytes]

    def pieces(self, selection: LogSelection) -> tuple[TopicSlice, ...]:
        """Return the files and tails that may have selected rows, each by itself."""
        found: list[TopicSlice] = []
        for part in self.slices:
            files = (
                file
                for file in part.files
                if file.min_ts is not None
                and file.max_ts is not None
                # A block is known by its last query.
                and selection.may_overlap(file.min_ts - query_log_blocks.SPAN_US, file.max_ts)
            )
            found += replace(part, files=tuple(files)).pieces()
        return tuple(found)


async def find_log(pool: Pool, workspace: WorkspaceId, slices_of: SliceReader) -> LogSource:
    """Return what there is to read of the query log of a workspace as of now; ReadFailed."""
    erased = frozenset(
        query_log_blocks.subject(dataset, each.columns, key)
        for dataset, kinds in (await erasures.read(pool, workspace)).get(workspace, {}).items()
        for each in kinds
        for key in each.keys
    )
    async with pool.connection() as connection:
        found = await (await connection.execute(TOPIC, (workspace,))).fetchall()
    if not found:
        raise ReadFailed(
            f"workspace `{workspace}` has no query log yet: query with `log=True`, and read "
            "again some seconds later [read-query-log]"
        )
    return LogSource(await slices_of(TopicName(str(found[0][0]))), erased)
