"""The rows of a terminal aggregation as of many times at once, from events that are all at hand.

Theory. Online, a lookup reads the tiles of one key (`read_time.py`). Who has the events of many
keys sorted by key and time needs no tiles: the window of a request is a range of events, found by
binary search, and every aggregator computes its values over all ranges at once
(`Aggregator.over`). Both give the same rows, to the last bit.

Events that cancel out are removed first, so the last event up to a time is the last one that
counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fennel_core.aggregates.aggregation import Events
from fennel_core.aggregates.exact import Ints
from fennel_core.aggregates.factory import make_aggregator
from fennel_core.aggregates.ranges import Ranges, numbers_up_to
from fennel_core.aggregates.records import Bools, Records, records_of_frame
from fennel_core.operators.aggregate.grouping import record_layout
from fennel_core.operators.aggregate.read_time import SECOND_US, span_us
from fennel_core.operators.rows import MIN_TIME, decode, encode
from fennel_core.operators.spec import AggregateSpec
from fennel_core.vocab.versions import POS, SIGN
from fennel_core.wire import operators as wire


@dataclass(frozen=True, slots=True)
class SortedRequests:
    """Requests for keys at times. Keys are numbers here, those of the events too."""

    keys: Ints
    times: Ints


@dataclass(frozen=True, slots=True)
class AggregateColumns:
    """One item per request. `timestamps` and `columns`, by name, mean nothing where no event is
    found.
    """

    found: Bools
    timestamps: list[int]
    columns: dict[str, Sequence[object]]


class SortedEventsLookup:
    """Looks up rows of a terminal `AggregateSpec` over a keyless input.

    `expiries`: whether the timestamp of a row counts expiries, as in `ReadTimeAggregateStep`.
    """

    def __init__(self, spec: AggregateSpec, *, expiries: bool) -> None:
        self._names = [one.name for one in spec.specs]
        self._aggregators = [make_aggregator(one, spec.input) for one in spec.specs]
        self._layout = record_layout(spec.input, self._aggregators)
        self._spans = [
            span_us(one.window, aggregator)
            for one, aggregator in zip(spec.specs, self._aggregators, strict=True)
        ]
        sliding = [one.window for one in spec.specs if isinstance(one.window, wire.Sliding)]
        spans = {window.duration_us + SECOND_US for window in sliding}
        self._sliding_spans = sorted(spans) if expiries else []

    @property
    def longest_span_us(self) -> int | None:
        """How far back a request reads, the last event before aside; None: over all events."""
        spans = [*self._spans, *self._sliding_spans]
        return None if None in spans else max((span for span in spans if span), default=1)

    def look_up(
        self, events: pl.DataFrame, keys: Ints, times: Ints, requests: SortedRequests
    ) -> AggregateColumns:
        """Return the rows of requests from `events`, which have numbers of `keys` and `times`, and
        are sorted by them.
        """
        time = pl.Series(times)
        records = records_of_frame(self._layout, events, time, events[SIGN], events[POS])
        records, keys = _settled(records, keys)
        times = records.ts
        first = np.searchsorted(keys, requests.keys, side="left").astype(np.int64)
        end = np.searchsorted(keys, requests.keys, side="right").astype(np.int64)
        stop = numbers_up_to(times, first, end, requests.times)

        def before(span: int | None) -> Ints:
            """Return the first number within a span of each request."""
            if span is None:
                return first
            reach = np.maximum(requests.times, MIN_TIME + span) - span
            return numbers_up_to(times, first, stop, reach)

        begins = {span: before(span) for span in {*self._spans, *self._sliding_spans}}
        found = stop > first
        last = _times_before(times, stop, found, 0)
        for sliding in self._sliding_spans:
            begin = begins[sliding]
            last = np.maximum(last, _times_before(times, begin, begin > first, sliding))
        sorted_events = Events(records, np.zeros(min(len(records), 1), dtype=np.int64))
        columns = {}
        for name, span, aggregator in zip(self._names, self._spans, self._aggregators, strict=True):
            ranges = Ranges(begins[span], stop, requests.times)
            # As a stored row: values that are msgpack already become values again.
            columns[name] = decode(encode(aggregator.over(sorted_events, ranges)))
        return AggregateColumns(found, last.tolist(), columns)


def _settled(records: Records, keys: Ints) -> tuple[Records, Ints]:
    """Return the events that remain, each with weight 1, and their keys.

    A retraction whose event is not there is left out: the event was pruned from history.
    """
    if (records.weight == 1).all():
        return records, keys
    records, keys = records.merged_within(keys)
    remaining = np.flatnonzero(records.weight > 0)
    records, keys = records.take(remaining), keys[remaining]
    starts = np.zeros(min(len(records), 1), dtype=np.int64)
    return Events.of(records, starts).records, np.repeat(keys, records.weight)


def _times_before(times: Ints, numbers: Ints, exists: Bools, span: int) -> Ints:
    """Return times[numbers - 1] + span where it exists, else the smallest time."""
    if len(times) == 0:
        return np.full(len(numbers), MIN_TIME, dtype=np.int64)
    found: Ints = np.where(exists, times[np.where(exists, numbers - 1, 0)] + span, MIN_TIME)
    return found
