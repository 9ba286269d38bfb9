"""Call user code that looks datasets up in rounds, with Spark.

Each round is a job: it calls the code, and the driver learns which datasets were asked for, and
nothing else. What the calls of a round have made is stored on the disks of the executors, so that
the code is called once for rows and requests, and the next round does not depend on how it was
made: the loss of such a disk fails the job, which a later run repeats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import structlog
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit
from pyspark.storagelevel import StorageLevel

from fennel_core.offline.block_sort import BlockSort
from fennel_core.offline.blocks import (
    ANSWERS_KIND,
    BLOCK,
    BLOCKS,
    COLLECTED_BYTES,
    CUT_KIND,
    KIND,
    PARTITION,
    ROWS_KIND,
    BlockLayout,
    ByBatch,
    ByHash,
    cut_block,
    row_bytes,
    write_blocks,
)
from fennel_core.offline.extractors import MOST_ROUNDS
from fennel_core.offline.failure_counts import FailureCount, NewFailures
from fennel_core.offline.lookup_rounds import (
    CalledRows,
    Cut,
    SmallerParts,
    answers_of,
    call_batches,
    done_rows,
)
from fennel_core.offline.planned_query import OfflineQuery
from fennel_core.offline.query_steps import CallInRounds, steps_of
from fennel_core.offline.shuffle_layouts import request_layout
from fennel_core.offline.task_tools import TaskTools
from fennel_core.offline.timeline import KEY
from fennel_core.offline.version_work import VersionReader

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RoundWork:
    """A round of calls in a task, of step `step` of a query; it is pickled to tasks.

    `layout` and `by`: of batches and their answers, as they come and as they leave; `cut`: what is
    called together.
    """

    query: OfflineQuery
    tools: TaskTools
    step: int
    layout: BlockLayout
    by: ByBatch
    cut: Cut
    failures: FailureCount | None
    number: int = 0

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield blocks of rows and answers by batch, and blocks of requests by key, whose kind is
        the number of the dataset.
        """
        step, new = called_step(self.query, self.step), NewFailures()
        with self.tools.open(self.query.erasures) as tools:
            frames = new.before(BlockSort(self.layout, self.by).rows(batches))
            called = call_batches(frames, step, self.cut, tools, number=self.number)
            waiting, size = list[CalledRows](), 0
            for each in called:
                waiting.append(each)
                size += sum(map(row_bytes, (each.rows, each.answers, *each.requests.values())))
                if size >= COLLECTED_BYTES:
                    yield from self._blocks(waiting, step, new)
                    waiting, size = [], 0
            yield from self._blocks(waiting, step, new)
        if self.failures is not None:
            self.failures.add(new.count)

    def _blocks(
        self, called: Sequence[CalledRows], step: CallInRounds, new: NewFailures
    ) -> Iterator[pa.RecordBatch]:
        rows = new.after(each.rows for each in called)
        yield from write_blocks(rows, self.layout, ROWS_KIND, self.by)
        answers = (each.answers for each in called)
        yield from write_blocks(answers, self.layout, ANSWERS_KIND, self.by)
        for number, dataset in enumerate(step.datasets):
            requests = (each.requests[number] for each in called if number in each.requests)
            of_timeline = request_layout(dataset.source)
            layout = BlockLayout({number: of_timeline.kinds[ROWS_KIND]}, of_timeline.order)
            yield from write_blocks(requests, layout, number, ByHash(KEY, self.by.partitions))
        for each in called:
            if each.smaller is not None:
                yield cut_block(each.smaller.batch, each.smaller.rows)


@dataclass(frozen=True, slots=True)
class AnswerWork:
    """Answers the requests for dataset `number` in a task; it is pickled to tasks."""

    work: RoundWork
    number: int
    requests: BlockSort

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield blocks of answers."""
        work = self.work
        dataset = called_step(work.query, work.step).datasets[self.number]
        with work.tools.open(work.query.erasures) as tools:
            answers = answers_of(self.requests.timeline(batches), self.number, dataset, tools)
            yield from write_blocks(answers, work.layout, ANSWERS_KIND, work.by)


@dataclass(frozen=True, slots=True)
class DoneRows:
    """Reads the rows of the last round; it is pickled to tasks."""

    blocks: BlockSort

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
        """Yield the rows of blocks, all of which are done or have failed."""
        return done_rows(self.blocks.rows(batches))


@dataclass(frozen=True, slots=True)
class CallRounds:
    """Runs the rounds of a step."""

    step: CallInRounds
    work: RoundWork
    versions: VersionReader

    @property
    def made(self) -> DoneRows:
        """What reads the rows that it returns."""
        layout = self.work.layout
        rows = BlockLayout({ROWS_KIND: layout.kinds[ROWS_KIND]}, layout.order)
        return DoneRows(BlockSort(rows, self.work.by))

    def run(self, frame: DataFrame) -> DataFrame:
        """Return the blocks of the rows when their code is done, given blocks by batch.

        The partitions of what it returns are those of `work.by`; `made` reads them.
        """
        cut = self.work.cut
        for number in range(MOST_ROUNDS + 1):
            work = replace(self.work, cut=cut, number=number)
            frame = frame.repartitionById(work.by.partitions, PARTITION)
            # On disk: a call may be slow, its results are large, and several jobs read them. A
            # plan that had those of all rounds would grow exponentially with their number.
            made = frame.mapInArrow(work.run, BLOCKS)
            called = made.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
            kinds = {int(row[0]) for row in called.select(KIND).distinct().collect()}
            if CUT_KIND in kinds:
                cut = cut.smaller(_smaller_parts(called))
                log.info("what code looks up is large", round=number, cut_batches=len(cut.parts))
            asked = sorted(kind for kind in kinds if kind >= 0)
            log.info("called user code", round=number, asked=[self._name(n) for n in asked])
            if not asked and CUT_KIND not in kinds:
                break
            answers = (self._answers(called, number, work) for number in asked)
            frame = reduce(
                DataFrame.union, answers, called.where(col(KIND).isin(ROWS_KIND, ANSWERS_KIND))
            )
        return called.where(col(KIND) == ROWS_KIND)

    def _name(self, number: int) -> str:
        return self.step.datasets[number].name

    def _answers(self, called: DataFrame, number: int, work: RoundWork) -> DataFrame:
        """Return the answers to what the calls asked of a dataset."""
        dataset = self.step.datasets[number]
        layout, by = request_layout(dataset.source), ByHash(KEY, work.by.partitions)
        requests = called.where(col(KIND) == number).withColumn(KIND, lit(ROWS_KIND))
        versions = self.versions.blocks([(dataset.job, dataset.source)], layout, by)
        timeline = reduce(DataFrame.union, versions, requests)
        answer = AnswerWork(work, number, BlockSort(layout, by))
        return timeline.repartitionById(by.partitions, PARTITION).mapInArrow(answer.run, BLOCKS)


def _smaller_parts(called: DataFrame) -> Iterator[SmallerParts]:
    rows = called.where(col(KIND) == CUT_KIND).select(BLOCK, PARTITION).collect()
    return (SmallerParts(int.from_bytes(batch, "big"), int(part)) for batch, part in rows)


def called_step(query: OfflineQuery, number: int) -> CallInRounds:
    """Return step `number` of a query, which calls code in rounds."""
    step = steps_of(query.planned.program(), query.specs)[number]
    assert isinstance(step, CallInRounds), "a round is of such a step"
    return step
