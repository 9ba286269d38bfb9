"""The `.list` functions, lambdas, zip and repeat over Polars expressions.

Theory. A null element is an unknown value: sum, mean, min, max and `all` of a list are unknown if
one element is, `any` and `contains` only if no other element decides the result. An empty list has
sum 0, satisfies `all`, and has no mean, min or max. Lambdas run once over the elements of all rows.
Equality inside `contains` is structural.
"""

from __future__ import annotations

from typing import assert_never

import polars as pl
import pyarrow as pa

from fennel_core.expressions.terms import RowCheck, Term, checks_of
from fennel_core.expressions.type_lattice import polars_type
from fennel_core.vocab.dtypes import Dtype, Int, List, Struct
from fennel_core.wire.expr import ListFold

MAX_REPEAT = 10_000
"""Elements of a list made by `repeat`.

A large count in every row of a batch must not exhaust the memory of a slot.
"""


def has_null(lists: pl.Expr) -> pl.Expr:
    """Return whether a list has a null element."""
    return lists.list.drop_nulls().list.len() < lists.list.len()


def fold(op: ListFold, operand: Term, result: Dtype) -> Term:
    """Reduce each list to one value."""
    lists = operand.value
    match op:
        case ListFold.LEN:
            value = lists.list.len().cast(pl.Int64)
        case ListFold.HAS_NULL:
            value = has_null(lists)
        case ListFold.SUM:
            value = _known(lists, lists.list.sum())
        case ListFold.MEAN:
            value = _known(lists, lists.list.mean())
        case ListFold.MIN:
            value = _known(lists, lists.list.min())
        case ListFold.MAX:
            value = _known(lists, lists.list.max())
        case ListFold.ALL:
            value = _known(lists, lists.list.all())
        case ListFold.ANY:
            value = (
                pl.when(lists.list.any())
                .then(statement=True)
                .when(~has_null(lists))
                .then(statement=False)
            )
        case unreachable:
            assert_never(unreachable)
    return Term(value, result, operand.checks)


def _known(lists: pl.Expr, value: pl.Expr) -> pl.Expr:
    """Return `value` where no element is null (and the list is not null)."""
    return pl.when(~has_null(lists)).then(value)


def get(operand: Term, index: Term, result: Dtype) -> Term:
    """Return the element at `index`, from the end if negative; null beyond either end."""
    return Term(
        operand.value.list.get(index.to(Int()), null_on_oob=True), result, checks_of(operand, index)
    )


def contains(operand: Term, element: Dtype, item: Term, result: Dtype) -> Term:
    """Return whether a list has an element equal to `item`, null if unknown."""
    lists, wanted = operand.value, item.to(element)
    found = lists.list.contains(wanted, nulls_equal=False)
    unknown = (lists.list.len() > 0) & (has_null(lists) | wanted.is_null())
    value = (
        pl.when(found)
        .then(statement=True)
        .when(lists.is_not_null() & ~unknown)
        .then(statement=False)
    )
    return Term(value, result, checks_of(operand, item))


def filter_elements(operand: Term, predicate: Term, result: Dtype) -> Term:
    """`list.filter`: keep the elements for which `predicate` is true."""
    lists = operand.value
    kept = lists.list.eval(pl.element().filter(predicate.value))
    return Term(
        kept, result, (*operand.checks, *(check.over_elements(lists) for check in predicate.checks))
    )


def map_elements(operand: Term, body: Term, result: Dtype, *, constant: bool) -> Term:
    """`list.map`: apply `body`, a term over `pl.element()`, to every element.

    A `constant` body does not name the element, so it is repeated.
    """
    lists = operand.value
    if constant:
        checks = (*operand.checks, *(check.guarded(lists.list.len() > 0) for check in body.checks))
        return Term(body.value.repeat_by(lists.list.len()), result, checks)
    return Term(
        lists.list.eval(body.value),
        result,
        (*operand.checks, *(check.over_elements(lists) for check in body.checks)),
    )


def repeat(operand: Term, count: Term, result: Dtype) -> Term:
    """Return a list of `count` copies; counts outside 0 to MAX_REPEAT fail."""
    times = count.to(Int())
    bad = ~times.is_between(0, MAX_REPEAT)
    checks = (
        *checks_of(operand, count),
        RowCheck(
            bad,
            times,
            "bad-count",
            f"`repeat` needs a count from 0 to {MAX_REPEAT}. Clamp it first.",
        ),
    )
    return Term(operand.value.repeat_by(pl.when(~bad).then(times)), result, checks)


def zip_lists(struct: Struct, fields: tuple[tuple[str, Term], ...], result: Dtype) -> Term:
    """Return a list of structs from parallel lists, cut to the shortest of them."""
    wanted = {f.name: f.dtype for f in struct.fields}
    laid_out = [term.to(List(wanted[name])).alias(name) for name, term in fields]
    dtype = polars_type(result)
    zipped = pl.struct(laid_out).map_batches(
        lambda rows: _zip(rows, dtype), return_dtype=dtype, is_elementwise=True
    )
    return Term(zipped, result, checks_of(*(term for _, term in fields)))


def _zip(rows: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Cut all lists of a row to one length, and zip their flattened elements."""
    lists = rows.struct.unnest()
    lengths = lists.select(pl.min_horizontal(pl.all().list.len()).alias("n"))["n"].cast(pl.Int64)
    elements = lists.select(pl.all().list.head(pl.lit(lengths))).select(
        pl.all().explode(empty_as_null=False, keep_nulls=False)
    )
    offsets = pa.array([0, *lengths.cum_sum()], type=pa.int64())
    values = elements.to_struct("").to_arrow()
    return pl.Series(rows.name, pa.LargeListArray.from_arrays(offsets, values), dtype=dtype)
