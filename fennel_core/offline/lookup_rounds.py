"""User code that looks datasets up, called in rounds until it has asked for everything.

Theory. The rows of a query are in batches by number. A round calls the code of each batch with what
the lookups of earlier rounds have read (its *answers*). A call that asks for more is given up, its
requests are answered from timelines like those of any lookup (`lookup_groups`), and the next round
calls it again: a lookup of what a lookup found takes two rounds, and one more to finish. Rows that
are done or have failed are not called again. Everything travels by the number of the first row of
its batch, so rows and answers meet in one task.

    rows ── calls ──┬── rows and answers ───────────────────────────┬── by batch ── calls ── …
                    └── requests ── by key, with versions ── answers ┘

Example. Code looks the friend of a user up, and then the age of that friend:

    round 0: asks for the users           round 1: asks for the friends           round 2: returns

The rows of a batch have the columns of a query and `DONE`; its answers have `ROW` (the first of the
batch), `DATASET`, `KEY`, `TIME` (µs) and `ANSWER`, a row as slots send it, null for a key without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import polars as pl

from fennel_core.offline.batch_work import StepTools
from fennel_core.offline.code_lookups import Answers, CodeDataset, KeyAndTime
from fennel_core.offline.extractors import CALL_ROWS, extract
from fennel_core.offline.lookup_groups import answerer, erased
from fennel_core.offline.query_steps import CallInRounds
from fennel_core.offline.rows import (
    REASON,
    ROW,
    failed_rows,
    good_rows,
    register,
    rows_at_fault,
    without,
)
from fennel_core.offline.sources import FOUND, TableSource, column_at
from fennel_core.offline.timeline import KEY, REQUEST, SOURCE, TIME, TimelineChunk, request_rows
from fennel_core.query.columns import QueryColumn, logical_type
from fennel_core.vocab.ids import DatasetName

LEAST_ROWS: Final = 1_000
"""Rows of a batch: each task with one starts executors in each round, which takes seconds."""
DONE: Final = "__done"
DATASET: Final = "__dataset"
ANSWER: Final = "__answer"
ANSWER_TYPES: Final[Mapping[str, pl.DataType]] = {
    ROW: pl.Int64(),
    DATASET: pl.Int32(),
    KEY: pl.Binary(),
    TIME: pl.Int64(),
    ANSWER: pl.Binary(),
}
"""The columns of answers; `DATASET` is a number of `CallInRounds.datasets`."""
_encode_row = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class CalledRows:
    """A batch after a round: its rows, its answers, and its requests by number of the dataset."""

    rows: pl.DataFrame
    answers: pl.DataFrame
    requests: Mapping[int, pl.DataFrame]


def batch_rows(rows: int, partitions: int) -> int:
    """Return the rows of a batch: fewer in a small query, so that more of its tasks have one."""
    return max(LEAST_ROWS, min(CALL_ROWS, -(-rows // partitions)))


def call_batches(
    frames: Iterator[pl.DataFrame],
    step: CallInRounds,
    size: int,
    tools: StepTools,
    *,
    number: int,
) -> Iterator[CalledRows]:
    """Yield the batches of `size` rows after a round.

    `frames` have rows and answers by `ROW`, all with the same columns; `number`: of the round.
    """
    for batch in _batches(frames, size):
        is_answer = pl.col(DATASET).is_not_null()
        answers = batch.filter(is_answer).select(*ANSWER_TYPES)
        own = [name for name in ANSWER_TYPES if name != ROW]
        yield _called(batch.filter(~is_answer).drop(own), answers, step, tools, size, number=number)


def _batches(frames: Iterator[pl.DataFrame], size: int) -> Iterator[pl.DataFrame]:
    """Yield the rows of each batch, given rows by `ROW`."""
    waiting: pl.DataFrame | None = None
    for frame in frames:
        rows = frame if waiting is None else pl.concat([waiting, frame])
        numbers = (rows[ROW] // size).to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
        yield from (rows[start:stop] for start, stop in pairwise(starts))
        waiting = rows[starts[-1] :]
    if waiting is not None:
        yield waiting


def _called(
    rows: pl.DataFrame,
    answers: pl.DataFrame,
    step: CallInRounds,
    tools: StepTools,
    size: int,
    *,
    number: int,
) -> CalledRows:
    known = _known(answers, step)
    good = good_rows(rows)
    waiting = good.filter(pl.col(DONE).is_null())
    done, failures = waiting.drop(map(register, step.filled), DONE, strict=False), failed_rows()
    for extractor in step.extractors:
        asking = without(waiting, failures)
        made, failed = extract(asking, extractor, tools.extractors, known, number=number)
        failures = pl.concat([failures, failed])
        outputs = made.select(ROW, *(register(out) for _, out in extractor.keep))
        # A row is done when no code of it waits or fails: else all code is called again.
        done = done.join(outputs, on=ROW, how="inner", maintain_order="left")
    done = done.with_columns(pl.lit(value=True).alias(DONE))
    left = without(waiting, failures).join(done, on=ROW, how="anti")
    requests = {place: _requests(keys, rows, size) for place, keys in _wanted(known, step)}
    assert requests or left.is_empty(), "rows wait only for what was asked for"
    earlier = good.filter(pl.col(DONE).is_not_null())
    parts = [done, earlier, left, rows_at_fault(rows, failures)]
    return CalledRows(
        pl.concat(parts, how="diagonal"),
        answers if left.height else answers.clear(),
        requests,
    )


def _known(answers: pl.DataFrame, step: CallInRounds) -> Answers:
    found: dict[DatasetName, dict[KeyAndTime, bytes | None]] = {}
    for number, dataset in enumerate(step.datasets):
        of = answers.filter(pl.col(DATASET) == number)
        keys = zip(of[KEY].to_list(), of[TIME].to_list(), strict=True)
        found[dataset.name] = dict(zip(keys, of[ANSWER].to_list(), strict=True))
    return Answers(found)


def _wanted(answers: Answers, step: CallInRounds) -> Iterator[tuple[int, Collection[KeyAndTime]]]:
    """Yield the numbers of datasets and what is missing of them."""
    for number, dataset in enumerate(step.datasets):
        if missing := answers.missing.get(dataset.name):
            yield number, missing


def _requests(wanted: Collection[KeyAndTime], rows: pl.DataFrame, size: int) -> pl.DataFrame:
    """Return requests of a batch as rows of a timeline."""
    keys, times = zip(*wanted, strict=True)
    first = rows.item(0, ROW) // size * size
    return request_rows(
        pl.DataFrame(
            {
                ROW: pl.Series([first], dtype=pl.Int64).new_from_index(0, len(keys)),
                KEY: pl.Series(keys, dtype=pl.Binary),
                TIME: pl.Series(times, dtype=pl.Int64),
            }
        )
    )


def done_rows(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the rows after the last round; none of them waits."""
    for frame in frames:
        waits = frame.select(pl.all_horizontal(pl.col(DONE, REASON).is_null()).any()).item()
        assert not waits, "a row has outputs or a reason after the last round"
        yield frame


