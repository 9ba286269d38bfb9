"""Compute features as of a time per row with Spark.

Theory. Spark does what a timeline needs and what must not fit in memory: it shuffles by key and
sorts within a partition, which spills to disk. Everything between two shuffles is one pass over
Arrow batches in Python (`batch_work`). Rows are never collected: the driver sees schemas, counts
and the keys of result files.

    rows of the query ── MakeRequests ──┐
    versions of dataset 0 ──────────────┼─ repartition(KEY), sortWithinPartitions(ORDER) ─ …
    versions of dataset 1 ──────────────┘

The number of a row decides where its result is: partition n of the result has the n-th run of rows,
so the result is in the order of the input without the sampling pass of Spark's own global sort.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from fennel_core.connections.spark import session_builder
from fennel_core.history.parquet import TimeLimit
from fennel_core.offline.batch_work import finished_rows, given_rows, result_types, run_steps
from fennel_core.offline.lookup_groups import LookupGroup, group_versions
from fennel_core.offline.planned_query import OfflineQuery
from fennel_core.offline.query_steps import (
    ShuffleByKey,
    ShuffleByRow,
    live_registers,
    steps_of,
)
from fennel_core.offline.register_types import register_types
from fennel_core.offline.rows import ELEMENT, REASON, ROW
from fennel_core.offline.sources import LookupSource
from fennel_core.offline.spark_layouts import (
    ROWS_PART,
    SparkLayout,
    given_layout,
    shuffle_layout,
    versions_part,
)
from fennel_core.offline.task_tools import TaskTools
from fennel_core.offline.timeline import KEY, ORDER
from fennel_core.offline.version_pieces import VersionPiece
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import JobId, Micros
from fennel_core.vocab.versions import META, SIGN

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_ROWS: Final = 20_000
"""Rows that a Python worker receives at once."""
ARROW_BYTES: Final = 32 << 20
TASK_ATTEMPTS: Final = 2
"""A task whose worker was killed is retried; all else fails the job."""
READ_TASKS: Final = 64
"""Tasks that read the versions of one dataset; each reads many pieces."""
_PARTITION: Final = "__partition"


def session(settings: Settings, app_name: str) -> SparkSession:
    """Return a Spark application for offline queries: local unless another master is configured."""
    return (
        session_builder(settings, app_name=app_name, local_master=f"local[*,{TASK_ATTEMPTS}]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.executorEnv.POLARS_MAX_THREADS", 1)  # a task has one core
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", ARROW_ROWS)
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
    def given(self) -> SparkLayout:
        """The columns that `run` reads."""
        return given_layout({name: dtype for name, dtype, _ in self._program.inputs})

    @property
    def result(self) -> SparkLayout:
        """The columns that `run` returns."""
        return SparkLayout(result_types(self._program, self._types))

    def run(self, given: DataFrame) -> DataFrame:
        """Return the finished rows of a query, in no order, with `result.names`.

        `given` has the columns of `given`, by the names of the features.
        """
        quoted = [f"`{name}`" for name in self.given.columns]
        frame, layout, done = given.select(*quoted).toDF(*self.given.names), self.given, 0
        for number, step in enumerate(self._steps):
            if not isinstance(step, ShuffleByKey | ShuffleByRow):
                continue
            following = shuffle_layout(step, self._live[number], self._types)
            frame = self._worked(frame, layout, (done, number), following)
            frame = self._shuffled(frame, step, following)
            layout, done = following, number + 1
        return self._worked(frame, layout, (done, len(self._steps)), self.result)

    def _worked(
        self, frame: DataFrame, layout: SparkLayout, steps: tuple[int, int], following: SparkLayout
    ) -> DataFrame:
        work = StepWork(
            self._query, self._tools, steps[0], steps[1], layout, following, self._failures
        )
        return frame.mapInArrow(work.run, following.spark)

    def _shuffled(
        self, frame: DataFrame, step: ShuffleByKey | ShuffleByRow, layout: SparkLayout
    ) -> DataFrame:
        match step:
            case ShuffleByKey(group):
                for versions in self._versions(group, layout):
                    frame = frame.union(versions)
                spread = frame.repartition(self._partitions, KEY)
                # At one position equal versions are neighbours, the additions first, so nothing is
                # retracted before it was added, or long after: pieces are read in any order, and
                # a sort of Spark is not stable.
                equal = f.xxhash64(*(versions_part(n) for n in range(len(group.sources))))
                return spread.sortWithinPartitions(*map(f.asc, ORDER), equal, f.desc(SIGN))
            case ShuffleByRow():
                spread = frame.repartition(self._partitions, ROW)
                return spread.sortWithinPartitions(f.asc(ROW), f.asc_nulls_first(ELEMENT))

    def _versions(self, group: LookupGroup, layout: SparkLayout) -> Iterator[DataFrame]:
        for number, (job, source) in enumerate(group.sources):
            pieces = tuple(self._pieces[job])
            work = ReadWork(pieces, source, number, self._latest, layout)
            tasks = min(max(len(pieces), 1), READ_TASKS)
            numbers = self._spark.range(0, len(pieces), 1, tasks)
            yield numbers.mapInArrow(work.run, layout.spark)


@dataclass(frozen=True, slots=True)
class StepWork:
    """Runs the steps [first, stop) in a task, from the rows of one layout to those of another."""

    query: OfflineQuery
    tools: TaskTools
    first: int
    stop: int
    layout: SparkLayout
    following: SparkLayout
    failures: FailureCount | None = None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        program = self.query.planned.program()
        types, steps = register_types(program), steps_of(program, self.query.specs)
        between = steps[self.first : self.stop]
        own = [step for step in between if not isinstance(step, ShuffleByKey | ShuffleByRow)]
        new = NewFailures()
        frames = new.before(self.layout.decode(batches))
        if self.first == 0:
            frames = (given_rows(frame, program) for frame in frames)
        with self.tools.open(self.query.erasures) as tools:
            frames = run_steps(own, frames, types, tools)
            if self.stop == len(steps):
                frames = (finished_rows(frame, program, types) for frame in frames)
            yield from self.following.encode(new.after(frames), ROWS_PART)
        if self.failures is not None:
            self.failures.add(new.count)


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
    layout: SparkLayout

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source = self.source
        columns = [*dict.fromkeys([*source.keys, source.time, *source.version_columns]), *META]
        limit = TimeLimit(source.time, self.latest)
        frames = (
            group_versions(source, self.number, versions)
            for batch in batches
            for number in batch.column(0).to_pylist()
            for versions in self.pieces[number].batches(columns, limit)
        )
        yield from self.layout.encode(frames, versions_part(self.number))


def in_row_order(frame: DataFrame, rows: int, partitions: int) -> DataFrame:
    """Return rows numbered 0 to `rows` - 1 such that partition n has the n-th run, in order."""
    place = f.expr(f"CAST({ROW} * {partitions} DIV {max(rows, 1)} AS INT)")
    placed = frame.withColumn(_PARTITION, place).repartitionById(partitions, _PARTITION)
    return placed.drop(_PARTITION).sortWithinPartitions(ROW)
