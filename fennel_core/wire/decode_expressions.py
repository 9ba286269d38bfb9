"""Decode expression trees into `wire.expr`.

The protobuf parser bounds the nesting of a message, so the recursion here is bounded too.
"""

from __future__ import annotations

from google.protobuf.message import Message

from fennel_core.wire import expr as e
from fennel_core.wire.decode_datatypes import chosen, decode_dtype, decode_struct, known, unknown
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.expr import Expr, TimeUnit
from fennel_core.wire.gen import expression_pb2 as pb

DEFAULT_TIMEZONE = "UTC"

UNARY = {pb.UnaryOp.NEG: e.UnaryOp.NEG, pb.UnaryOp.NOT: e.UnaryOp.NOT}
BINARY = {
    pb.BinOp.ADD: e.BinaryOp.ADD,
    pb.BinOp.SUB: e.BinaryOp.SUB,
    pb.BinOp.MUL: e.BinaryOp.MUL,
    pb.BinOp.DIV: e.BinaryOp.DIV,
    pb.BinOp.MOD: e.BinaryOp.MOD,
    pb.BinOp.FLOOR_DIV: e.BinaryOp.FLOOR_DIV,
    pb.BinOp.EQ: e.BinaryOp.EQ,
    pb.BinOp.NE: e.BinaryOp.NE,
    pb.BinOp.GT: e.BinaryOp.GT,
    pb.BinOp.GTE: e.BinaryOp.GTE,
    pb.BinOp.LT: e.BinaryOp.LT,
    pb.BinOp.LTE: e.BinaryOp.LTE,
    pb.BinOp.AND: e.BinaryOp.AND,
    pb.BinOp.OR: e.BinaryOp.OR,
}
UNITS = {
    pb.TimeUnit.MICROSECOND: TimeUnit.MICROSECOND,
    pb.TimeUnit.MILLISECOND: TimeUnit.MILLISECOND,
    pb.TimeUnit.SECOND: TimeUnit.SECOND,
    pb.TimeUnit.MINUTE: TimeUnit.MINUTE,
    pb.TimeUnit.HOUR: TimeUnit.HOUR,
    pb.TimeUnit.DAY: TimeUnit.DAY,
    pb.TimeUnit.WEEK: TimeUnit.WEEK,
    pb.TimeUnit.MONTH: TimeUnit.MONTH,
    pb.TimeUnit.YEAR: TimeUnit.YEAR,
}
LIST_FOLDS = {
    "len": e.ListFold.LEN,
    "has_null": e.ListFold.HAS_NULL,
    "sum": e.ListFold.SUM,
    "min": e.ListFold.MIN,
    "max": e.ListFold.MAX,
    "all": e.ListFold.ALL,
    "any": e.ListFold.ANY,
    "mean": e.ListFold.MEAN,
}
STRING_UNARIES = {
    "len": e.StringUnary.LEN,
    "tolower": e.StringUnary.TO_LOWER,
    "toupper": e.StringUnary.TO_UPPER,
    "to_int": e.StringUnary.TO_INT,
}
MATH_UNARIES = {member.value: member for member in e.MathUnary}


def decode_expr(message: pb.Expr) -> Expr:
    """Decode one expression; raises `UnsupportedValue` for an unknown node, operation or unit."""
    match chosen(message, "node"):
        case "ref":
            return e.Ref(message.ref.name)
        case "json_literal":
            return e.Literal(message.json_literal.literal, decode_dtype(message.json_literal.dtype))
        case "datetime_literal":
            return _datetime_literal(message.datetime_literal)
        case "var":
            return e.Var(message.var.name)
        case "now":
            return e.Now()
        case "unary":
            return e.Unary(
                known(UNARY, message.unary.op, message.unary, "op"),
                decode_expr(message.unary.operand),
            )
        case "binary":
            op = known(BINARY, message.binary.op, message.binary, "op")
            return e.Binary(op, decode_expr(message.binary.left), decode_expr(message.binary.right))
        case "case":
            return _case(message.case)
        case "isnull":
            return e.IsNull(decode_expr(message.isnull.operand))
        case "fillnull":
            return e.FillNull(
                decode_expr(message.fillnull.operand), decode_expr(message.fillnull.fill)
            )
        case other:
            return _function(message, other)


