"""Ranges of sorted events: many values of one aggregation at once.

Theory. A reader of training data asks for the value over a window as of thousands of times. With
the events of each key sorted by time, a window is a range [start, stop) of their numbers, and
neighbouring windows overlap. So sums come from running totals, two per range; the largest value
from a table of the largest of 2^n neighbours; everything else from one partial that gains the
events at one end and loses those at the other (`Aggregator.over`). All of it is exact: the values
are those of `update` and `finalize` over the same events.

Example. With the events 5, 7 and 3, the running totals are 0, 5, 12 and 15. The sum over the range
[1, 3) is 15 - 5 = 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from fennel_core.aggregates.exact import Ints


@dataclass(frozen=True)
class Ranges:
    """Ranges [starts[i], stops[i]) of events, starts[i] <= stops[i], each as of a time.

    Any ranges are right; those whose starts and stops both only grow, within a key, are fast.
    """

    starts: Ints
    stops: Ints
    as_of: Ints

    @cached_property
    def bounds(self) -> list[tuple[int, int]]:
        """The (start, stop) of each range."""
        return list(zip(self.starts.tolist(), self.stops.tolist(), strict=True))

    @cached_property
    def times(self) -> list[int]:
        """The time of each range."""
        times: list[int] = self.as_of.tolist()
        return times

    def sums(self, values: Ints) -> Ints:
        """Return the sum of the values of each range, modulo 2^64."""
        running: Ints = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(values, out=running[1:])
        sums: Ints = running[self.stops] - running[self.starts]
        return sums

    def big_sums(self, values: Sequence[int]) -> list[int]:
        """Return the sum of the values of each range, whatever their size."""
        running = list(accumulate(values, initial=0))
        return [running[stop] - running[start] for start, stop in self.bounds]

    def largest(self, values: Ints) -> Ints:
        """Return the largest value of each range, 0 for an empty range; no value is negative."""
        lengths = self.stops - self.starts
        # The largest n with 2^n <= length, by the exponent of the length as a float.
        levels = np.frexp(lengths.astype(np.float64))[1] - 1
        found: Ints = np.zeros(len(lengths), dtype=np.int64)
        largest = np.asarray(values, dtype=np.int64)
        for level in range(int(levels.max(initial=-1)) + 1):
            width = 1 << level
            if level:
                half = width // 2
                largest = np.maximum(largest[:-half], largest[half:])
            here = np.flatnonzero((levels == level) & (lengths > 0))
            found[here] = np.maximum(largest[self.starts[here]], largest[self.stops[here] - width])
        return found


def numbers_up_to(times: Ints, first: Ints, stop: Ints, limits: Ints) -> Ints:
    """Return, per i, the number after the last of times[first[i]:stop[i]] that is at or before
    limits[i]; first[i] if none is. The times are sorted.
    """
    low, high = first.copy(), stop.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        inside = open_ & (times[np.where(open_, middle, 0)] <= limits)
        low = np.where(inside, middle + 1, low)
        high = np.where(open_ & ~inside, middle, high)
    return low
