"""A compiled expression: its value, its type, and the conditions under which a row has no value.

Theory. On bad input Polars either raises for the whole batch or returns null. Neither is acceptable
for a stream, where one bad row must not stop the others and must not pass as a null. So every
function that can fail is compiled to a value that is null where it fails, and to a `RowCheck`, a
condition that is true exactly for the failing rows. Checks travel with the value: a case restricts
the checks of a branch by the branch's condition, a lambda folds those of its body over the elements
of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from fennel_core.expressions.type_lattice import cast, polars_type
from fennel_core.vocab.dtypes import Dtype


@dataclass(frozen=True, slots=True)
class StagedColumn:
    """A column computed before the value and the checks that both read from it.

    Used for expensive functions (a Python loop over rows), so that they run once.
    """

    name: str
    value: pl.Expr


@dataclass(frozen=True, slots=True)
class RowCheck:
    """A condition that is true for rows without a value (null counts as false).

    `operand` is the value to show. `stage`, if any, is the column from which `failed` and the value
    are read.
    """

    failed: pl.Expr
    operand: pl.Expr
    code: str
    text: str
    stage: StagedColumn | None = None

    def guarded(self, condition: pl.Expr) -> RowCheck:
        """Return the check restricted to rows where `condition` is true."""
        return replace(self, failed=condition & self.failed)

    def over_elements(self, lists: pl.Expr) -> RowCheck:
        """Return the check of a lambda's body as a check of the row that holds the list."""
        return replace(
            self,
            failed=lists.list.eval(self.failed.fill_null(value=False)).list.any(),
            operand=lists,
        )


@dataclass(frozen=True, slots=True)
class Term:
    """A value with its type and the checks of all its operands."""

    value: pl.Expr
    dtype: Dtype
    checks: tuple[RowCheck, ...] = ()

    def to(self, dtype: Dtype) -> pl.Expr:
        """Return the value cast to `dtype`, to which the term's own type must convert."""
        return cast(self.value, self.dtype, dtype)


def checks_of(*terms: Term) -> tuple[RowCheck, ...]:
    """Return the checks of all terms, in order."""
    return tuple(check for term in terms for check in term.checks)


def fold_constant(term: Term) -> Term:
    """Evaluate a term that depends on no row, and return it as a scalar literal.

    Polars may turn literals into a series of one row, which does not broadcast.
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
