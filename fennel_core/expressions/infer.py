"""The type of an expression, section by section the rules of the client's language.

Theory. Types decide everything that can be decided before a row exists, so that evaluation has only
data errors left. The rules are those of the client's own compiler, as observed: a definition that
the client accepts is accepted here with the same type. Null propagates: a result is Optional if an
operand that it depends on is, except where the function removes nulls (`isnull`, `fillnull`) or
introduces them (`list.at`, `list.min`, `dict.get`, `json_extract`, a case without otherwise).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from fennel_core.expressions.errors import InvalidExpression
from fennel_core.expressions.literals import datetime_value, literal_type
from fennel_core.expressions.patterns import (
    check_path,
    check_pattern,
    check_reading_pattern,
    check_zone,
)
from fennel_core.expressions.scope import NameScope
from fennel_core.expressions.type_lattice import (
    common_type,
    is_assignable,
    non_optional,
    numeric,
    optional_if,
    unrestricted,
)
from fennel_core.vocab.dtypes import (
    Bool,
    Bytes,
    Dtype,
    Embedding,
    Float,
    Int,
    List,
    Map,
    Null,
    Optional,
    Str,
    Struct,
    Timestamp,
    is_optional,
    optional,
    show,
)
from fennel_core.wire import expr as wire
from fennel_core.wire.expr import BinaryOp, ListFold, MathUnary, StringUnary, TimeUnit, UnaryOp

EPOCH_UNITS = (TimeUnit.SECOND, TimeUnit.MILLISECOND, TimeUnit.MICROSECOND)
"""Units that `from_epoch` reads; the client has no others."""


def infer(expr: wire.Expr, schema: Mapping[str, Dtype]) -> Dtype:
    """Return the type of `expr` over rows of `schema`.

    Raises `InvalidExpression` if the expression does not fit the schema.
    """
    return type_in(NameScope(schema), expr)


def type_in(scope: NameScope, expr: wire.Expr) -> Dtype:
    """Return the type of `expr` within `scope`."""
    match expr:
        case wire.Ref(name):
            return scope.column(name)
        case wire.Var(name):
            return scope.variable(name)
        case wire.Literal():
            return literal_type(expr)
        case wire.DatetimeLiteral():
            datetime_value(expr)
            return Timestamp()
        case wire.Now():
            return scope.now()
        case wire.Unary(op, operand):
            return _unary(op, type_in(scope, operand))
        case wire.Binary(op, left, right):
            return _binary(op, type_in(scope, left), type_in(scope, right))
        case wire.Case():
            return _case(scope, expr)
        case wire.IsNull(operand):
            type_in(scope, operand)
            return Bool()
        case wire.FillNull(operand, fill):
            return _fill_null(type_in(scope, operand), type_in(scope, fill))
        case wire.ListFn(operand, op):
            return _list(scope, type_in(scope, operand), op)
        case wire.MathFn(operand, op):
            return _math(scope, type_in(scope, operand), op)
        case wire.StructGet(operand, field):
            return _struct_get(type_in(scope, operand), field)
        case wire.DictFn(operand, op):
            return _dict(scope, type_in(scope, operand), op)
        case wire.MakeStruct(struct, fields):
            _struct_fields(struct, {name: type_in(scope, value) for name, value in fields})
            return struct
        case wire.Zip(struct, fields):
            _struct_fields(
                struct, {name: _zipped(name, type_in(scope, value)) for name, value in fields}
            )
            return List(struct)
        case wire.Repeat(operand, count):
            expect_int("repeat", type_in(scope, count))
            return List(type_in(scope, operand))
        case wire.StringFn(operand, op):
            return _string(scope, type_in(scope, operand), op)
        case wire.DateTimeFn(operand, op):
            return _datetime(scope, type_in(scope, operand), op)
        case wire.FromEpoch(operand, unit):
            return _from_epoch(type_in(scope, operand), unit)
        case unreachable:
            assert_never(unreachable)


# --- core -----------------------------------------------------------------------------------------


def expect_number(what: str, dtype: Dtype, null: Int | Float = Int()) -> Int | Float:  # noqa: B008  a frozen value
    """Return the number type of an operand; a bare null counts as `null`."""
    match numeric(dtype):
        case None:
            raise InvalidExpression(
                "not-a-number",
                f"`{what}` needs a number (int or float), but was given "
                f"{show(dtype)}. Convert it first.",
            )
        case Null():
            return null
        case number:
            return number


def expect_bool(what: str, dtype: Dtype) -> None:
    """Raise unless the operand is a bool or null."""
    if not isinstance(non_optional(dtype), Bool | Null):
        raise InvalidExpression(
            "not-a-bool",
            f"`{what}` needs a bool, but was given {show(dtype)}. Compare it with something first.",
        )


def expect_str(what: str, dtype: Dtype) -> None:
    """Raise unless the operand is a str or null."""
    if not isinstance(non_optional(unrestricted(dtype)), Str | Null):
        raise InvalidExpression(
            "not-a-string", f"`{what}` needs a str, but was given {show(dtype)}. Convert it first."
        )


def expect_datetime(what: str, dtype: Dtype) -> None:
    """Raise unless the operand is a datetime or null."""
    if not isinstance(non_optional(dtype), Timestamp | Null):
        raise InvalidExpression(
            "not-a-datetime",
            f"`{what}` needs a datetime, but was given {show(dtype)}. Parse or convert it first.",
        )


def expect_int(what: str, dtype: Dtype) -> None:
    """Raise unless the operand is an int that is not Optional."""
    if not isinstance(unrestricted(dtype), Int):
        raise InvalidExpression(
            "not-an-int",
            f"`{what}` needs a non-optional int, but was given {show(dtype)}. Use "
            "fillnull, floor or round.",
        )


def _unary(op: UnaryOp, operand: Dtype) -> Dtype:
    match op:
        case UnaryOp.NEG:
            return optional_if(expect_number("-", operand, null=Float()), operand)
        case UnaryOp.NOT:
            expect_bool("~", operand)
            return optional_if(Bool(), operand)
        case unreachable:
            assert_never(unreachable)


def _binary(op: BinaryOp, left: Dtype, right: Dtype) -> Dtype:
    match op:
        case BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL | BinaryOp.MOD | BinaryOp.FLOOR_DIV:
            sides = (expect_number(op.value, left), expect_number(op.value, right))
            return optional_if(Float() if Float() in sides else Int(), left, right)
        case BinaryOp.DIV:
            expect_number(op.value, left)
            expect_number(op.value, right)
            return optional_if(Float(), left, right)
        case BinaryOp.GT | BinaryOp.GTE | BinaryOp.LT | BinaryOp.LTE:
            expect_number(op.value, left)
            expect_number(op.value, right)
            return optional_if(Bool(), left, right)
        case BinaryOp.EQ | BinaryOp.NE:
            _expect_common(op.value, left, right)
            return optional_if(Bool(), left, right)
        case BinaryOp.AND | BinaryOp.OR:
            expect_bool(op.value, left)
            expect_bool(op.value, right)
            return optional_if(Bool(), left, right)
        case unreachable:
            assert_never(unreachable)


def _expect_common(what: str, left: Dtype, right: Dtype) -> Dtype:
    result = common_type(left, right)
    if result is None:
        raise InvalidExpression(
            "types-incompatible",
            f"both sides of `{what}` must have one type, but they are {show(left)} "
            f"and {show(right)}. Convert one of them.",
        )
    return result


def _case(scope: NameScope, case: wire.Case) -> Dtype:
    if not case.branches:
        raise InvalidExpression(
            "case-empty", "a `when` without a `then` has no value. Add a branch."
        )
    for branch in case.branches:
        expect_bool("when", type_in(scope, branch.when))
    result = type_in(scope, case.branches[0].then)
    for branch in case.branches[1:]:
        result = _expect_common("then", result, type_in(scope, branch.then))
    return (
        optional(result)
        if case.otherwise is None
        else _expect_common("otherwise", result, type_in(scope, case.otherwise))
    )


def _fill_null(operand: Dtype, fill: Dtype) -> Dtype:
    return (
        fill
        if isinstance(operand, Null)
        else _expect_common("fillnull", non_optional(operand), fill)
    )


# --- numbers --------------------------------------------------------------------------------------


def _math(scope: NameScope, operand: Dtype, op: wire.MathOp) -> Dtype:
    match op:
        case MathUnary.ABS:
            return optional_if(expect_number("abs", operand), operand)
        case MathUnary.CEIL | MathUnary.FLOOR:
            result: Dtype = Int()
        case MathUnary.TO_STRING:
            result = Str()
        case (
            MathUnary.SQRT
            | MathUnary.SIN
            | MathUnary.COS
            | MathUnary.TAN
            | MathUnary.ASIN
            | MathUnary.ACOS
            | MathUnary.ATAN
            | wire.Log()
        ):
            result = Float()
        case MathUnary.IS_NAN | MathUnary.IS_INFINITE:
            result = Bool()
        case wire.Round(precision):
            if precision < 0:
                raise InvalidExpression(
                    "bad-precision",
                    f"`round` to {precision} decimal places is not possible. Use 0 or more.",
                )
            result = Float() if precision else Int()
        case wire.Pow(exponent):
            power = type_in(scope, exponent)
            sides = (
                expect_number("pow", operand, null=Float()),
                expect_number("pow", power, null=Float()),
            )
            return optional_if(Float() if Float() in sides else Int(), operand, power)
        case unreachable:
            assert_never(unreachable)
    expect_number(op.value if isinstance(op, MathUnary) else type(op).__name__.lower(), operand)
    return optional_if(result, operand)


# --- lists ----------------------------------------------------------------------------------------


def element_of(what: str, dtype: Dtype) -> Dtype:
    """Return the type of a list's elements; an embedding is a list of floats."""
    match non_optional(dtype):
        case List(of):
            return of
        case Embedding():
            return Float()
        case _:
            raise InvalidExpression(
                "not-a-list",
                f"`list.{what}` needs a list, but was given {show(dtype)}. Use it on "
                "a list column.",
            )


