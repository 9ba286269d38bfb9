"""A compiled expression: its value, its type, and the ways in which a row can fail to have one.

Theory. Polars either raises for a whole batch or says nothing; neither is fit for a stream, where
one bad row must not stop its neighbours and must not slip through as a null. So every function that
can fail is compiled to a value that is null where it fails, and to a `RowCheck`, a condition that
is true exactly for the failing rows. Checks travel with the value: a case guards the checks of a
branch by the branch's condition, a lambda folds those of its body over the elements of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from fennel_core.expressions.type_lattice import cast, polars_type
from fennel_core.vocab.dtypes import Dtype


@dataclass(frozen=True, slots=True)
class StagedColumn:
    """A column computed before value and checks, because both are read off it and it is dear (a
    walk over rows in Python).
    """

    name: str
    value: pl.Expr


@dataclass(frozen=True, slots=True)
class RowCheck:
    """`failed` is true for a row that has no value (null counts as false); `culprit` is the operand
    to show.

    `stage`, if any, is the column that `failed` and the value are read off.
    """

    failed: pl.Expr
    culprit: pl.Expr
    code: str
    text: str
    stage: StagedColumn | None = None

    def guarded(self, condition: pl.Expr) -> RowCheck:
        """The same check, only where `condition` is true."""
        return replace(self, failed=condition & self.failed)

    def over_elements(self, lists: pl.Expr) -> RowCheck:
        """The check of a lambda's body as a check of the row that holds the list."""
        return replace(
            self,
            failed=lists.list.eval(self.failed.fill_null(value=False)).list.any(),
            culprit=lists,
        )


@dataclass(frozen=True, slots=True)
class Term:
    value: pl.Expr
    dtype: Dtype
    checks: tuple[RowCheck, ...] = ()

    def to(self, dtype: Dtype) -> pl.Expr:
        """The value laid out as `dtype`, to which the term's own type must convert."""
        return cast(self.value, self.dtype, dtype)


def checks_of(*terms: Term) -> tuple[RowCheck, ...]:
    return tuple(check for term in terms for check in term.checks)


def fold_constant(term: Term) -> Term:
    """A term that names no column, as a scalar literal: Polars may make of literals a series of one
    row, which does not broadcast.
    """
    checks = [check.failed.alias(f"check {i}") for i, check in enumerate(term.checks)]
    row = pl.select(term.value.alias("value"), *checks)
    failed = tuple(
        replace(check, failed=pl.lit(value=True))
        for i, check in enumerate(term.checks)
        if row[f"check {i}"].item()
    )
    return Term(
        pl.lit(row["value"].to_list()[0], dtype=polars_type(term.dtype)), term.dtype, failed
    )
