"""Rate limits of sources: a reader rests after what it has read, until it may read on.

    a step   read at most `step_rows`, or one batch if that is more, in `took_s` seconds
    a rest   as long as the limit takes for the rows of the step, less `took_s`

So in any time, however it begins, no more rows are read than the limit allows for it, and two
steps: the rows of one may come at its end, and those of the next at its beginning. Rows count when
they are read, whatever becomes of them: the limit is for the system that they come from. What was
not used is not saved up. A reader that fails rests for what it has read before it is tried again.
"""

from __future__ import annotations

import math
from typing import Final

STEP_S: Final = 2.0
"""A step is what the limit has for this time: how uneven the load of a limited source is."""
MIN_ROWS_PER_S: Final = 0.01
"""A rest is at most 100 s, so a run over a table ends in time and keeps its pace."""
MAX_ROWS_PER_S: Final = 1e9
"""More than any source has: a larger limit is a mistake."""


def step_rows(rows_per_s: float | None, most: int) -> int:
    """Return how many rows a step reads: at least one, and never more than `most`."""
    if rows_per_s is None:
        return most
    return max(1, min(most, math.floor(rows_per_s * STEP_S)))


def rest_s(rows_per_s: float | None, rows: int, took_s: float) -> float:
    """Return how long to rest after `rows` rows were read in `took_s` seconds."""
    if rows_per_s is None:
        return 0.0
    return max(0.0, rows / rows_per_s - max(0.0, took_s))
