"""Exact sums of floats, vectorised: the final rounding does not depend on the order of the terms.

Theory. A finite float is an integer times a power of two, so a sum of floats is one too, and
integers add without rounding. `Exact` is that pair `(mantissa, exponent)` with a mantissa of any
size; it is rounded once, when it is read. To sum many floats quickly, each mantissa is aligned to a
grid of 32-bit limbs, `m · 2^e = Σ limb_i · 2^(32 i)`, the limbs are added in int64 lanes (they have
33 bits, so 2^30 terms fit), and Python integers combine the few limb sums of each segment.
Infinities and NaN are not handled here; the caller counts them.

Example. 1e16 + 1.0 - 1e16 is 0.0 in floating point. Here the terms are (10^16, 0), (1, 0) and
(-10^16, 0), their sum is (1, 0), and it is read as 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Exact = tuple[int, int]
"""`(m, e)`: the number m · 2^e."""

ZERO: Exact = (0, 0)
_LIMB_BITS = 32
_LIMB_MASK = (1 << _LIMB_BITS) - 1
MANTISSA_BITS = 53


def add(a: Exact, b: Exact) -> Exact:
    """Return a + b."""
    (m, e), (n, f) = a, b
    if e == f:
        return m + n, e
    if e > f:
        return (m << (e - f)) + n, f
    return m + (n << (f - e)), e


def total(terms: Iterable[Exact]) -> Exact:
    """Return the sum of a few numbers."""
    whole = ZERO
    for term in terms:
        whole = add(whole, term)
    return whole


def of_number(value: int | float) -> Exact:
    """Return a finite number as m · 2^e."""
    if isinstance(value, int):
        return value, 0
    top, bottom = value.as_integer_ratio()
    return top, 1 - bottom.bit_length()


def negate(a: Exact) -> Exact:
    """Return -a."""
    return -a[0], a[1]


def normal(a: Exact) -> Exact:
    """Return the same number with an odd mantissa (zero is `ZERO`): the shortest form to store, and
    equal exactly when the numbers are.
    """
    m, e = a
    if m == 0:
        return ZERO
    zeros = (m & -m).bit_length() - 1
    return m >> zeros, e + zeros


def divided(a: Exact, by: int) -> float:
    """Return m · 2^e / by, correctly rounded to the nearest float; +/-infinity if too large."""
    m, e = normal(a)
    top, bottom = (m << e, by) if e >= 0 else (m, by << -e)
    try:
        return top / bottom
    except OverflowError:
        return math.inf if (top > 0) == (bottom > 0) else -math.inf


def square_root(top: int, bottom: int) -> float:
    """Return the square root of top / bottom (top >= 0, bottom > 0), correctly rounded: an integer
    root with a sticky bit, then rounding.
    """
    if top == 0:
        return 0.0
    # Scale by 4^k so that the integer root has at least 55 bits; a set last bit marks what the
    # integer root cut off ("round to odd").
    k = (2 * MANTISSA_BITS + 6 - top.bit_length() + bottom.bit_length()) // 2
    scaled, rest = divmod(top << 2 * k, bottom) if k >= 0 else divmod(top, bottom << -2 * k)
    root = math.isqrt(scaled)
    if rest or root * root != scaled:
        root |= 1
    return divided((root, -k), 1)


def split(values: Floats) -> tuple[Ints, Ints]:
    """Return mantissas and exponents of finite floats: value = m · 2^e with |m| <= 2^53."""
    fractions, exponents = np.frexp(values)
    mantissas = np.ldexp(fractions, MANTISSA_BITS).astype(np.int64)
    return mantissas, exponents.astype(np.int64) - MANTISSA_BITS


def sums(mantissas: Ints, exponents: Ints, starts: Ints) -> list[Exact]:
    """Return the sum of m · 2^e of each segment, |m| <= 2^54. Segments begin at `starts`; none is
    empty.
    """
    totals: list[Exact] = [ZERO] * len(starts)
    if len(starts) == 0:
        return totals
    limbs = exponents >> 5
    owners = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(mantissas)))
    if limbs.min() != limbs.max():
        order = np.lexsort((limbs, owners))
        mantissas, exponents = mantissas[order], exponents[order]
        limbs, owners = limbs[order], owners[order]
        starts = np.flatnonzero(
            (np.diff(limbs, prepend=limbs[0] - 1) != 0) | (np.diff(owners, prepend=0) != 0)
        )
    shift = exponents & 31
    low, high = (mantissas & _LIMB_MASK) << shift, (mantissas >> _LIMB_BITS) << shift
    lanes = (low & _LIMB_MASK, (low >> _LIMB_BITS) + (high & _LIMB_MASK), high >> _LIMB_BITS)
    first, second, third = (np.add.reduceat(lane, starts).tolist() for lane in lanes)
    for owner, limb, a, b, c in zip(
        owners[starts].tolist(), limbs[starts].tolist(), first, second, third, strict=True
    ):
        total = a + (b << _LIMB_BITS) + (c << 2 * _LIMB_BITS)
        totals[owner] = add(totals[owner], (total, limb * _LIMB_BITS)) if total else totals[owner]
    return totals


def square_sums(mantissas: Ints, exponents: Ints, starts: Ints) -> list[Exact]:
    """Return the sum of the squares of m · 2^e of each segment, |m| <= 2^53."""
    low, high = mantissas & ((1 << 27) - 1), mantissas >> 27
    terms = ((high * high, 54), (2 * high * low, 27), (low * low, 0))
    parts = [sums(term, 2 * exponents + shift, starts) for term, shift in terms]
    return [add(add(a, b), c) for a, b, c in zip(*parts, strict=True)]


def integer_sums(values: npt.NDArray[Any], starts: Ints) -> list[int]:
    """Return the sum of the integers of each segment, whatever their size."""
    if values.dtype == object:
        return list(np.add.reduceat(values, starts).tolist())
    low = np.add.reduceat(values & _LIMB_MASK, starts).tolist()
    high = np.add.reduceat(values >> _LIMB_BITS, starts).tolist()
    return [(h << _LIMB_BITS) + w for h, w in zip(high, low, strict=True)]