def _list(scope: NameScope, operand: Dtype, op: wire.ListOp) -> Dtype:
    match op:
        case ListFold():
            return _list_fold(op, operand, element_of(op.value, operand))
        case wire.ListGet(index):
            element = element_of("at", operand)
            expect_int("list.at", type_in(scope, index))
            return optional(element)
        case wire.ListContains(item):
            element, wanted = element_of("contains", operand), type_in(scope, item)
            if not is_assignable(wanted, element):
                raise InvalidExpression(
                    "types-incompatible",
                    f"`list.contains` on a list of {show(element)} cannot look for "
                    f"{show(wanted)}. Convert the item.",
                )
            return optional_if(Bool(), operand, element)
        case wire.ListFilter(var, predicate):
            element = element_of("filter", operand)
            found = type_in(scope.inside(var, element), predicate)
            if not isinstance(found, Bool):
                raise InvalidExpression(
                    "not-a-bool",
                    "the predicate of `list.filter` must be bool, but is "
                    f"{show(found)}. Use fillnull to decide about nulls.",
                )
            return optional_if(List(element), operand)
        case wire.ListMap(var, body):
            return optional_if(
                List(type_in(scope.inside(var, element_of("map", operand)), body)), operand
            )
        case unreachable:
            assert_never(unreachable)


