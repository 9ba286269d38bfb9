"""Structs and dicts over Polars expressions.

Theory. A struct is a Polars struct; a dict is a list of key/value entries with text keys, in which
the later of two equal keys is never visible. A null struct has null fields. The value of a missing
key or of a null dict is the default, or null if none is given; the length of a null dict is null.
"""

from __future__ import annotations

import polars as pl

from fennel_core.expressions.terms import Term, checks_of
from fennel_core.expressions.type_lattice import KEY, VALUE, polars_type
from fennel_core.vocab.dtypes import Dtype, Str, Struct

ENTRY_KEY, WANTED, ENTRIES = pl.element().struct.field(KEY), "wanted", "entries"


def struct_get(operand: Term, field: str, result: Dtype) -> Term:
    return Term(operand.value.struct.field(field), result, operand.checks)


def make_struct(struct: Struct, fields: tuple[tuple[str, Term], ...]) -> Term:
    terms = dict(fields)
    laid_out = [terms[f.name].to(f.dtype).alias(f.name) for f in struct.fields]
    return Term(pl.struct(laid_out), struct, checks_of(*terms.values()))


def dict_len(operand: Term, result: Dtype) -> Term:
    return Term(operand.value.list.len().cast(pl.Int64), result, operand.checks)


def dict_get(
    operand: Term, key: Term, constant_key: str | None, default: Term | None, result: Dtype
) -> Term:
    """Return the value under `key`.

    `constant_key` is the text of a constant key, which needs no loop over rows; None otherwise.
    """
    checks = checks_of(operand, key) if default is None else checks_of(operand, key, default)
    found = _entry(operand.value, key.to(Str()), constant_key, polars_type(result))
    return Term(
        found if default is None else pl.coalesce(found, default.to(result)), result, checks
    )


def dict_contains(operand: Term, key: Term, result: Dtype) -> Term:
    keys = operand.value.list.eval(ENTRY_KEY)
    wanted = key.to(Str())
    return Term(
        pl.when(wanted.is_not_null()).then(keys.list.contains(wanted)),
        result,
        checks_of(operand, key),
    )


def _entry(entries: pl.Expr, key: pl.Expr, constant_key: str | None, dtype: pl.DataType) -> pl.Expr:
    if constant_key is not None:
        return entries.list.eval(
            pl.element().struct.field(VALUE).filter(ENTRY_KEY.eq(constant_key))
        ).list.first()
    rows = pl.struct(entries.alias(ENTRIES), key.alias(WANTED))
    return rows.map_batches(
        lambda pairs: _look_up(pairs, dtype), return_dtype=dtype, is_elementwise=True
    )


def _look_up(pairs: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Look up one key per row by joining the exploded entries.

    Polars' list functions cannot do this, because their bodies read no other column.
    """
    flat = pairs.struct.unnest().with_row_index("row").explode(ENTRIES).unnest(ENTRIES)
    hits = (
        flat.filter(pl.col(KEY) == pl.col(WANTED))
        .unique("row", keep="first", maintain_order=True)
        .select("row", VALUE)
    )
    rows = pl.DataFrame({"row": pl.int_range(pairs.len(), dtype=pl.get_index_type(), eager=True)})
    return (
        rows.join(hits, on="row", how="left", maintain_order="left")[VALUE]
        .cast(dtype)
        .alias(pairs.name)
    )
