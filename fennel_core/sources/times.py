"""Write times as text, many at once, as `msgspec` writes a `datetime` in UTC and a `date`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

MICROS: Final = 1_000_000
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICRO: Final = dt.timedelta(microseconds=1)
FIRST_US: Final = (dt.datetime.min.replace(tzinfo=dt.UTC) - EPOCH) // _MICRO
LAST_US: Final = (dt.datetime.max.replace(tzinfo=dt.UTC) - EPOCH) // _MICRO
FIRST_DAY: Final = FIRST_US // (86_400 * MICROS)
LAST_DAY: Final = LAST_US // (86_400 * MICROS)


def texts_of_times(
    values: Sequence[int] | npt.NDArray[np.int64], units_per_s: int
) -> list[str | None]:
    """Return the text of each time since 1970; None outside of the years 1 to 9999.

    A value has 64 bits, and `units_per_s` divides a million.
    """
    each = MICROS // units_per_s
    numbers = pl.Series(values, dtype=pl.Int64)
    inside = numbers.is_between(FIRST_US // each, LAST_US // each)
    times = (numbers.set(~inside, None) * each).cast(pl.Datetime("us"))
    whole = times.dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    is_whole = numbers % units_per_s == 0
    if is_whole.all():
        return whole.to_list()
    return whole.zip_with(is_whole, times.dt.strftime("%Y-%m-%dT%H:%M:%S.%6fZ")).to_list()


def texts_of_days(values: Sequence[int]) -> list[str | None]:
    """Return the text of each day since 1970; as `texts_of_times`."""
    numbers = pl.Series(values, dtype=pl.Int64)
    inside = numbers.is_between(FIRST_DAY, LAST_DAY)
    return numbers.set(~inside, None).cast(pl.Int32).cast(pl.Date).dt.strftime("%Y-%m-%d").to_list()