def _list_fold(op: ListFold, operand: Dtype, element: Dtype) -> Dtype:
    match op:
        case ListFold.LEN:
            return optional_if(Int(), operand)
        case ListFold.HAS_NULL:
            return optional_if(Bool(), operand)
        case ListFold.SUM:
            return optional_if(expect_number("list.sum", element), operand, element)
        case ListFold.MIN | ListFold.MAX:
            return optional(expect_number(f"list.{op.value}", element))
        case ListFold.MEAN:
            expect_number("list.mean", element)
            return optional(Float())
        case ListFold.ALL | ListFold.ANY:
            expect_bool(f"list.{op.value}", element)
            return optional_if(Bool(), operand, element)
        case unreachable:
            assert_never(unreachable)


# --- structs and dicts ----------------------------------------------------------------------------


def _struct_get(operand: Dtype, field: str) -> Dtype:
    match non_optional(operand):
        case Struct(name, fields):
            found = next((f.dtype for f in fields if f.name == field), None)
        case _:
            raise InvalidExpression(
                "not-a-struct",
                f"`struct.get` needs a struct, but was given {show(operand)}. Use it "
                "on a struct column.",
            )
    if found is None:
        raise InvalidExpression(
            "unknown-struct-field",
            f"struct {name} has no field `{field}`. Use one of: "
            f"{', '.join(f'`{f.name}`' for f in fields)}.",
        )
    return optional_if(found, operand)


def _struct_fields(struct: Struct, given: Mapping[str, Dtype]) -> None:
    wanted = {f.name: f.dtype for f in struct.fields}
    if wanted.keys() != given.keys():
        raise InvalidExpression(
            "struct-fields",
            f"struct {struct.name} has the fields {', '.join(wanted)}, but was given "
            f"{', '.join(given)}. Give every field exactly once.",
        )
    for name, dtype in given.items():
        if not is_assignable(dtype, wanted[name]):
            raise InvalidExpression(
                "types-incompatible",
                f"field `{name}` of struct {struct.name} is {show(wanted[name])}, "
                f"but was given {show(dtype)}. Convert the value.",
            )


def _zipped(name: str, dtype: Dtype) -> Dtype:
    if not isinstance(dtype, List):
        raise InvalidExpression(
            "not-a-list",
            f"field `{name}` of a zip must be a non-optional list, but is "
            f"{show(dtype)}. Use fillnull with [].",
        )
    return dtype.of


