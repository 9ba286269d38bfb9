"""Compute features as of a time per row in this process, with every timeline sorted in memory.

It runs the steps that a Spark job runs (`query_steps.py`), on one machine and without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from fennel_core.offline.batch_work import (
    StepTools,
    answered,
    finished_rows,
    given_rows,
    result_types,
    run_steps,
)
from fennel_core.offline.extractors import ExtractorRunner, check_extractors
from fennel_core.offline.lookup_groups import Erasures, LookupGroup, group_versions
from fennel_core.offline.query_steps import ShuffleByKey, ShuffleByRow, steps_of
from fennel_core.offline.register_types import register_types
from fennel_core.offline.rows import ELEMENT, REASON, ROW, RowFailures, failed_rows
from fennel_core.offline.scratch import ScratchStore
from fennel_core.offline.timeline import CHUNK_ROWS, TimelineChunk, in_order
from fennel_core.operators.spec import StepSpec
from fennel_core.query.program import QueryProgram
from fennel_core.vocab.ids import JobId


@dataclass(frozen=True, slots=True)
class OfflineInputs:
    """What the lookups of a program read: the steps of the jobs that serve them, all versions of
    the input of each as of one offset, and erased keys.
    """

    steps: Mapping[JobId, StepSpec]
    versions: Mapping[JobId, pl.DataFrame]
    erasures: Erasures


class MemoryRun:
    """Computes one program. `open_scratch` opens an empty store for state."""

    def __init__(
        self,
        program: QueryProgram,
        inputs: OfflineInputs,
        extractors: ExtractorRunner,
        open_scratch: Callable[[], ScratchStore],
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        check_extractors(program)
        self._program, self._inputs = program, inputs
        self._tools = StepTools(inputs.erasures, extractors, open_scratch)
        self._chunk_rows = chunk_rows
        self._types = register_types(program)

    def run(self, given: pl.DataFrame) -> tuple[pl.DataFrame, RowFailures]:
        """Return the outputs by name with `ROW` and `AT`, in the order of the rows, and the rows
        that failed.

        `given` has `ROW`, ascending, `AT`, and the inputs of the program by name.
        """
        batches = [given_rows(given, self._program)]
        for step in steps_of(self._program, self._inputs.steps):
            match step:
                case ShuffleByKey(group):
                    timeline = self._timeline(batches, group)
                    batches = list(answered(timeline, group, self._tools))
                case ShuffleByRow():
                    batches = list(self._by_row(batches))
                case _:
                    batches = list(run_steps([step], iter(batches), self._types, self._tools))
        finished = pl.concat(
            [
                pl.DataFrame(schema=result_types(self._program, self._types)),
                *(finished_rows(batch, self._program, self._types) for batch in batches),
            ]
        ).sort(ROW)
        failed = finished.filter(pl.col(REASON).is_not_null())
        return finished.drop(REASON), failed_rows(failed, REASON)

    def _timeline(self, batches: list[pl.DataFrame], group: LookupGroup) -> Iterator[TimelineChunk]:
        versions = [
            group_versions(source, number, self._inputs.versions[job])
            for number, (job, source) in enumerate(group.sources)
        ]
        return in_order([*batches, *versions], len(versions), self._chunk_rows)

    def _by_row(self, batches: list[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        rows, step = pl.concat(batches, how="diagonal").sort(ROW, ELEMENT), self._chunk_rows
        return (rows[i : i + step] for i in range(0, max(rows.height, 1), step))
