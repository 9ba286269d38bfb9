"""When the value of a window changes, and which rows it covers at a time.

Theory (client semantics 4.3). A window type says three things about a row at t and a reader at q:

                        changes at                                 covers at q
                        reaches
    forever             t                                          t <= q                         t
    … ∞
    sliding d           t and t + d + 1 s                          q − d − 1 s < t <= q           t
    … t + d + 1 s
    hopping d, s        every multiple E of s with t < E <= t + d,  E − d <= t < E
    first E … last E + s
      (tumbling: s = d) and one s later, when the row has left     for E = the last multiple of s at
      or before q
    forever hopping s   the next multiple of s after t             t < E, E as above
    that multiple … ∞

A row of the result stands at every time at which one of its columns changes; all columns are read
at that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from fennel_core.aggregates.exact import Ints
from fennel_core.operators.aggregate.assemble import TimeRange
from fennel_core.operators.rows import MAX_TIME, MIN_TIME
from fennel_core.wire import operators as wire

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Changes:
    """Row numbers and times, in pairs: row `rows[i]` makes the result change at `times[i]`."""

    rows: Ints
    times: Ints


def changes(windows: Sequence[wire.Window], ts: Ints) -> Changes:
    """All changes made by rows at `ts`; a pair comes once for every window it comes from."""
    every = np.arange(len(ts))
    parts = [_changes(window, every, ts) for window in windows]
    return Changes(
        np.concatenate([p.rows for p in parts]), np.concatenate([p.times for p in parts])
    )


def _changes(window: wire.Window, every: Ints, ts: Ints) -> Changes:
    match window:
        case wire.Forever():
            return Changes(every, ts)
        case wire.Sliding(duration_us):
            return Changes(
                np.concatenate([every, every]), np.concatenate([ts, ts + duration_us + SECOND_US])
            )
        case wire.ForeverHopping(stride_us):
            return Changes(every, _end(ts, stride_us))
        case wire.Tumbling() | wire.Hopping():
            ends = containing(window, ts)
            last = _hopping(window)[0] + ts
            stride = _hopping(window)[1]
            return Changes(
                np.concatenate([ends.rows, every]),
                np.concatenate([ends.times, last // stride * stride + stride]),
            )
        case wire.Session():
            raise ValueError("sessions are windows of groupby(window=…), not of an aggregation")
        case unreachable:
            assert_never(unreachable)


def reach(windows: Sequence[wire.Window], ts: Ints) -> tuple[Ints, Ints]:
    """First and last time at which rows at `ts` can make any difference."""
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
            duration, stride = _hopping(window)
            return _end(ts, stride), (ts + duration) // stride * stride + stride
        case wire.Session():
            raise ValueError("sessions are windows of groupby(window=…), not of an aggregation")
        case unreachable:
            assert_never(unreachable)


def covered(window: wire.Window, moment: int) -> TimeRange:
    """The rows a window covers as of a time."""
    match window:
        case wire.Forever():
            return MIN_TIME, moment
        case wire.Sliding(duration_us):
            return max(moment - duration_us - SECOND_US, MIN_TIME), moment
        case wire.ForeverHopping(stride_us):
            return MIN_TIME, moment // stride_us * stride_us - 1
        case wire.Tumbling() | wire.Hopping():
            duration, stride = _hopping(window)
            end = moment // stride * stride
            return end - duration - 1, end - 1
        case wire.Session():
            raise ValueError("sessions are windows of groupby(window=…), not of an aggregation")
        case unreachable:
            assert_never(unreachable)


def lookback_us(windows: Sequence[wire.Window]) -> int | None:
    """How long after its end a window stays open; None if the windows never close but move with the
    reader.
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


def containing(window: wire.Tumbling | wire.Hopping, ts: Ints) -> Changes:
    """The ends of all windows that contain rows at `ts`."""
    duration, stride = _hopping(window)
    first = _end(ts, stride)
    count = ((ts + duration) // stride * stride - first) // stride + 1
    rows = np.repeat(np.arange(len(ts)), count)
    step = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return Changes(rows, first[rows] + step * stride)


def _hopping(window: wire.Tumbling | wire.Hopping) -> tuple[int, int]:
    if isinstance(window, wire.Tumbling):
        return window.duration_us, window.duration_us
    return window.duration_us, window.stride_us


def _end(ts: Ints, stride: int) -> Ints:
    """The next multiple of `stride` after each time."""
    return (ts // stride + 1) * stride
