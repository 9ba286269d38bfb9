"""Compute features as of a time per row, with every timeline sorted in memory.

This is what a Spark job computes, on one machine and without Spark: level by level, first the local
nodes, then user code, then one timeline per group of lookups. Rows that fail leave the levels, and
their outputs are null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl

from fennel_core.offline.extractors import ExtractorRunner, check_extractors, extract
from fennel_core.offline.local_nodes import compute
from fennel_core.offline.lookup_groups import (
    Erasures,
    GroupAnswers,
    LookupGroup,
    group_versions,
    lookup_groups,
    packed,
    with_requests,
)
from fennel_core.offline.register_types import register_types
from fennel_core.offline.rows import AT, ROW, RowFailures, failed_rows, register, without
from fennel_core.offline.scratch import ScratchStore
from fennel_core.offline.timeline import CHUNK_ROWS, in_order, request_rows
from fennel_core.operators.spec import StepSpec
from fennel_core.query.columns import logical_type
from fennel_core.query.program import BoundLevel, QueryProgram
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
        self._program, self._inputs, self._extractors = program, inputs, extractors
        self._open_scratch, self._chunk_rows = open_scratch, chunk_rows
        self._types = register_types(program)

    def run(self, given: pl.DataFrame) -> tuple[pl.DataFrame, RowFailures]:
        """Return the outputs by name with `ROW` and `AT`, in the order of the rows, and the rows
        that failed.

        `given` has `ROW`, ascending, `AT`, and the inputs of the program by name.
        """
        rows = given.select(
            ROW,
            AT,
            *(pl.col(name).alias(register(place)) for name, _, place in self._program.inputs),
        )
        failures = failed_rows()
        for level in self._program.levels:
            rows, failed = self._level(rows, level)
            failures = pl.concat([failures, failed])
        outputs = rows.select(
            ROW,
            *(
                pl.col(register(place)).cast(logical_type(self._types[place])).alias(name)
                for name, _, place in self._program.outputs
            ),
        )
        ordered = given.select(ROW, AT).join(outputs, on=ROW, how="left", maintain_order="left")
        return ordered, failures.sort(ROW)

    def _level(self, rows: pl.DataFrame, level: BoundLevel) -> tuple[pl.DataFrame, RowFailures]:
        rows, failures = compute(rows, level.local, self._types)
        for step in level.extractors:
            rows, failed = extract(rows, step, self._extractors)
            failures = pl.concat([failures, failed])
        for group in lookup_groups(level, self._inputs.steps):
            rows, failed = self._look_up(rows, group)
            failures = pl.concat([failures, failed])
        return rows, failures

    def _look_up(self, rows: pl.DataFrame, group: LookupGroup) -> tuple[pl.DataFrame, RowFailures]:
        requests, failures = with_requests(rows, group)
        versions = [
            group_versions(source, number, self._inputs.versions[job])
            for number, (job, source) in enumerate(group.sources)
        ]
        answers = GroupAnswers(group, self._inputs.erasures, self._open_scratch)
        timeline = in_order([request_rows(requests), *versions], self._chunk_rows)
        found = pl.concat(list(answers.run(timeline)))
        if group.listed:
            found = packed(without(rows, failures), found, group)
        return found, failures
