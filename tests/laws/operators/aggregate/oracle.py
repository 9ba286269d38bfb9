"""The obvious aggregation: collect the rows of the window, then compute. Imports nothing of ours."""

import math
import statistics
from fractions import Fraction

SECOND = 1_000_000


def in_window(rows, key, moment, window):
    """Rows of `key` with t <= moment < t + d + 1 s in (timestamp, position) order; `window` None is for ever."""
    past = sorted((r for r in rows if r["k"] == key and r["t"] <= moment), key=lambda r: (r["t"], r["__pos"]))
    return past if window is None else [r for r in past if moment < r["t"] + window + SECOND]


def last_change(rows, key, moment, windows):
    times = [r["t"] for r in in_window(rows, key, moment, None)]
    expiries = [t + w + SECOND for t in times for w in windows if t + w + SECOND <= moment]
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
    return float(sorted(values)[min(math.floor(p * len(values)), len(values) - 1)]) if values else default


def ends(values, limit, dedup):
    """`values` in the order asked for."""
    return (list(dict.fromkeys(values)) if dedup else values)[:limit]


def decayed(rows, column, moment, half_life):
    age = [(moment // SECOND - r["t"] // SECOND) * SECOND / half_life for r in rows]
    return math.fsum(r[column] * 2.0**-a for r, a in zip(rows, age, strict=True) if r[column] is not None)
