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
from fennel_core.history.parquet import TimeLimit
from fennel_core.offline.batch_work import StepTools, answered, finished_rows, given_rows, run_steps
from fennel_core.offline.block_sort import BlockSort
from fennel_core.offline.blocks import (
    BLOCKS,
    PARTITION,
    ROWS_KIND,
    BlockLayout,
    ByHash,
    ByRun,
    Placement,
    write_blocks,
)
from fennel_core.offline.lookup_groups import LookupGroup, group_versions
from fennel_core.offline.planned_query import OfflineQuery
from fennel_core.offline.query_steps import (
    OfflineStep,
    ShuffleByKey,
    ShuffleByRow,
    live_registers,
    steps_of,
)
from fennel_core.offline.register_types import register_types
from fennel_core.offline.rows import REASON, ROW
from fennel_core.offline.shuffle_layouts import result_layout, shuffle_layout
from fennel_core.offline.sources import LookupSource
from fennel_core.offline.task_tools import TaskTools
from fennel_core.offline.timeline import KEY
from fennel_core.offline.version_pieces import VersionPiece
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import JobId, Micros
from fennel_core.vocab.versions import META

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_BYTES: Final = 32 << 20
"""Blocks that a Python worker receives at once."""
TASK_ATTEMPTS: Final = 2
"""A task whose worker was killed is retried; all else fails the job."""
READ_TASKS: Final = 64
"""Tasks that read the rows of the query, or the versions of one dataset; each reads many pieces."""


def session(settings: Settings, app_name: str) -> SparkSession:
    """Return a Spark application for offline queries: local unless another master is configured."""
    return (
        session_builder(settings, app_name=app_name, local_master=f"local[*,{TASK_ATTEMPTS}]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.executorEnv.POLARS_MAX_THREADS", 1)  # a task has one core
        .config("spark.sql.execution.arrow.maxBytesPerBatch", ARROW_BYTES)
        .getOrCreate()
    )


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
        self._spark, self._query, self._pieces, self._tools = spark, query, pieces, tools
        self._latest, self._partitions, self._failures = latest, partitions, failures
        self._program = query.planned.program()
        self._types = register_types(self._program)
        self._steps = steps_of(self._program, query.specs)
        self._live = live_registers(self._program, self._steps)

    @property
    def result(self) -> BlockLayout:
        """The columns of finished rows."""
        return result_layout(self._program, self._types)

    def run(self, given: GivenRows, placement: ByRun) -> DataFrame:
        """Return the blocks of the finished rows, of which each partition has a run."""
        numbers = _numbers(self._spark, len(given))
        read: GivenRows | BlockSort = given
        frame, done = numbers, 0
        for number, step in enumerate(self._steps):
            if not isinstance(step, ShuffleByKey | ShuffleByRow):
                continue
            following = shuffle_layout(step, self._live[number - 1], self._types)
            by = ByHash(KEY if isinstance(step, ShuffleByKey) else ROW, self._partitions)
            frame = self._worked(frame, read, (done, number), following, by)
            if isinstance(step, ShuffleByKey):
                versions = self._versions(step.group, following, by)
                frame = reduce(DataFrame.union, versions, frame)
            frame, read = frame.repartitionById(by.partitions, PARTITION), BlockSort(following, by)
            done = number if isinstance(step, ShuffleByKey) else number + 1
        frame = self._worked(frame, read, (done, len(self._steps)), self.result, placement)
        return frame.repartitionById(placement.partitions, PARTITION)

    def _worked(
        self,
        frame: DataFrame,
        read: GivenRows | BlockSort,
        steps: tuple[int, int],
        layout: BlockLayout,
        placement: Placement,
    ) -> DataFrame:
        work = StepWork(self._query, self._tools, *steps, read, layout, placement, self._failures)
        return frame.mapInArrow(work.run, BLOCKS)

    def _versions(
        self, group: LookupGroup, layout: BlockLayout, placement: Placement
    ) -> Iterator[DataFrame]:
        for number, (job, source) in enumerate(group.sources):
            pieces = tuple(self._pieces[job])
            work = ReadWork(pieces, source, number, self._latest, layout, placement)
            yield _numbers(self._spark, len(pieces)).mapInArrow(work.run, BLOCKS)


def _numbers(spark: SparkSession, count: int) -> DataFrame:
    """Return the numbers below `count`, spread over at most `READ_TASKS` tasks."""
    return spark.range(0, count, 1, min(max(count, 1), READ_TASKS))


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
    read: GivenRows | BlockSort
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
                [step for step in between if not isinstance(step, ShuffleByKey | ShuffleByRow)],
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


@dataclass(frozen=True, slots=True)
class ReadWork:
    """Reads pieces of the versions of dataset `number` of a group, as rows of its timeline.

    The rows of its input are numbers of pieces.
    """

    pieces: tuple[VersionPiece, ...]
    source: LookupSource
    number: int
    latest: Micros
    layout: BlockLayout
    placement: Placement

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield blocks (`BLOCKS`)."""
        return write_blocks(self._rows(batches), self.layout, self.number, self.placement)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
        source = self.source
        columns = [*dict.fromkeys([*source.keys, source.time, *source.version_columns]), *META]
        limit = TimeLimit(source.time, self.latest)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for versions in self.pieces[number].batches(columns, limit):
                    yield group_versions(source, self.number, versions)
