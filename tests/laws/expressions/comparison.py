"""Compare one case of the oracle with our compiler: its type, its failing rows and its values.

Values are converted to one plain Python form on both sides. Floats are equal when they are the same
number to 1 part in 10^14 (the trigonometric functions come from different maths libraries), and NaN
equals NaN: the evaluators are compared before the boundary at which NaN becomes null.
"""

import base64
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as PyDecimal

import polars as pl

from fennel_core.expressions.compiler import Compiler
from fennel_core.expressions.errors import InvalidExpression
from fennel_core.expressions.infer import infer
from fennel_core.expressions.scope import NameScope
from fennel_core.expressions.terms import Term
from fennel_core.expressions.type_lattice import polars_type, same_type
from fennel_core.vocab.dtypes import Dtype, List, Map, Optional, Struct, is_optional, show
from fennel_core.wire.decode_datatypes import decode_dtype
from fennel_core.wire.decode_expressions import decode_expr
from fennel_core.wire.errors import WireError
from fennel_core.wire.expr import Expr
from fennel_core.wire.gen import expression_pb2, schema_pb2

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Failed:
    """A row without a value; all failures are equal, whatever their cause."""

    reason: str = field(default="", compare=False)


FAILED = Failed()


@dataclass(frozen=True)
class Frame:
    schema: dict[str, Dtype]
    rows: pl.DataFrame


@dataclass(frozen=True)
class Case:
    frame: str
    source: str
    expr: Expr | None
    """None: the protocol's decoder rejects it."""
    dtype: Dtype | None
    """None: the client rejects the expression."""
    rows: tuple[object, ...]
    """Per row the value, or `FAILED`."""


def read_frame(document: dict) -> Frame:
    schema = {name: _dtype(encoded) for name, encoded in document["schema"].items()}
    columns = {
        name: [_value(v, schema[name]) for v in values]
        for name, values in document["columns"].items()
    }
    columns = {
        name: [v if comparable(v, schema[name]) is not None else None for v in values]
        for name, values in columns.items()
    }
    return Frame(
        schema,
        pl.DataFrame(
            [
                pl.Series(name, values, dtype=polars_type(schema[name]))
                for name, values in columns.items()
            ]
        ),
    )


def read_case(document: dict) -> Case:
    message = expression_pb2.Expr()
    message.ParseFromString(base64.b64decode(document["expr"]))
    dtype = _dtype(document["type"]) if "type" in document else None
    try:
        expr = decode_expr(message)
    except WireError:
        expr = None
    rows = [
        Failed(row["error"]) if "error" in row else _value(row["value"], dtype)
        for row in document.get("rows", [])
    ]
    return Case(document["frame"], document["source"], expr, dtype, tuple(rows))


@dataclass(frozen=True)
class Difference:
    """A difference between our result and the client's.

    Either `type_difference` or `rows`: (row, our value or FAILED, the client's value).
    """

    type_difference: str = ""
    rows: tuple[tuple[int, object, object], ...] = ()

    def __str__(self) -> str:
        return self.type_difference or "; ".join(
            f"row {i}: {ours!r}, the client's is {theirs!r}" for i, ours, theirs in self.rows
        )


def difference(case: Case, frame: Frame) -> Difference | None:
    """Return the difference between our result and the client's; None if there is none."""
    if case.expr is None:
        return None if case.dtype is None else Difference("the decoder rejects it")
    try:
        inferred = infer(case.expr, frame.schema)
        term = _term(case.expr, frame)
    except InvalidExpression as error:
        all_failed = all(row == FAILED for row in case.rows)
        return None if case.dtype is None or all_failed else Difference(f"we reject it: {error}")
    if case.dtype is None:
        return Difference(f"we accept as {show(inferred)} what the client rejects")
    if not same_type(inferred, case.dtype):
        return Difference(f"type {show(inferred)}, the client's is {show(case.dtype)}")
    ours = evaluate_rows(frame.rows, term)
    theirs = [row if row == FAILED else comparable(row, case.dtype) for row in case.rows]
    rows = tuple(
        (i, a, b) for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if not equal(a, b)
    )
    return Difference(rows=rows) if rows else None


def compiled(case: Case, frame: Frame) -> Term | None:
    """Return the term of a case, None if our compiler rejects it."""
    try:
        return None if case.expr is None else _term(case.expr, frame)
    except InvalidExpression:
        return None


def _term(expr: Expr, frame: Frame) -> Term:
    return Compiler(NameScope(frame.schema), pl.col("now") if "now" in frame.schema else None).term(
        expr
    )


def evaluate_rows(rows: pl.DataFrame, term: Term) -> list[object]:
    checks = [
        check.failed.fill_null(value=False).alias(f"check {i}")
        for i, check in enumerate(term.checks)
    ]
    result = rows.with_columns(term.value.alias("value"), *checks)
    failed = result.with_columns(
        pl.any_horizontal(pl.lit(value=False), "^check .*$").alias("failed")
    )["failed"].to_list()
    values = [comparable(v, term.dtype) for v in result["value"].to_list()]
    return [
        FAILED if f or (v is None and not is_optional(term.dtype)) else v
        for f, v in zip(failed, values, strict=True)
    ]


def comparable(value: object, dtype: Dtype) -> object:
    match dtype:
        case _ if value is None:
            return None
        case Optional(Struct(_, fields)) if any(
            value[f.name] is None and not is_optional(f.dtype) for f in fields
        ):
            return None  # the client's evaluator spells a null struct as a struct of nulls
        case Optional(of):
            return comparable(value, of)
        case List(of):
            return [comparable(v, of) for v in value]
        case Map(of):
            return {entry["key"]: comparable(entry["value"], of) for entry in value}
        case Struct(_, fields):
            return {f.name: comparable(value[f.name], f.dtype) for f in fields}
        case _:
            return value


def equal(ours: object, theirs: object) -> bool:
    match ours, theirs:
        case float(), float():
            return (math.isnan(ours) and math.isnan(theirs)) or math.isclose(
                ours, theirs, rel_tol=1e-14, abs_tol=1e-300
            )
        case list(), list():
            return len(ours) == len(theirs) and all(
                equal(a, b) for a, b in zip(ours, theirs, strict=True)
            )
        case dict(), dict():
            return ours.keys() == theirs.keys() and all(equal(ours[k], theirs[k]) for k in ours)
        case _:
            return type(ours) is type(theirs) and ours == theirs


def _dtype(encoded: str) -> Dtype:
    message = schema_pb2.DataType()
    message.ParseFromString(base64.b64decode(encoded))
    return decode_dtype(message)


def _value(plain: object, dtype: Dtype) -> object:
    match plain:
        case {"float": text}:
            return float(text)
        case {"time_us": us}:
            return EPOCH + timedelta(microseconds=us)
        case {"date": text}:
            return date.fromisoformat(text)
        case {"decimal": text}:
            return PyDecimal(text)
        case {"bytes": text}:
            return bytes.fromhex(text)
        case {"struct": fields}:
            return {name: _value(v, dtype) for name, v in fields.items()}
        case {"map": entries}:
            return [{"key": k, "value": _value(v, dtype)} for k, v in entries]
        case list():
            return [_value(v, dtype) for v in plain]
        case _:
            return plain


def read_oracle(text: str) -> tuple[dict[str, Frame], list[Case]]:
    document = json.loads(text)
    frames = {name: read_frame(frame) for name, frame in document["frames"].items()}
    return frames, [read_case(case) for case in document["cases"] if "expr" in case]
