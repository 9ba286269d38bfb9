"""The law of a limit: in any time, no more rows are read than it allows for that, and two steps.

Two, because the rows of a step may be read at its end, and those of the next one at its beginning.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.sources.pace import STEP_S, rest_s, step_rows

MOST = 10_000
RATES = st.floats(0.01, 1e6)
STEPS = st.lists(
    st.tuples(st.integers(0, 3 * MOST), st.floats(0.0, 30.0), st.floats(0.0, 1.0)),
    min_size=1,
    max_size=30,
)
"""How many rows a step finds, how long it takes, and at which part of that time it has them."""


def steps_of(
    rows_per_s: float, given_steps: list[tuple[int, float, float]]
) -> list[tuple[float, int]]:
    """Return when each step of a reader has its rows, and how many."""
    now_s, found = 0.0, []
    for there, took_s, part in given_steps:
        rows = min(there, step_rows(rows_per_s, MOST))
        found.append((now_s + part * took_s, rows))
        rested_s = rest_s(rows_per_s, rows, took_s)
        assert rested_s >= 0
        now_s += took_s + rested_s
    return found


@given(RATES, STEPS)
def test_no_time_has_more_rows_than_the_limit_and_two_steps(
    rows_per_s: float, given_steps: list[tuple[int, float, float]]
) -> None:
    found = steps_of(rows_per_s, given_steps)
    for first, (begun_s, _) in enumerate(found):
        for last in range(first, len(found)):
            rows = sum(rows for _, rows in found[first : last + 1])
            allowed = rows_per_s * (found[last][0] - begun_s) + 2 * step_rows(rows_per_s, MOST)
            assert rows <= allowed * (1 + 1e-9)


@given(RATES, st.integers(2, 50))
def test_a_reader_that_is_fast_enough_reaches_its_limit(rows_per_s: float, count: int) -> None:
    found = steps_of(rows_per_s, [(MOST, 0.0, 0.0)] * count)
    rows = sum(rows for _, rows in found[:-1])
    assert abs(rows - rows_per_s * found[-1][0]) <= 1e-6 * rows


@given(RATES)
def test_a_step_is_what_the_limit_has_for_its_time_or_one_row(rows_per_s: float) -> None:
    step = step_rows(rows_per_s, MOST)
    assert step == 1 or step <= min(MOST, rows_per_s * STEP_S)
    assert step_rows(None, MOST) == MOST


@given(st.integers(0, 1 << 40), st.floats(0.0, 1e6))
def test_nothing_rests_without_a_limit(rows: int, took_s: float) -> None:
    assert rest_s(None, rows, took_s) == 0.0
