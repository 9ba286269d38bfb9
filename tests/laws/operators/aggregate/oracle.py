"""The naive aggregation: collect the rows of the window, then compute. Imports nothing from the
project.
"""

import math
import statistics
from fractions import Fraction

SECOND = 1_000_000


def in_window(rows, key, as_of, window):
    """Rows of `key` with t <= as_of < t + d + 1 s in (timestamp, position) order; `window` None is
    forever.
    """
    past = sorted(
        (r for r in rows if r["k"] == key and r["t"] <= as_of), key=lambda r: (r["t"], r["__pos"])
    )
    return past if window is None else [r for r in past if as_of < r["t"] + window + SECOND]


def last_change(rows, key, as_of, windows):
    times = [r["t"] for r in in_window(rows, key, as_of, None)]
    expiries = [t + w + SECOND for t in times for w in windows if t + w + SECOND <= as_of]
    return max(times + expiries, default=None)


def total(values):
    exact = sum(map(Fraction, values))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def average(values, default):
    return float(sum(map(Fraction, values)) / len(values)) if values else default


def stddev(values, default):
    return statistics.pstdev([Fraction(v) for v in values]) if values else default


def quantile(values, p, default):
    return (
        float(sorted(values)[min(math.floor(p * len(values)), len(values) - 1)])
        if values
        else default
    )


def first_k(values, limit, dedup):
    """Return the first `limit` of `values`, each once if `dedup`."""
    return (list(dict.fromkeys(values)) if dedup else values)[:limit]


def decayed(rows, column, as_of, half_life):
    age = [(as_of // SECOND - r["t"] // SECOND) * SECOND / half_life for r in rows]
    return math.fsum(
        r[column] * 2.0**-a for r, a in zip(rows, age, strict=True) if r[column] is not None
    )


def changes(window, rows):
    """Times at which the value of a window may change. `window`: ("forever",), ("sliding", d),
    ("hopping", d, s), ("steps", s).
    """
    match window:
        case ("forever",):
            return {r["t"] for r in rows}
        case ("sliding", d):
            return {r["t"] for r in rows} | {r["t"] + d + SECOND for r in rows}
        case ("steps", s):
            return {(r["t"] // s + 1) * s for r in rows}
        case ("hopping", d, s):
            ends = {
                e
                for r in rows
                for e in range(r["t"] // s * s, r["t"] + d + s + 1, s)
                if r["t"] < e <= r["t"] + d
            }
            return ends | {e + s for e in ends}


def covered(window, rows, as_of):
    match window:
        case ("forever",):
            return [r for r in rows if r["t"] <= as_of]
        case ("sliding", d):
            return [r for r in rows if r["t"] <= as_of < r["t"] + d + SECOND]
        case ("steps", s):
            return [r for r in rows if r["t"] < as_of // s * s]
        case ("hopping", d, s):
            return [r for r in rows if as_of // s * s - d <= r["t"] < as_of // s * s]


def emitted(rows, windows, visible):
    """Versions (key, time, [rows covered per window]) at every time up to `visible` at which any
    window changes.
    """
    out = []
    for key in {r["k"] for r in rows}:
        mine = [r for r in rows if r["k"] == key]
        times = {m for window in windows for m in changes(window, mine) if m <= visible}
        out += [(key, m, [covered(window, mine, m) for window in windows]) for m in times]
    return out


def interval(row, window):
    """Return when a row begins and ceases (None: never) to count in ("forever",), ("sliding", d),
    ("steps", s) or ("hopping", d, s); None if it never counts.
    """
    begin, end = row["t"], row["__valid_to"]
    if window[0] == "sliding":
        end = min(e for e in (end, begin + window[1] + SECOND) if e is not None)
    if window[0] == "steps":
        begin = (begin // window[1] + 1) * window[1]
    if window[0] == "hopping":
        times = changes(window, [row])
        begin, left = min(times), max(times)
        end = left if end is None else min(end, left)
    return None if end is not None and end <= begin else (begin, end)


def counting(rows, as_of, window):
    intervals = [(r, interval(r, window)) for r in rows]
    return [
        r
        for r, span in intervals
        if span and span[0] <= as_of and (span[1] is None or as_of < span[1])
    ]


def interval_boundaries(rows, windows):
    return {time for r in rows for w in windows for time in interval(r, w) or ()} - {None}
