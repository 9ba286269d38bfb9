"""Answer the requests of a timeline from the input of a terminal aggregation.

Theory. A lookup as of T reads the events at or before T, in whatever order they were added. So the
production step is given the events of a chunk and then asked for its requests: the events that the
timeline still holds back are all later than those requests. The state of a key is complete when the
next key begins, so the scratch store holds one key, besides those that lie within one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from fennel_core.offline.scratch import ScratchStore
from fennel_core.offline.sources import FOUND, AggregateSource
from fennel_core.offline.timeline import KEY, REQUEST, SOURCE, TIME, SeenVersions, version_column
from fennel_core.operators.aggregate.read_time import ReadTimeAggregateStep
from fennel_core.operators.build import as_lookup_step, build
from fennel_core.query.columns import QueryColumn
from fennel_core.query.lookups import EncodedRows, row_bytes, transpose
from fennel_core.vocab.dtypes import Timestamp, optional
from fennel_core.vocab.versions import META


class TileLookups:
    """Answers the requests of one timeline, chunk by chunk, from dataset number `number`."""

    def __init__(self, source: AggregateSource, number: int, scratch: ScratchStore) -> None:
        step = build(source.needed)
        if isinstance(step, ReadTimeAggregateStep) and not source.timed:
            step = ReadTimeAggregateStep(source.needed, expiries=False)
        lookup_step = as_lookup_step(step)
        assert lookup_step is not None, "a terminal aggregation serves lookups"
        self._step, self._lookup_step, self._scratch = step, lookup_step, scratch
        self._number, self._output = number, source.needed.output
        self._wanted = source.columns
        self._input = [
            *(pl.col(version_column(number, name)).alias(name) for name in source.version_columns),
            *META,
        ]
        self._nothing = row_bytes([None] * len(self._output.values))
        self._key: bytes | None = None

    def answer(self, seen: SeenVersions) -> pl.DataFrame:
        """Return, per request of a chunk in order, the columns of the result and `FOUND`."""
        return self.answer_rows(seen.frame())

    def answer_rows(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return the same, given the events and requests as rows (`SeenVersions.frame`)."""
        rows: EncodedRows = []
        for piece in self._pieces(events):
            self._add(piece.filter(pl.col(SOURCE) == self._number).select(self._input))
            rows += self._look_up(piece.filter(pl.col(SOURCE) == REQUEST))
        return self._columns(rows)

    def _pieces(self, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Yield the rows of the key that the last chunk ended with, those of keys that lie within
        this chunk, and those of the key that it ends with; forget the state of keys in between.
        """
        if rows.is_empty():
            return
        head = _rows_of(rows, self._key)
        if head:
            yield rows[:head]
        rest = rows[head:]
        if rest.is_empty():
            return
        self._key = rest.item(-1, KEY)
        tail = _rows_of(rest, self._key)
        for piece in (rest[: rest.height - tail], rest[rest.height - tail :]):
            if not piece.is_empty():
                self._scratch.clear()
                yield piece

    def _add(self, events: pl.DataFrame) -> None:
        if not events.is_empty():
            outcome = self._step.apply(self._scratch, 0, events)
            assert not outcome.deletes, "tiles are replaced, not deleted"
            self._scratch.put(outcome.puts)

    def _look_up(self, requests: pl.DataFrame) -> EncodedRows:
        """Return the row of each request; equal requests are neighbours and computed once."""
        if requests.is_empty():
            return []
        changes = (
            (requests[KEY] != requests[KEY].shift(1)) | (requests[TIME] != requests[TIME].shift(1))
        ).fill_null(value=True)
        distinct = requests.filter(changes)
        rows = self._lookup_step.lookup(
            self._scratch, distinct[KEY].to_list(), distinct[TIME].to_list()
        )
        places = np.cumsum(changes.to_numpy()) - 1
        return list(map(rows.__getitem__, places.tolist()))

    def _columns(self, rows: EncodedRows) -> pl.DataFrame:
        dtypes = [Timestamp(), *(field.dtype for field in self._output.values)]
        names = [self._output.timestamp, *self._output.value_names]
        values = transpose(rows, self._nothing) if rows else [()] * len(names)
        columns = [
            QueryColumn(optional(dtype), column).series.alias(name)
            for name, dtype, column in zip(names, dtypes, values, strict=True)
            if name in self._wanted
        ]
        found = pl.Series(FOUND, [row is not None for row in rows], dtype=pl.Boolean)
        return pl.DataFrame([*columns, found])


def _rows_of(rows: pl.DataFrame, key: bytes | None) -> int:
    """Return the number of rows of a key."""
    return rows.filter(pl.col(KEY) == pl.lit(key, dtype=pl.Binary)).height
