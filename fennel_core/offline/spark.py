"""Compute features as of a time per row with Spark.

Theory. Spark does what must not fit in memory: it moves rows between tasks, as blocks of thousands
(`blocks`), stores them in between, and repeats tasks that fail. Everything between two shuffles is
one pass over batches in Python (`batch_work`), and what arrives is sorted there, too
(`block_sort`). Rows are never collected: the driver sees schemas, counts and the keys of result
files.

    rows of the query ── MakeRequests ──┐
    versions of dataset 0 ──────────────┼─ blocks by KEY ─ sorted by ORDER ─ AnswerRequests ─ …
    versions of dataset 1 ──────────────┘

The number of a row decides where its result is: partition n of the result has the n-th run of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final, Protocol

import polars as pl
from pyspark.sql import DataFrame, SparkSession

from fennel_core.connections.spark import session_builder
from fennel_core.offline.batch_work import StepTools, answered, finished_rows, given_rows, run_steps
from fennel_core.offline.block_sort import BlockSort
from fennel_core.offline.blocks import (
    BLOCKS,
    PARTITION,
    ROWS_KIND,
    BlockLayout,
    ByBatch,
    ByHash,
    ByRun,
    Placement,
    write_blocks,
)
from fennel_core.offline.failure_counts import FailureCount, NewFailures
from fennel_core.offline.lookup_rounds import Cut, batch_rows
from fennel_core.offline.planned_query import OfflineQuery
from fennel_core.offline.query_steps import (
    BatchStep,
    CallInRounds,
    OfflineStep,
    ShuffleByKey,
    ShuffleByRow,
    live_registers,
    steps_of,
)
from fennel_core.offline.register_types import register_types
from fennel_core.offline.rows import ROW
from fennel_core.offline.shuffle_layouts import called_layout, result_layout, shuffle_layout
from fennel_core.offline.spark_rounds import CallRounds, DoneRows, RoundWork
from fennel_core.offline.task_tools import TaskTools
from fennel_core.offline.timeline import KEY
from fennel_core.offline.version_pieces import VersionPiece
from fennel_core.offline.version_work import VersionReader, numbers
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import JobId, Micros

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_BYTES: Final = 32 << 20
"""Blocks that a Python worker receives at once."""
TASK_ATTEMPTS: Final = 2
"""A task whose worker was killed is retried; all else fails the job."""


def session(settings: Settings, app_name: str) -> SparkSession:
    """Return a Spark application for offline queries: local unless another master is configured."""
    return (
        session_builder(settings, app_name=app_name, local_master=f"local[*,{TASK_ATTEMPTS}]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.executorEnv.POLARS_MAX_THREADS", 1)  # a task has one core
        .config("spark.sql.execution.arrow.maxBytesPerBatch", ARROW_BYTES)
        .getOrCreate()
    )


class SparkRun:
    """Computes one query.

    `pieces`: the versions of the input of each job. `latest`: the time of the latest row.
    `partitions`: of each shuffle. `failures`: counts the rows that have failed so far.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: OfflineQuery,
        pieces: Mapping[JobId, Sequence[VersionPiece]],
        tools: TaskTools,
        latest: Micros,
        partitions: int,
        failures: FailureCount | None = None,
    ) -> None:
        self._spark, self._query, self._tools = spark, query, tools
        self._versions = VersionReader(spark, pieces, latest)
        self._partitions, self._failures = partitions, failures
        self._program = query.planned.program()
        self._types = register_types(self._program)
        self._steps = steps_of(self._program, query.specs)
        self._live = live_registers(self._program, self._steps)

    @property
    def result(self) -> BlockLayout:
        """The columns of finished rows."""
        return result_layout(self._program, self._types)

    def run(self, given: GivenRows, placement: ByRun) -> DataFrame:
        """Return the blocks of the finished rows, of which each partition has a run.

        User code that looks datasets up is called before this returns.
        """
        read: GivenRows | BlockSort | DoneRows = given
        frame, done = numbers(self._spark, len(given)), 0
        for number, step in enumerate(self._steps):
            if isinstance(step, CallInRounds):
                rounds = self._rounds(step, number, placement.rows)
                work = rounds.work
                asked = self._worked(frame, read, (done, number), work.layout, work.by)
                frame, read, done = rounds.run(asked), rounds.made, number + 1
            if not isinstance(step, ShuffleByKey | ShuffleByRow):
                continue
            following = shuffle_layout(step, self._live[number - 1], self._types)
            by = ByHash(KEY if isinstance(step, ShuffleByKey) else ROW, self._partitions)
            frame = self._worked(frame, read, (done, number), following, by)
            if isinstance(step, ShuffleByKey):
                versions = self._versions.blocks(step.group.sources, following, by)
                frame = reduce(DataFrame.union, versions, frame)
            frame, read = frame.repartitionById(by.partitions, PARTITION), BlockSort(following, by)
            done = number if isinstance(step, ShuffleByKey) else number + 1
        frame = self._worked(frame, read, (done, len(self._steps)), self.result, placement)
        return frame.repartitionById(placement.partitions, PARTITION)

    def _rounds(self, step: CallInRounds, number: int, rows: int) -> CallRounds:
        layout = called_layout(step, self._live[number], self._types)
        by = ByBatch(batch_rows(rows, self._partitions), self._partitions)
        cut = Cut(by.rows)
        work = RoundWork(self._query, self._tools, number, layout, by, cut, self._failures)
        return CallRounds(step, work, self._versions)

    def _worked(
        self,
        frame: DataFrame,
        read: GivenRows | BlockSort | DoneRows,
        steps: tuple[int, int],
        layout: BlockLayout,
        placement: Placement,
    ) -> DataFrame:
        work = StepWork(self._query, self._tools, *steps, read, layout, placement, self._failures)
        return frame.mapInArrow(work.run, BLOCKS)


class GivenRows(Protocol):
    """The rows of a query, with `ROW`, `AT` and the inputs by name; it is pickled to tasks."""

    def __len__(self) -> int:
        """The number of parts."""
        ...

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
        """Yield the rows of parts, given batches with a column of their numbers."""
        ...


@dataclass(frozen=True, slots=True)
class StepWork:
    """Runs the steps [first, stop) in a task, and writes blocks of a layout.

    The first step may be the shuffle that the rows come from.
    """

    query: OfflineQuery
    tools: TaskTools
    first: int
    stop: int
    read: GivenRows | BlockSort | DoneRows
    layout: BlockLayout
    placement: Placement
    failures: FailureCount | None = None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield blocks (`BLOCKS`)."""
        program = self.query.planned.program()
        types, steps = register_types(program), steps_of(program, self.query.specs)
        between, new = steps[self.first : self.stop], NewFailures()
        with self.tools.open(self.query.erasures) as tools:
            frames = new.before(self._rows(batches, between, tools))
            if self.first == 0:
                frames = (given_rows(frame, program) for frame in frames)
            frames = run_steps(
                [step for step in between if isinstance(step, BatchStep)],
                *(frames, types, tools),
            )
            if self.stop == len(steps):
                frames = (finished_rows(frame, program, types) for frame in frames)
            yield from write_blocks(new.after(frames), self.layout, ROWS_KIND, self.placement)
        if self.failures is not None:
            self.failures.add(new.count)

    def _rows(
        self, batches: Iterator[pa.RecordBatch], steps: Sequence[OfflineStep], tools: StepTools
    ) -> Iterator[pl.DataFrame]:
        match steps, self.read:
            case [ShuffleByKey(group), *_], BlockSort() as blocks:
                return answered(blocks.timeline(batches), group, tools)
            case _:
                return self.read.rows(batches)
