"""The work of steps between two shuffles: batches in, batches out.

The batches of a query have the columns `ROW`, `AT`, `REASON` and registers. A row that fails loses
its registers and travels on with the reason, so that the result has a row for it; no step works on
it. It passes through a timeline without a request, and so does a row of list lookups, whose
requests are those of its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import polars as pl

from fennel_core.offline.code_lookups import MOST_ANSWER_BYTES
from fennel_core.offline.extractors import ExtractorRunner, extract
from fennel_core.offline.local_nodes import compute
from fennel_core.offline.lookup_groups import (
    Erasures,
    GroupAnswers,
    LookupGroup,
    packed,
    with_requests,
)
from fennel_core.offline.query_steps import (
    BatchStep,
    ComputeLevel,
    MakeRequests,
    PackLists,
)
from fennel_core.offline.rows import (
    AT,
    ELEMENT,
    REASON,
    ROW,
    good_rows,
    register,
    rows_at_fault,
    without,
)
from fennel_core.offline.scratch import ScratchStore
from fennel_core.offline.timeline import (
    PASS_THROUGH,
    TimelineChunk,
    pass_through_rows,
    request_rows,
)
from fennel_core.query.columns import LOGICAL_TIME, logical_type
from fennel_core.query.program import BoundLevel, QueryProgram
from fennel_core.vocab.dtypes import Dtype

NO_TIME = "the row has no time; give every row a value in the timestamp column"
Batches = Iterator[pl.DataFrame]


@dataclass(frozen=True, slots=True)
class StepTools:
    """What steps need besides their rows.

    `open_scratch` opens an empty store for the state of a terminal aggregation. `answer_bytes`: see
    `MOST_ANSWER_BYTES`.
    """

    erasures: Erasures
    extractors: ExtractorRunner
    open_scratch: Callable[[], ScratchStore]
    answer_bytes: int = MOST_ANSWER_BYTES


def given_rows(given: pl.DataFrame, program: QueryProgram) -> pl.DataFrame:
    """Return the rows of a query from `ROW`, `AT` and the inputs of the program by name."""
    reason = pl.when(pl.col(AT).is_null()).then(pl.lit(NO_TIME, dtype=pl.String))
    return given.select(
        pl.col(ROW).cast(pl.Int64),
        pl.col(AT).cast(LOGICAL_TIME),
        reason.alias(REASON),
        *(
            pl.col(name).cast(logical_type(dtype)).alias(register(place))
            for name, dtype, place in program.inputs
        ),
    )


def result_types(program: QueryProgram, types: Mapping[int, Dtype]) -> dict[str, pl.DataType]:
    """Return the columns of `finished_rows`."""
    outputs = {name: logical_type(types[place]) for name, _, place in program.outputs}
    return {ROW: pl.Int64(), AT: LOGICAL_TIME, REASON: pl.String(), **outputs}


def finished_rows(
    frame: pl.DataFrame, program: QueryProgram, types: Mapping[int, Dtype]
) -> pl.DataFrame:
    """Return `ROW`, `AT`, `REASON` and the outputs by name, which are null where a row failed."""
    good = pl.col(REASON).is_null()
    return frame.select(
        ROW,
        AT,
        REASON,
        *(
            pl.when(good).then(pl.col(register(place)).cast(logical_type(types[place]))).alias(name)
            for name, _, place in program.outputs
        ),
    )


def run_steps(
    steps: Sequence[BatchStep], batches: Batches, types: Mapping[int, Dtype], tools: StepTools
) -> Batches:
    """Yield the batches after `steps`; nothing is read before it is asked for."""
    for step in steps:
        match step:
            case ComputeLevel(level):
                batches = _computed(batches, level, types, tools)
            case MakeRequests(group):
                batches = _asked(batches, group)
            case PackLists(group):
                batches = _packed(batches, group)
            case unreachable:
                assert_never(unreachable)
    return batches


def _computed(
    batches: Batches, level: BoundLevel, types: Mapping[int, Dtype], tools: StepTools
) -> Batches:
    for frame in batches:
        rows, failures = compute(good_rows(frame), level.local, types)
        for step in level.extractors:
            rows, failed = extract(rows, step, tools.extractors)
            failures = pl.concat([failures, failed])
        yield pl.concat([rows, rows_at_fault(frame, failures)], how="diagonal")


def _asked(batches: Batches, group: LookupGroup) -> Batches:
    for frame in batches:
        good = good_rows(frame)
        requests, failures = with_requests(good, group)
        passing = [rows_at_fault(frame, failures)]
        if group.listed:
            passing.append(without(good, failures))
        yield pl.concat([request_rows(requests), *map(pass_through_rows, passing)], how="diagonal")


def answered(timeline: Iterator[TimelineChunk], group: LookupGroup, tools: StepTools) -> Batches:
    """Yield the requests of a timeline with their answers, and the rows that pass through."""
    answers = GroupAnswers(group, tools.erasures, tools.open_scratch)
    for chunk in timeline:
        _, passing = chunk.rows_of(PASS_THROUGH)
        yield pl.concat([answers.answer(chunk), passing], how="diagonal")


def _packed(batches: Batches, group: LookupGroup) -> Batches:
    """Yield rows with their lists. The last row of a batch waits for its other elements."""
    waiting: pl.DataFrame | None = None
    for frame in batches:
        if frame.is_empty():
            yield _with_lists(frame, group)
            continue
        rows = frame if waiting is None else pl.concat([waiting, frame])
        is_last = pl.col(ROW) == rows.item(-1, ROW)
        whole, waiting = rows.filter(~is_last), rows.filter(is_last)
        if not whole.is_empty():
            yield _with_lists(whole, group)
    if waiting is not None:
        yield _with_lists(waiting, group)


def _with_lists(frame: pl.DataFrame, group: LookupGroup) -> pl.DataFrame:
    outputs = [register(out) for out, _ in group.outputs]
    rows = frame.filter(pl.col(ELEMENT).is_null()).drop(ELEMENT, *outputs)
    elements = frame.filter(pl.col(ELEMENT).is_not_null()).select(ROW, ELEMENT, *outputs)
    return packed(rows, elements, group)
