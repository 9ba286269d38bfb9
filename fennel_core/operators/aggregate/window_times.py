"""The times at which the value of a window changes, and the rows it covers at a time.

Theory (client semantics 4.3). For a row at t and a reader at q, a window type determines

- forever: changes at t; covers t <= q; reaches from t to the end of time.
- sliding d: changes at t and at t + d + 1 s; covers q - d - 1 s < t <= q; reaches from t to
  t + d + 1 s.
- hopping d, s (tumbling: s = d): changes at every multiple E of s with t < E <= t + d, and one s
  later, when the row has left; covers E - d <= t < E, where E is the last multiple of s at or
  before q; reaches from the first E to the last E + s.
- forever hopping s: changes at the next multiple of s after t; covers t < E, with E as above;
  reaches from that multiple to the end of time.

The result has a row at every time at which one of its columns changes; all columns are read at that
time.

Example. A row at 0:20 in a hopping window of 1 h every 30 min changes the result at 0:30 and 1:00,
the ends of the two windows that contain it, and at 1:30, when it has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from fennel_core.aggregates.exact import Ints
from fennel_core.operators.aggregate.assemble import TimeRange
from fennel_core.operators.errors import UnsupportedAggregation
from fennel_core.operators.rows import MAX_TIME, MIN_TIME
from fennel_core.wire import operators as wire

SECOND_US = 1_000_000
NO_SESSIONS = "a session window belongs to groupby(window=...), not to an aggregation"


@dataclass(frozen=True, slots=True)
class RowTimes:
    """Row numbers and times, in columns: row `rows[i]` changes the result at `times[i]`."""

    rows: Ints
    times: Ints


def change_times(windows: Sequence[wire.Window], ts: Ints) -> RowTimes:
    """Return the change times of rows at `ts`. A pair occurs once per window that it comes from."""
    every = np.arange(len(ts))
    parts = [_change_times(window, every, ts) for window in windows]
    return RowTimes(
        np.concatenate([p.rows for p in parts]), np.concatenate([p.times for p in parts])
    )


def _change_times(window: wire.Window, every: Ints, ts: Ints) -> RowTimes:
    match window:
        case wire.Forever():
            return RowTimes(every, ts)
        case wire.Sliding(duration_us):
            return RowTimes(
                np.concatenate([every, every]), np.concatenate([ts, ts + duration_us + SECOND_US])
            )
        case wire.ForeverHopping(stride_us):
            return RowTimes(every, _end(ts, stride_us))
        case wire.Tumbling() | wire.Hopping():
            ends = containing(window, ts)
            duration, stride = duration_and_stride(window)
            last = duration + ts
            return RowTimes(
                np.concatenate([ends.rows, every]),
                np.concatenate([ends.times, last // stride * stride + stride]),
            )
        case wire.Session():
            raise UnsupportedAggregation(NO_SESSIONS)
        case unreachable:
            assert_never(unreachable)


def reach(windows: Sequence[wire.Window], ts: Ints) -> tuple[Ints, Ints]:
    """Return the first and last time at which rows at `ts` can change a result."""
    spans = [_reach(window, ts) for window in windows]
    return np.minimum.reduce([first for first, _ in spans]), np.maximum.reduce(
        [last for _, last in spans]
    )


def _reach(window: wire.Window, ts: Ints) -> tuple[Ints, Ints]:
    forever = np.full(len(ts), MAX_TIME - 1)
    match window:
        case wire.Forever():
            return ts, forever
        case wire.Sliding(duration_us):
            return ts, ts + duration_us + SECOND_US
        case wire.ForeverHopping(stride_us):
            return _end(ts, stride_us), forever
        case wire.Tumbling() | wire.Hopping():
            duration, stride = duration_and_stride(window)
            return _end(ts, stride), (ts + duration) // stride * stride + stride
        case wire.Session():
            raise UnsupportedAggregation(NO_SESSIONS)
        case unreachable:
            assert_never(unreachable)


def covered(window: wire.Window, time: int) -> TimeRange:
    """Return the range of the rows that a window covers as of a time."""
    match window:
        case wire.Forever():
            return MIN_TIME, time
        case wire.Sliding(duration_us):
            return max(time - duration_us - SECOND_US, MIN_TIME), time
        case wire.ForeverHopping(stride_us):
            return MIN_TIME, time // stride_us * stride_us - 1
        case wire.Tumbling() | wire.Hopping():
            duration, stride = duration_and_stride(window)
            end = time // stride * stride
            return end - duration - 1, end - 1
        case wire.Session():
            raise UnsupportedAggregation(NO_SESSIONS)
        case unreachable:
            assert_never(unreachable)


def lookback_us(windows: Sequence[wire.Window]) -> int | None:
    """Return how long after its end a window stays open; None if the windows move with the reader
    and never close.
    """
    found = {
        w.lookback_us
        for w in windows
        if isinstance(w, wire.Tumbling | wire.Hopping | wire.ForeverHopping)
    }
    if not found:
        return None
    assert len(found) == 1, "all windows of one aggregation have the same lookback"
    return found.pop()


def containing(window: wire.Tumbling | wire.Hopping, ts: Ints) -> RowTimes:
    """Return the ends of all windows that contain rows at `ts`."""
    duration, stride = duration_and_stride(window)
    first = _end(ts, stride)
    count = ((ts + duration) // stride * stride - first) // stride + 1
    rows = np.repeat(np.arange(len(ts)), count)
    step = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return RowTimes(rows, first[rows] + step * stride)


def duration_and_stride(window: wire.Tumbling | wire.Hopping) -> tuple[int, int]:
    """Return the duration and the stride of a window."""
    if isinstance(window, wire.Tumbling):
        return window.duration_us, window.duration_us
    return window.duration_us, window.stride_us


def _end(ts: Ints, stride: int) -> Ints:
    """Return the next multiple of `stride` after each time."""
    return (ts // stride + 1) * stride
