"""Answer the requests of a timeline from the input of a terminal aggregation, many at once.

Theory. A timeline has the events of a key sorted by time, so the rows of all requests of a chunk
are computed together (`operators.aggregate.sorted_events`). The events of the last key that later
requests may still read are carried to the next chunk: those of the longest window, and the last one
before it. A key that would carry more than `CARRIED_ROWS` is answered from tiles instead
(`tile_lookups`), which spill to disk and cost ten times as much.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from fennel_core.offline.scratch import ScratchStore
from fennel_core.offline.sources import FOUND, AggregateSource
from fennel_core.offline.tile_lookups import TileLookups
from fennel_core.offline.timeline import (
    KEY,
    ORDER,
    REQUEST,
    SOURCE,
    TIME,
    SeenVersions,
    version_column,
)
from fennel_core.operators.aggregate.sorted_events import SortedEventsLookup, SortedRequests
from fennel_core.operators.rows import encode_rows
from fennel_core.query.columns import QueryColumn
from fennel_core.vocab.dtypes import Timestamp, optional
from fennel_core.vocab.versions import META, POS, SIGN

CARRIED_ROWS: Final = 200_000
"""Events of one key that are kept from one chunk to the next: some tens of megabytes."""
_ROW: Final = "__row"


class WindowLookups:
    """Answers the requests of one timeline, chunk by chunk, from dataset number `number`."""

    def __init__(
        self,
        source: AggregateSource,
        number: int,
        scratch: ScratchStore,
        carried_rows: int = CARRIED_ROWS,
    ) -> None:
        self._lookup = SortedEventsLookup(source.needed, expiries=source.timed)
        self._tiles = TileLookups(source, number, scratch)
        self._number, self._limit = number, carried_rows
        self._output, self._wanted = source.needed.output, source.columns
        self._own_columns = [version_column(number, name) for name in source.version_columns]
        self._names = source.version_columns
        self._carried: pl.DataFrame | None = None
        self._in_tiles: bytes | None = None

    @property
    def carried_rows(self) -> int:
        """The number of events that are remembered for the next chunk."""
        return 0 if self._carried is None else self._carried.height

    def answer(self, seen: SeenVersions) -> pl.DataFrame:
        """Return, per request of a chunk in order, the columns of the result and `FOUND`."""
        rows = seen.frame()
        in_tiles = rows.filter(pl.col(KEY) == pl.lit(self._in_tiles, dtype=pl.Binary))
        found = []
        if not in_tiles.is_empty():
            found.append(self._tiles.answer_rows(in_tiles))
        others = rows[in_tiles.height :]
        if not others.is_empty():
            self._in_tiles = None
            known = others if self._carried is None else pl.concat([self._carried, others])
            found.append(self._answered(known))
            self._carry(known)
        return pl.concat(found) if found else self._answered(rows)

    def _answered(self, rows: pl.DataFrame) -> pl.DataFrame:
        is_request = (rows[SOURCE] == REQUEST).to_numpy()
        begins = (rows[KEY] != rows[KEY].shift(1)).fill_null(value=True).to_numpy()
        keys, times = np.cumsum(begins, dtype=np.int64), rows[TIME].to_numpy()
        events = rows.filter(~pl.Series(is_request)).select(
            *META,
            *(
                pl.col(column).alias(name)
                for column, name in zip(self._own_columns, self._names, strict=True)
            ),
        )
        requests = SortedRequests(keys[is_request], times[is_request])
        answers = self._lookup.look_up(events, keys[~is_request], times[~is_request], requests)
        dtypes = {field.name: field.dtype for field in self._output.values}
        columns = {self._output.timestamp: answers.timestamps, **answers.columns}
        found = pl.Series(FOUND, answers.found, dtype=pl.Boolean)
        return pl.DataFrame(
            [
                *(
                    QueryColumn(optional(dtypes.get(name, Timestamp())), values).series.alias(name)
                    for name, values in columns.items()
                    if name in self._wanted
                ),
                found,
            ]
        )

    def _carry(self, rows: pl.DataFrame) -> None:
        """Remember the events of the last key that later requests may read."""
        key, now = rows.item(-1, KEY), rows.item(-1, TIME)
        events = rows.filter((pl.col(KEY) == key) & (pl.col(SOURCE) == self._number))
        span = self._lookup.longest_span_us
        if span is not None:
            # All events up to `now - span` are known, those that retract them included.
            past = pl.col(TIME) <= now - span
            events = pl.concat([self._last(events.filter(past)), events.filter(~past)])
        if events.height > self._limit:
            self._tiles.answer_rows(events)
            self._in_tiles, events = key, events.clear()
        self._carried = events

    def _last(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return the last event that is not retracted, or none."""
        if events.is_empty() or (events[SIGN] > 0).all():
            return events[-1:]
        content = pl.Series(_ROW, encode_rows(events, self._own_columns), dtype=pl.Binary)
        remaining = (
            events.with_columns(content)
            .group_by(TIME, POS, _ROW)
            .agg(pl.exclude(SIGN).first(), pl.col(SIGN).cast(pl.Int64).sum())
            .filter(pl.col(SIGN) > 0)
            .sort(ORDER)
        )
        return remaining.select(pl.col(name).cast(dtype) for name, dtype in events.schema.items())[
            -1:
        ]
