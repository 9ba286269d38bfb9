"""The `.dt` functions and `from_epoch` over Polars expressions.

Theory. A datetime is an instant, stored as microseconds in UTC; a zone matters only where it is
read as a calendar date (parts, strftime). Distances are counted in whole units and truncated toward
zero; a year is 365 days, a month has no length. Milliseconds and microseconds as *parts* are those
within the second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import polars as pl

from fennel_core.expressions.patterns import check_pattern, check_zone
from fennel_core.expressions.terms import RowCheck, Term, checks_of
from fennel_core.expressions.type_lattice import FIRST_US, LAST_US, TIMESTAMP
from fennel_core.vocab.dtypes import Dtype, Int, Timestamp
from fennel_core.wire.expr import DateTimeOp, Part, Since, SinceEpoch, Strftime, TimeUnit

SECOND_US = 1_000_000
LENGTH_US = {
    TimeUnit.MICROSECOND: 1,
    TimeUnit.MILLISECOND: 1_000,
    TimeUnit.SECOND: SECOND_US,
    TimeUnit.MINUTE: 60 * SECOND_US,
    TimeUnit.HOUR: 3_600 * SECOND_US,
    TimeUnit.DAY: 86_400 * SECOND_US,
}
LENGTH_DAYS = {TimeUnit.WEEK: 7, TimeUnit.YEAR: 365}
PARTS: dict[TimeUnit, Callable[[pl.Expr], pl.Expr]] = {
    TimeUnit.YEAR: lambda local: local.dt.year(),
    TimeUnit.MONTH: lambda local: local.dt.month(),
    TimeUnit.WEEK: lambda local: local.dt.week(),
    TimeUnit.DAY: lambda local: local.dt.day(),
    TimeUnit.HOUR: lambda local: local.dt.hour(),
    TimeUnit.MINUTE: lambda local: local.dt.minute(),
    TimeUnit.SECOND: lambda local: local.dt.second(),
    TimeUnit.MILLISECOND: lambda local: local.dt.millisecond(),
    TimeUnit.MICROSECOND: lambda local: local.dt.microsecond(),
}


def date_time(op: DateTimeOp, operand: Term, other: Term | None, result: Dtype) -> Term:
    """Compile a `.dt` function; `other` is the term of `Since`, None otherwise."""
    instant = operand.to(Timestamp())
    match op:
        case Since(_, unit):
            assert other is not None, "a distance has two ends"
            distance_us = instant.to_physical() - other.to(Timestamp()).to_physical()
            return Term(_whole(distance_us, unit), result, checks_of(operand, other))
        case SinceEpoch(unit):
            return Term(_whole(instant.to_physical(), unit), result, operand.checks)
        case Strftime(pattern, zone):
            local = instant.dt.convert_time_zone(check_zone(zone))
            return Term(local.dt.to_string(check_pattern(pattern)), result, operand.checks)
        case Part(unit, zone):
            local = instant.dt.convert_time_zone(check_zone(zone))
            return Term(PARTS[unit](local).cast(pl.Int64), result, operand.checks)
        case unreachable:
            assert_never(unreachable)


def _whole(distance_us: pl.Expr, unit: TimeUnit) -> pl.Expr:
    """Return whole units, truncated toward zero.

    Weeks and years are computed from whole days by floor division, as in the client.
    """
    if unit in LENGTH_DAYS:
        return _whole(distance_us, TimeUnit.DAY) // LENGTH_DAYS[unit]
    length_us = LENGTH_US[unit]
    return distance_us if length_us == 1 else distance_us.abs() // length_us * distance_us.sign()


def from_epoch(operand: Term, unit: TimeUnit, result: Dtype) -> Term:
    """Return the instant that many units after 1970.

    A row whose instant is outside the supported years fails (in the client it wraps around).
    """
    count, length_us = operand.to(Int()), LENGTH_US[unit]
    beyond = ~count.is_between(-(-FIRST_US // length_us), LAST_US // length_us)
    check = RowCheck(
        beyond,
        count,
        "bad-epoch",
        f"this many {unit.value}s from 1970 are outside the years 1 to 9999. Check the unit.",
    )
    return Term(
        (pl.when(~beyond).then(count) * length_us).cast(TIMESTAMP), result, (*operand.checks, check)
    )
