"""`Dataset.lookup` of user code, answered from rows that were read before.

Theory. Which rows a lookup needs is known only while the code runs, and the rows are in history. So
a call that asks for a row which is not there yet is ended, the rows that it asked for are read, and
it is repeated: it then gets them, and goes on to its next lookup (`lookup_rounds`). All else is the
lookup of the online path (`query.datasets`): types, defaults, and what is refused.

A row of the past must not see later rows. Online the times of a lookup are bounded by the one time
of the query; here a call has rows of many times, and nothing says which of them use an answer: code
may look each key up once, or use the time of one row for all. So a call of rows with several times
is served only if key n is that of row n, for all rows in order and at their times, or all as much
earlier. Any other is repeated with the rows of one time each, where the online path is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from fennel_core.connections.erasures import ErasableKeys
from fennel_core.executors.client import LookupReply, LookupRequest
from fennel_core.executors.internal_errors import LookupRefused
from fennel_core.offline.errors import CallInterrupted
from fennel_core.offline.sources import LookupSource, source_of
from fennel_core.operators.spec import StepSpec
from fennel_core.query.datasets import ExtractorLookups, NotLaterThan, asked_micros
from fennel_core.query.errors import QueryError
from fennel_core.query.lookups import EncodedRows, JobLookup, ReadOutcome
from fennel_core.query.program import BoundExtractor
from fennel_core.vocab.dtypes import Dtype, Timestamp, optional
from fennel_core.vocab.ids import DatasetName, JobId

MOST_ANSWERS: Final = 1_000_000
"""Rows that the code of a batch may look up: they are in a task's memory. Online, one lookup may
ask for as many (`executors.client.MAX_LOOKUP_ROWS`).
"""
MOST_ANSWER_BYTES: Final = 64 << 20
"""Bytes of the answers of a batch, and of what one call gets: a task has some copies of both. What
needs more is split, down to a row.
"""
TOO_LARGE: Final = "more than {} bytes. Ask for fewer or smaller rows"
KeyAndTime = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class CodeDataset:
    """A dataset that user code may look up. `types`: those of its rows, `[timestamp, value, …]`."""

    name: DatasetName
    job: JobId
    source: LookupSource
    types: tuple[Dtype, ...]
    erasable: ErasableKeys


def code_datasets(
    extractors: Sequence[BoundExtractor], steps: Mapping[JobId, StepSpec]
) -> tuple[CodeDataset, ...]:
    """Return the distinct datasets that extractors can look up. `steps`: those of the jobs."""
    tables = {name: table for each in extractors for name, table in each.tables.items()}
    found = []
    for name, table in tables.items():
        if table.serves_times:
            job, values = table.offline_job(), table.view.schema.values
            types = (optional(Timestamp()), *(optional(field.dtype) for field in values))
            source = source_of(steps[job], range(len(types)), job)
            found.append(CodeDataset(name, job, source, types, table.erasable))
    return tuple(found)


class Answers:
    """The rows that are known to the calls of a batch, by dataset, key and time (µs).

    `most_bytes`: what one call may get of them, a row as often as it asks for it.
    """

    def __init__(
        self,
        known: Mapping[DatasetName, Mapping[KeyAndTime, bytes | None]],
        most_bytes: int = MOST_ANSWER_BYTES,
    ) -> None:
        self._known, self.most_bytes = known, most_bytes
        self.missing: dict[DatasetName, dict[KeyAndTime, None]] = {}

    def known(self, dataset: DatasetName) -> Mapping[KeyAndTime, bytes | None]:
        """Return the known rows of a dataset; None is a key without a row."""
        return self._known.get(dataset, {})

    def fits(self, call: CallLookups) -> bool:
        """Return whether the rows that a call asked for can be read for this batch."""
        new = (
            len(rows.keys() - self.missing.get(dataset, {}).keys())
            for dataset, rows in call.missing.items()
        )
        asked = (*self._known.values(), *self.missing.values())
        return sum(map(len, asked)) + sum(new) <= MOST_ANSWERS

    def want(self, call: CallLookups) -> None:
        """Read what a call asked for before the next round."""
        for dataset, rows in call.missing.items():
            self.missing.setdefault(dataset, {}).update(rows)


class CallLookups:
    """Serves the lookups of one call: `ExtractorLookups` reads its rows and times from here.

    `missing`: the rows that it asked for and that are not known. `unclear`: whether it must be
    repeated with rows of one time; `large`: whether with fewer rows, because what they look up has
    too many bytes.
    """

    def __init__(self, step: BoundExtractor, answers: Answers, times: pl.Series) -> None:
        self._answers, self._times = answers, times.to_physical()
        self._lookups = ExtractorLookups(self, step.tables, self, ReadOutcome(), as_of=True)
        self.missing: dict[DatasetName, dict[KeyAndTime, None]] = {}
        self.unclear = self.large = False
        self._bytes = 0

    async def __call__(self, asked: LookupRequest) -> LookupReply:
        """See `executors.client.Callbacks.lookup`; also raises `CallInterrupted`.

        Keys that no conversion expects are refused, so that their rows fail and not the job.
        """
        if self.missing or self.unclear:
            # Code that catches the end of its call collects nothing more.
            raise CallInterrupted("this call has ended; it is repeated")
        try:
            return await self._lookups(asked)
        except (ArithmeticError, TypeError, ValueError, pa.ArrowException, QueryError) as odd:
            raise LookupRefused(f"the keys cannot be looked up: {odd}") from odd

    async def fetch(self, lookups: Sequence[JobLookup], outcome: ReadOutcome) -> list[EncodedRows]:
        """See `RowReader.fetch`; raises `CallInterrupted` if a row is not known."""
        del outcome
        return [self._rows(lookup) for lookup in lookups]

    def _rows(self, lookup: JobLookup) -> EncodedRows:
        one, keys, dataset = lookup.as_of, lookup.keys, lookup.erasable.dataset
        wanted = list(zip(keys, [one] * len(keys) if isinstance(one, int) else one, strict=True))
        known = self._answers.known(dataset)
        missing = dict.fromkeys(filterfalse(known.__contains__, wanted))
        if missing:
            self.missing.setdefault(dataset, {}).update(missing)
            raise CallInterrupted(f"rows of `{dataset}` are read before the next call")
        found = list(map(known.__getitem__, wanted))
        self._bytes += sum(map(len, filter(None, found)))
        if self._bytes > self._answers.most_bytes:
            self.large = True
            raise CallInterrupted(f"rows of `{dataset}` are too large for one call")
        return found

    def of(self, asked: LookupRequest) -> int | list[int]:
        """See `AskedTimes.of`; raises `CallInterrupted` if rows must be called by time."""
        first, last = self._times.min(), self._times.max()
        assert isinstance(first, int) and isinstance(last, int), "a call has rows, with times"  # noqa: PT018  # one fact
        if first == last:
            return NotLaterThan(first).of(asked)
        micros = asked_micros(asked)
        if not micros.is_empty() and not self._row_by_row(asked, micros):
            self.unclear = True
            raise CallInterrupted("rows of different times are called one time after the other")
        return micros.to_list()

    def _row_by_row(self, asked: LookupRequest, micros: pl.Series) -> bool:
        """Return whether key n is that of row n, as of the row's time or all as much earlier."""
        rows = len(self._times)
        if asked.rows is None or micros.null_count() or len(micros) != rows:
            return False
        shifts = micros - self._times
        in_order = np.array_equal(asked.rows.to_numpy(), np.arange(rows))
        return bool(in_order and (shifts <= 0).all() and shifts.n_unique() == 1)
