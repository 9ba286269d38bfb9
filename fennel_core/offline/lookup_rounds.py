"""User code that looks datasets up, called in rounds until it has asked for everything.

Theory. The rows of a query are in batches by number. A round calls the code of each batch with what
the lookups of earlier rounds have read (its *answers*). A call that asks for more is given up, its
requests are answered from timelines like those of any lookup (`lookup_groups`), and the next round
calls it again: a lookup of what a lookup found takes two rounds, and one more to finish. Rows that
are done or have failed are not called again. Everything travels by the number of the first row of
its batch, so rows and answers meet in one task.

    rows ── calls ──┬── rows and answers ───────────────────────────┬── by batch ── calls ── …
                    └── requests ── by key, with versions ── answers ┘

Rows may be large, so a batch whose answers have more bytes than a task may hold has none of them.
It is cut into *parts*, which have answers of their own, and its rows ask again.

Example. Code looks the friend of a user up, and then the age of that friend:

    round 0: asks for the users           round 1: asks for the friends           round 2: returns

The rows of a batch have the columns of a query and `DONE`; its answers have `ROW` (the first of the
part), `DATASET`, `KEY`, `TIME` (µs) and `ANSWER`, a row as slots send it, null for a key without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import polars as pl

from fennel_core.offline.batch_work import StepTools
from fennel_core.offline.blocks import row_bytes
from fennel_core.offline.code_lookups import TOO_LARGE, Answers, CodeDataset, KeyAndTime
from fennel_core.offline.extractors import CALL_ROWS, MOST_ROUNDS, extract
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
ENCODED_BYTES: Final = 8 << 20
"""What is encoded at once, as a row of a dataset may answer many requests."""
_encode_row = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Cut:
    """How rows are cut by number: into batches of `rows` rows, each of which is in one task, and
    some batches into parts, which are called apart. `parts`: their rows, by number of the batch.
    """

    rows: int
    parts: Mapping[int, int] = field(default_factory=dict)

    def first(self, rows: pl.Series) -> pl.Series:
        """Return the first row of the part of each row."""
        if not self.parts:
            return rows - rows % self.rows
        part = (rows // self.rows).replace_strict(
            list(self.parts), list(self.parts.values()), default=self.rows, return_dtype=pl.Int64
        )
        return rows - rows % self.rows % part

    def smaller(self, parts: Iterable[SmallerParts]) -> Cut:
        """Return this with smaller parts."""
        found = dict(self.parts)
        for each in parts:
            found[each.batch] = min(each.rows, found.get(each.batch, self.rows))
        return replace(self, parts=found)


@dataclass(frozen=True, slots=True)
class SmallerParts:
    """Says that a batch must be cut into parts of `rows` rows before it can be called."""

    batch: int
    rows: int


@dataclass(frozen=True, slots=True)
class CalledRows:
    """A part after a round: its rows, its answers, and its requests by number of the dataset.

    `smaller`: set if it was not called.
    """

    rows: pl.DataFrame
    answers: pl.DataFrame
    requests: Mapping[int, pl.DataFrame]
    smaller: SmallerParts | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows and answers of a part. `answer_bytes`: of its answers; it has none of too many."""

    rows: pl.DataFrame
    answers: pl.DataFrame
    answer_bytes: int