def _function(message: pb.Expr, node: str) -> Expr:
    match node:
        case "list_fn":
            return e.ListFn(decode_expr(message.list_fn.list), _list_op(message.list_fn.fn))
        case "math_fn":
            return e.MathFn(decode_expr(message.math_fn.operand), _math_op(message.math_fn.fn))
        case "struct_fn":
            chosen(message.struct_fn.fn, "fn_type")
            return e.StructGet(decode_expr(message.struct_fn.struct), message.struct_fn.fn.field)
        case "dict_fn":
            return e.DictFn(decode_expr(message.dict_fn.dict), _dict_op(message.dict_fn.fn))
        case "string_fn":
            return e.StringFn(
                decode_expr(message.string_fn.string), _string_op(message.string_fn.fn)
            )
        case "datetime_fn":
            return e.DateTimeFn(
                decode_expr(message.datetime_fn.datetime), _datetime_op(message.datetime_fn.fn)
            )
        case "from_epoch":
            return e.FromEpoch(
                decode_expr(message.from_epoch.duration),
                _unit(message.from_epoch.unit, message.from_epoch),
            )
        case "make_struct":
            return e.MakeStruct(
                decode_struct(message.make_struct.struct_type), _struct_parts(message.make_struct)
            )
        case "zip":
            return e.Zip(decode_struct(message.zip.struct_type), _struct_parts(message.zip))
        case "repeat":
            return e.Repeat(decode_expr(message.repeat.expr), decode_expr(message.repeat.count))
        case other:
            raise unknown(message, other)


def _unit(unit: pb.TimeUnit, message: Message) -> TimeUnit:
    return known(UNITS, unit, message, "time unit")


def _timezone(message: pb.Strptime | pb.Strftime | pb.Part | pb.DatetimeLiteral) -> str:
    return message.timezone.timezone or DEFAULT_TIMEZONE


def _datetime_literal(message: pb.DatetimeLiteral) -> e.DatetimeLiteral:
    return e.DatetimeLiteral(
        year=message.year,
        month=message.month,
        day=message.day,
        hour=message.hour,
        minute=message.minute,
        second=message.second,
        microsecond=message.microsecond,
        timezone=_timezone(message),
    )


def _case(message: pb.Case) -> e.Case:
    branches = tuple(
        e.WhenThen(decode_expr(branch.when), decode_expr(branch.then))
        for branch in message.when_then
    )
    return e.Case(
        branches, decode_expr(message.otherwise) if message.HasField("otherwise") else None
    )


def _struct_parts(message: pb.MakeStruct | pb.Zip) -> tuple[tuple[str, Expr], ...]:
    declared = [field.name for field in message.struct_type.fields]
    surplus = sorted(set(message.fields) - set(declared))
    if surplus:
        raise UnsupportedValue(
            f"struct `{message.struct_type.name}` has no field {surplus}; its fields are {declared}"
        )
    return tuple(
        (name, decode_expr(message.fields[name])) for name in declared if name in message.fields
    )


def _list_op(message: pb.ListOp) -> e.ListOp:
    match chosen(message, "fn_type"):
        case "get":
            return e.ListGet(decode_expr(message.get))
        case "contains":
            return e.ListContains(decode_expr(message.contains.element))
        case "filter":
            return e.ListFilter(message.filter.var, decode_expr(message.filter.predicate))
        case "map":
            return e.ListMap(message.map.var, decode_expr(message.map.map_expr))
        case other:
            return known(LIST_FOLDS, other, message, "operation")


def _math_op(message: pb.MathOp) -> e.MathOp:
    match chosen(message, "fn_type"):
        case "round":
            return e.Round(message.round.precision)
        case "pow":
            return e.Pow(decode_expr(message.pow.exponent))
        case "log":
            return e.Log(message.log.base)
        case other:
            return known(MATH_UNARIES, other, message, "operation")


def _dict_op(message: pb.DictOp) -> e.DictOp:
    match chosen(message, "fn_type"):
        case "len":
            return e.DictLen()
        case "get":
            default = (
                decode_expr(message.get.default_value)
                if message.get.HasField("default_value")
                else None
            )
            return e.DictGet(decode_expr(message.get.field), default)
        case "contains":
            return e.DictContains(decode_expr(message.contains.element))
        case other:
            raise unknown(message, other)


def _string_op(message: pb.StringOp) -> e.StringOp:
    match chosen(message, "fn_type"):
        case "contains":
            return e.StringContains(decode_expr(message.contains.element))
        case "startswith":
            return e.StartsWith(decode_expr(message.startswith.key))
        case "endswith":
            return e.EndsWith(decode_expr(message.endswith.key))
        case "concat":
            return e.Concat(decode_expr(message.concat.other))
        case "strptime":
            return e.Strptime(message.strptime.format, _timezone(message.strptime))
        case "json_decode":
            return e.JsonDecode(decode_dtype(message.json_decode.dtype))
        case "split":
            return e.Split(message.split.sep)
        case "json_extract":
            return e.JsonExtract(message.json_extract.path)
        case other:
            return known(STRING_UNARIES, other, message, "operation")


def _datetime_op(message: pb.DateTimeOp) -> e.DateTimeOp:
    match chosen(message, "fn_type"):
        case "since":
            return e.Since(
                decode_expr(message.since.other), _unit(message.since.unit, message.since)
            )
        case "since_epoch":
            return e.SinceEpoch(_unit(message.since_epoch.unit, message.since_epoch))
        case "strftime":
            return e.Strftime(message.strftime.format, _timezone(message.strftime))
        case "part":
            return e.Part(_unit(message.part.unit, message.part), _timezone(message.part))
        case other:
            raise unknown(message, other)
