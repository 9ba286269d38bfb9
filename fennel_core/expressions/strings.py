"""The `.str` functions over Polars expressions.

Theory. Text is counted and cut in Unicode code points, search texts are literal, and null yields
null. Two functions parse text and can fail: `strptime` (a pattern, and a zone for text without an
offset) and `parse` (strict JSON of a type). A row whose text cannot be parsed fails; a null text is
null. `json_extract` never fails: a missing path, a null and invalid JSON are null.
"""

from __future__ import annotations

from typing import assert_never

import polars as pl

from fennel_core.expressions import json_text
from fennel_core.expressions.errors import JsonTypeMismatch
from fennel_core.expressions.json_text import Value
from fennel_core.expressions.patterns import (
    check_path,
    check_reading_pattern,
    check_zone,
    reads_offset,
)
from fennel_core.expressions.terms import RowCheck, StagedColumn, Term, checks_of
from fennel_core.expressions.type_lattice import FIRST_US, LAST_US, polars_type
from fennel_core.vocab.dtypes import Dtype, Str
from fennel_core.wire.expr import (
    Concat,
    EndsWith,
    JsonDecode,
    JsonExtract,
    Split,
    StartsWith,
    StringContains,
    StringOp,
    StringUnary,
    Strptime,
)


def string(
    op: StringOp, operand: Term, other: Term | None, result: Dtype, *, stage: str | None
) -> Term:
    """Compile a `.str` function.

    `other` is the term of its second text, None if it has none. `stage` is the name of the staged
    column for an expensive function, None if staging is not possible.
    """
    text = operand.to(Str())
    match op:
        case StringUnary.LEN:
            return Term(text.str.len_chars().cast(pl.Int64), result, operand.checks)
        case StringUnary.TO_LOWER:
            return Term(text.str.to_lowercase(), result, operand.checks)
        case StringUnary.TO_UPPER:
            return Term(text.str.to_uppercase(), result, operand.checks)
        case StringUnary.TO_INT:
            return _parsed(
                operand,
                text,
                text.str.to_integer(strict=False),
                result,
                "bad-int",
                "this text is not an int. Clean it first.",
            )
        case StringContains() | StartsWith() | EndsWith() | Concat():
            assert other is not None, "the function has a second text"
            return Term(_pair(op, text, other.to(Str())), result, checks_of(operand, other))
        case Strptime():
            return _strptime(op, operand, text, result)
        case JsonDecode(dtype):
            return _json_decode(operand, text, dtype, result, stage)
        case Split(separator):
            return Term(text.str.split(separator), result, operand.checks)
        case JsonExtract(path):
            return Term(text.str.json_path_match(check_path(path)), result, operand.checks)
        case unreachable:
            assert_never(unreachable)


def _pair(
    op: StringContains | StartsWith | EndsWith | Concat, text: pl.Expr, other: pl.Expr
) -> pl.Expr:
    match op:
        case StringContains():
            return text.str.contains(other, literal=True)
        case StartsWith():
            return text.str.starts_with(other)
        case EndsWith():
            return text.str.ends_with(other)
        case Concat():
            return text + other
        case unreachable:
            assert_never(unreachable)


def _parsed(
    operand: Term, text: pl.Expr, value: pl.Expr, result: Dtype, code: str, sentence: str
) -> Term:
    """Return a value parsed from text; rows with a text that cannot be parsed fail."""
    unread = RowCheck(text.is_not_null() & value.is_null(), text, code, sentence)
    return Term(value, result, (*operand.checks, unread))


def _strptime(op: Strptime, operand: Term, text: pl.Expr, result: Dtype) -> Term:
    zone, pattern = check_zone(op.timezone), check_reading_pattern(op.format)
    if reads_offset(pattern):
        instant = text.str.to_datetime(pattern, time_unit="us", time_zone="UTC", strict=False)
    else:
        local = text.str.to_datetime(pattern, time_unit="us", strict=False)
        instant = local.dt.replace_time_zone(
            zone, ambiguous="null", non_existent="null"
        ).dt.convert_time_zone("UTC")
    instant = pl.when(instant.to_physical().is_between(FIRST_US, LAST_US)).then(instant)
    sentence = (
        f"this text is not a datetime of pattern `{op.format}` in {zone}. Clean it, or "
        "filter such rows out first."
    )
    return _parsed(operand, text, instant, result, "bad-datetime", sentence)


def _json_decode(
    operand: Term, text: pl.Expr, dtype: Dtype, result: Dtype, stage: str | None
) -> Term:
    cell = pl.Struct({"ok": pl.Boolean, "value": polars_type(dtype)})

    def decode(texts: pl.Series) -> pl.Series:
        return pl.Series(texts.name, [_decoded(t, dtype) for t in texts], dtype=cell)

    walk = text.map_batches(decode, return_dtype=cell, is_elementwise=True)
    cells = walk if stage is None else pl.col(stage)
    sentence = (
        "this text is not JSON of the type that `parse` was given. Clean it, or make the "
        "type Optional."
    )
    needs = None if stage is None else StagedColumn(stage, walk)
    failed = RowCheck(~cells.struct.field("ok"), text, "bad-json", sentence, needs)
    return Term(cells.struct.field("value"), result, (*operand.checks, failed))


def _decoded(text: str | None, dtype: Dtype) -> dict[str, Value]:
    try:
        return {
            "ok": True,
            "value": None if text is None else json_text.decode(json_text.read(text), dtype),
        }
    except JsonTypeMismatch:
        return {"ok": False, "value": None}
