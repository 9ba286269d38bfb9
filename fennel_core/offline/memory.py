"""Compute features as of a time per row in this process, with every timeline sorted in memory.

It runs the steps that a Spark job runs (`query_steps.py`), on one machine and without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from fennel_core.offline.code_lookups import MOST_ANSWER_BYTES
from fennel_core.offline.extractors import CALL_ROWS, MOST_ROUNDS, ExtractorRunner
from fennel_core.offline.lookup_groups import Erasures, group_versions
from fennel_core.offline.lookup_rounds import (
    ANSWER_TYPES,
    DONE,
    Cut,
    answers_of,
    call_batches,
    done_rows,
)
from fennel_core.offline.query_steps import CallInRounds, ShuffleByKey, ShuffleByRow, steps_of
from fennel_core.offline.register_types import register_types
from fennel_core.offline.rows import ELEMENT, REASON, ROW, RowFailures, failed_rows
from fennel_core.offline.scratch import ScratchStore
from fennel_core.offline.sources import LookupSource
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
        answer_bytes: int = MOST_ANSWER_BYTES,
    ) -> None:
        self._program, self._inputs = program, inputs
        self._tools = StepTools(inputs.erasures, extractors, open_scratch, answer_bytes)
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
                    timeline = self._timeline(batches, group.sources)
                    batches = list(answered(timeline, group, self._tools))
                case ShuffleByRow():
                    batches = list(self._by_row(batches, (ROW, ELEMENT)))
                case CallInRounds():
                    batches = self._called(batches, step)
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

    def _called(self, batches: list[pl.DataFrame], step: CallInRounds) -> list[pl.DataFrame]:
        """Return the rows after all rounds of calls."""
        none = pl.DataFrame(schema={**ANSWER_TYPES, DONE: pl.Boolean()})
        size = min(CALL_ROWS, self._chunk_rows)
        cut = Cut(size)
        state = [none, *batches]
        for number in range(MOST_ROUNDS + 1):
            frames = self._by_row(state, (ROW,))
            called = list(call_batches(frames, step, cut, self._tools, number=number))
            smaller = [each.smaller for each in called if each.smaller is not None]
            cut = cut.smaller(smaller)
            state = [none, *(frame for each in called for frame in (each.rows, each.answers))]
            asked = sorted({number for each in called for number in each.requests})
            if not asked and not smaller:
                break
            for place in asked:
                dataset = step.datasets[place]
                requests = [each.requests[place] for each in called if place in each.requests]
                timeline = self._timeline(requests, [(dataset.job, dataset.source)])
                state += answers_of(timeline, place, dataset, self._tools)
        return list(done_rows(each.rows for each in called))

    def _timeline(
        self, batches: list[pl.DataFrame], sources: Sequence[tuple[JobId, LookupSource]]
    ) -> Iterator[TimelineChunk]:
        versions = [
            group_versions(source, number, self._inputs.versions[job])
            for number, (job, source) in enumerate(sources)
        ]
        return in_order([*batches, *versions], len(versions), self._chunk_rows)

    def _by_row(self, batches: list[pl.DataFrame], order: Sequence[str]) -> Iterator[pl.DataFrame]:
        rows, step = pl.concat(batches, how="diagonal").sort(order), self._chunk_rows
        return (rows[i : i + step] for i in range(0, max(rows.height, 1), step))