def _dict(scope: NameScope, operand: Dtype, op: wire.DictOp) -> Dtype:
    match non_optional(operand):
        case Map(value):
            pass
        case _:
            raise InvalidExpression(
                "not-a-dict",
                f"`dict` functions need a dict, but were given {show(operand)}. Use "
                "them on a dict column.",
            )
    match op:
        case wire.DictLen():
            return optional_if(Int(), operand)
        case wire.DictContains(key):
            wanted = type_in(scope, key)
            expect_str("dict.contains", wanted)
            return optional_if(Bool(), operand, wanted)
        case wire.DictGet(key, default):
            expect_str("dict.get", type_in(scope, key))
            if default is None:
                return optional(value)
            fallback = type_in(scope, default)
            if not is_assignable(fallback, optional(value)):
                raise InvalidExpression(
                    "types-incompatible",
                    f"the default of `dict.get` must be {show(value)} like the "
                    f"values, but is {show(fallback)}. Convert it.",
                )
            return optional_if(value, operand, fallback)
        case unreachable:
            assert_never(unreachable)


# --- strings --------------------------------------------------------------------------------------


def _string(scope: NameScope, operand: Dtype, op: wire.StringOp) -> Dtype:
    match op:
        case StringUnary.LEN | StringUnary.TO_INT:
            result: Dtype = Int()
        case StringUnary.TO_LOWER | StringUnary.TO_UPPER:
            result = Str()
        case wire.StringContains(other) | wire.StartsWith(other) | wire.EndsWith(other):
            return _with_other(type(op).__name__.lower(), operand, type_in(scope, other), Bool())
        case wire.Concat(other):
            return _with_other("concat", operand, type_in(scope, other), Str())
        case wire.Strptime(pattern, zone):
            check_zone(zone)
            check_reading_pattern(pattern)
            result = Timestamp()
        case wire.JsonDecode(dtype):
            _expect_parsable(dtype)
            result = dtype
        case wire.Split():
            result = List(Str())
        case wire.JsonExtract(path):
            check_path(path)
            result = Optional(Str())
        case unreachable:
            assert_never(unreachable)
    expect_str(op.value if isinstance(op, StringUnary) else type(op).__name__.lower(), operand)
    return optional_if(result, operand)


def _with_other(what: str, operand: Dtype, other: Dtype, result: Dtype) -> Dtype:
    expect_str(what, operand)
    expect_str(what, other)
    return optional_if(result, operand, other)


def _expect_parsable(dtype: Dtype) -> None:
    match dtype:
        case Optional(of) | List(of):
            _expect_parsable(of)
        case Struct(_, fields):
            for field in fields:
                _expect_parsable(field.dtype)
        case Map() | Bytes() | Embedding() | Null():
            raise InvalidExpression(
                "unsupported-parse",
                f"`str.parse` cannot read {show(dtype)}. Parse into a struct or a "
                "list, or use json_extract.",
            )
        case _:
            return


# --- datetimes ------------------------------------------------------------------------------------


def _datetime(scope: NameScope, operand: Dtype, op: wire.DateTimeOp) -> Dtype:
    match op:
        case wire.Since(other, unit):
            since = type_in(scope, other)
            expect_datetime("dt.since", operand)
            expect_datetime("dt.since", since)
            _expect_length(unit)
            return optional_if(Int(), operand, since)
        case wire.SinceEpoch(unit):
            expect_datetime("dt.since_epoch", operand)
            _expect_length(unit)
            return optional_if(Int(), operand)
        case wire.Strftime(pattern, zone):
            expect_datetime("dt.strftime", operand)
            check_zone(zone)
            check_pattern(pattern)
            return optional_if(Str(), operand)
        case wire.Part(unit, zone):
            expect_datetime(f"dt.{unit.value}", operand)
            check_zone(zone)
            return optional_if(Int(), operand)
        case unreachable:
            assert_never(unreachable)


def _expect_length(unit: TimeUnit) -> None:
    if unit is TimeUnit.MONTH:
        raise InvalidExpression(
            "bad-unit",
            "a month has no fixed length, so no distance is measured in it. Use day, "
            "week or year (365 days).",
        )


def _from_epoch(operand: Dtype, unit: TimeUnit) -> Dtype:
    if not isinstance(non_optional(unrestricted(operand)), Int | Null):
        raise InvalidExpression(
            "not-an-int",
            f"`from_epoch` needs an int, but was given {show(operand)}. Use floor or round.",
        )
    if unit not in EPOCH_UNITS:
        raise InvalidExpression(
            "bad-unit",
            f"`from_epoch` does not count in {unit.value}s. Use one of: "
            f"{', '.join(u.value for u in EPOCH_UNITS)}.",
        )
    return optional_if(Timestamp(), operand)


def expect_declared(inferred: Dtype, declared: Dtype) -> None:
    """Raise unless a value of type `inferred` may be stored in a column of type `declared`.

    This is the client's `astype`.
    """
    if not is_assignable(inferred, declared):
        hint = (
            "Use fillnull, or declare it Optional."
            if is_optional(inferred) and not is_optional(declared)
            else "Change one of them."
        )
        raise InvalidExpression(
            "declared-type",
            f"the expression is of type {show(inferred)}, but {show(declared)} was "
            f"declared. {hint}",
        )
