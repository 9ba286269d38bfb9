"""Exact sums against fractions, and roots against the standard library's."""

import math
import statistics
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fennel_core.aggregates import exact

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def _fraction(number: exact.Exact) -> Fraction:
    return Fraction(number[0]) * Fraction(2) ** number[1]


@given(st.lists(st.lists(FINITE, min_size=1), min_size=1, max_size=4))
def test_sums_of_segments_are_the_sums_of_their_fractions(segments):
    values = np.array([v for segment in segments for v in segment])
    starts = np.cumsum([0, *map(len, segments)])[:-1]
    totals = exact.sums(*exact.split(values), starts)
    assert [_fraction(t) for t in totals] == [sum(map(Fraction, segment)) for segment in segments]


@given(st.lists(FINITE, min_size=1))
def test_a_rounded_sum_is_that_of_fsum(values):
    (total,) = exact.sums(*exact.split(np.array(values)), np.array([0]))
    try:
        expected = math.fsum(values)
    except OverflowError:
        return
    assert exact.divided(total, 1) == expected


@given(FINITE)
def test_squares_are_exact(value):
    (total,) = exact.square_sums(*exact.split(np.array([value])), np.array([0]))
    assert _fraction(total) == Fraction(value) ** 2


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1))
def test_integers_add_without_wrapping(values):
    assert exact.integer_sums(np.array(values, dtype=np.int64), np.array([0])) == [sum(values)]
    assert exact.integer_sums(np.array(values, dtype=object), np.array([0])) == [sum(values)]


@given(st.lists(FINITE.filter(lambda v: abs(v) < 1e150), min_size=1))
def test_the_square_root_of_a_variance_is_correctly_rounded(values):
    fractions = [Fraction(v) for v in values]
    mean = sum(fractions) / len(fractions)
    variance = sum((v - mean) ** 2 for v in fractions) / len(fractions)
    assert exact.square_root(variance.numerator, variance.denominator) == statistics.pstdev(values)


@given(st.integers(-(10**30), 10**30), st.integers(-1100, 900))
def test_the_normal_form_is_the_same_number_with_an_odd_mantissa(mantissa, exponent):
    m, e = exact.normal((mantissa, exponent))
    assert _fraction((m, e)) == _fraction((mantissa, exponent))
    assert m % 2 == 1 or (m, e) == exact.ZERO