def answers_of(
    timeline: Iterator[TimelineChunk], number: int, dataset: CodeDataset, tools: StepTools
) -> Iterator[pl.DataFrame]:
    """Yield the answers of the requests of a timeline, which has only this dataset."""
    one = answerer(dataset.source, 0, tools.open_scratch)
    rules = tools.erasures.get(dataset.erasable, ())
    for chunk in timeline:
        found = one.answer(chunk.seen_by(0))
        keys, requests = chunk.rows_of(REQUEST)
        times = chunk.order.filter(pl.col(SOURCE) == REQUEST)[TIME]
        there = found[FOUND] & ~erased(rules, keys)
        rows = pl.Series(_encoded(found.filter(there), dataset), dtype=pl.Binary)
        nothing = pl.Series([None], dtype=pl.Binary).new_from_index(0, len(keys))
        yield pl.DataFrame(
            {
                ROW: requests[ROW],
                DATASET: pl.Series([number], dtype=pl.Int32).new_from_index(0, len(keys)),
                KEY: keys,
                TIME: times,
                ANSWER: nothing.scatter(there.arg_true(), rows),
            }
        )


def _encoded(found: pl.DataFrame, dataset: CodeDataset) -> list[bytes]:
    """Return rows as slots send them: `[timestamp, value, …]`, physical."""
    source = dataset.source
    schema = source.schema if isinstance(source, TableSource) else source.spec.output
    columns = [
        QueryColumn(dtype, series=found[column_at(schema, place)].cast(logical_type(dtype))).values
        for place, dtype in enumerate(dataset.types)
    ]
    return list(map(_encode_row, zip(*columns, strict=True)))