def batch_rows(rows: int, partitions: int) -> int:
    """Return the rows of a batch: fewer in a small query, so that more of its tasks have one."""
    return max(LEAST_ROWS, min(CALL_ROWS, -(-rows // partitions)))


def call_batches(
    frames: Iterator[pl.DataFrame], step: CallInRounds, cut: Cut, tools: StepTools, *, number: int
) -> Iterator[CalledRows]:
    """Yield the parts of batches after a round.

    `frames` have rows and answers by `ROW`, all with the same columns; `number`: of the round.
    """
    for part in _parts(frames, cut, tools.answer_bytes):
        if part.answer_bytes <= tools.answer_bytes:
            yield _called(part, step, tools, cut, number=number)
        elif part.rows.height > 1 and number < MOST_ROUNDS:
            # Half of what fits on average: rows differ.
            fitting = part.rows.height * tools.answer_bytes // (2 * part.answer_bytes)
            smaller = SmallerParts(part.rows.item(0, ROW) // cut.rows, max(1, fitting))
            yield CalledRows(part.rows, part.answers, {}, smaller)
        else:
            yield CalledRows(_failed(part.rows, tools.answer_bytes), part.answers, {})


def _parts(frames: Iterator[pl.DataFrame], cut: Cut, most_bytes: int) -> Iterator[_Part]:
    """Yield the rows and answers of each part, given both by `ROW`."""
    waiting: list[pl.DataFrame] = []
    size, current = 0, -1
    for frame in frames:
        numbers = cut.first(frame[ROW]).to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), frame.height]
        for start, stop in pairwise(starts):
            some, first = frame[start:stop], -1 if frame.is_empty() else numbers[start]
            if first != current and current >= 0:
                yield _part(waiting, size)
                waiting, size = [], 0
            current = first
            size += _answer_bytes(some)
            if size > most_bytes:
                # They are not collected: nothing bounds how many follow.
                waiting = [_without_answers(each) for each in (*waiting, some)]
            else:
                waiting.append(some)
    if waiting:
        yield _part(waiting, size)


def _without_answers(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a frame that does not hold the memory of answers, either."""
    return rows.filter(pl.col(DATASET).is_null()).with_columns(
        pl.lit(None, dtype).alias(name) for name, dtype in ANSWER_TYPES.items() if name != ROW
    )


def _answer_bytes(rows: pl.DataFrame) -> int:
    return int(rows.select(pl.col(KEY, ANSWER).bin.size().sum()).sum_horizontal().item())


def _part(frames: Sequence[pl.DataFrame], size: int) -> _Part:
    rows = pl.concat(frames)
    is_answer = pl.col(DATASET).is_not_null()
    own = [name for name in ANSWER_TYPES if name != ROW]
    answers = rows.filter(is_answer).select(*ANSWER_TYPES)
    return _Part(rows.filter(~is_answer).drop(own), answers, size)


def _failed(rows: pl.DataFrame, most_bytes: int) -> pl.DataFrame:
    """Return the rows of a part, of which those that wait have failed."""
    waits = pl.col(REASON).is_null() & pl.col(DONE).is_null()
    reason = pl.lit(f"what code looks up for this row has {TOO_LARGE.format(most_bytes)}")
    failing = rows.filter(waits).select(ROW, reason.alias(REASON))
    done = rows.filter(pl.col(REASON).is_null() & pl.col(DONE).is_not_null())
    return pl.concat([done, rows_at_fault(rows, failing)], how="diagonal")


def _called(
    part: _Part, step: CallInRounds, tools: StepTools, cut: Cut, *, number: int
) -> CalledRows:
    rows, answers = part.rows, part.answers
    known = _known(answers, step, tools.answer_bytes)
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
    requests = {place: _requests(keys, rows, cut) for place, keys in _wanted(known, step)}
    assert requests or left.is_empty(), "rows wait only for what was asked for"
    earlier = good.filter(pl.col(DONE).is_not_null())
    parts = [done, earlier, left, rows_at_fault(rows, failures)]
    return CalledRows(
        pl.concat(parts, how="diagonal"),
        answers if left.height else answers.clear(),
        requests,
    )


def _known(answers: pl.DataFrame, step: CallInRounds, most_bytes: int) -> Answers:
    found: dict[DatasetName, dict[KeyAndTime, bytes | None]] = {}
    for number, dataset in enumerate(step.datasets):
        of = answers.filter(pl.col(DATASET) == number)
        keys = zip(of[KEY].to_list(), of[TIME].to_list(), strict=True)
        found[dataset.name] = dict(zip(keys, of[ANSWER].to_list(), strict=True))
    return Answers(found, most_bytes)


def _wanted(answers: Answers, step: CallInRounds) -> Iterator[tuple[int, Collection[KeyAndTime]]]:
    """Yield the numbers of datasets and what is missing of them."""
    for number, dataset in enumerate(step.datasets):
        if missing := answers.missing.get(dataset.name):
            yield number, missing


def _requests(wanted: Collection[KeyAndTime], rows: pl.DataFrame, cut: Cut) -> pl.DataFrame:
    """Return requests of a part as rows of a timeline."""
    keys, times = zip(*wanted, strict=True)
    first = cut.first(rows[ROW][:1])[0]
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
        asked = pl.DataFrame(
            [requests[ROW], keys.alias(KEY), times.alias(TIME), there.alias(FOUND)]
        )
        for some in _slices(found.drop(FOUND).hstack(asked)):
            yield _answers(some, number, dataset)


def _slices(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield rows in slices of at most `ENCODED_BYTES`, or one row."""
    if rows.height < 2 or row_bytes(rows) <= ENCODED_BYTES:
        yield rows
        return
    half = rows.height // 2
    yield from _slices(rows[:half])
    yield from _slices(rows[half:])


def _answers(asked: pl.DataFrame, number: int, dataset: CodeDataset) -> pl.DataFrame:
    there = asked[FOUND]
    rows = pl.Series(_encoded(asked.filter(there), dataset), dtype=pl.Binary)
    nothing = pl.Series([None], dtype=pl.Binary).new_from_index(0, asked.height)
    return asked.select(
        ROW,
        pl.lit(number, pl.Int32).alias(DATASET),
        KEY,
        TIME,
        nothing.scatter(there.arg_true(), rows).alias(ANSWER),
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
