"""The client's expressions as a closed union of frozen values.

Theory. An expression arrives as a protobuf tree whose every node is a `oneof`. Here each node is
one dataclass, so that a compiler can match on it to `assert_never` and an expression can be hashed,
compared and used as a cache key. Function nodes (`ListFn`, `MathFn`, …) hold an operand and an
operation of their own small union; operations without parameters are members of an enum. Maps of
the protocol are unordered: their entries are put into the order of the struct they build.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fennel_core.vocab.dtypes import Dtype, Struct


class UnaryOp(Enum):
    NEG = "neg"
    NOT = "not"


class BinaryOp(Enum):
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MOD = "mod"
    FLOOR_DIV = "floor_div"
    EQ = "eq"
    NE = "ne"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"
    AND = "and"
    OR = "or"


class TimeUnit(Enum):
    MICROSECOND = "microsecond"
    MILLISECOND = "millisecond"
    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"


# --- leaves ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a column (operators), feature (extractors) or payload field (sources)."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant as JSON text of type `dtype`.

    Decimals and dates are JSON strings of `str(value)`; `null` has dtype `Null`.
    """

    json: str
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class DatetimeLiteral:
    """A local date and time in `timezone` (an IANA name)."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    microsecond: int
    timezone: str


@dataclass(frozen=True, slots=True)
class Var:
    """The element of the list in the nearest enclosing `ListFilter` or `ListMap` that binds it."""

    name: str


@dataclass(frozen=True, slots=True)
class Now:
    """The time of the row in a query.

    Online it is one clock reading per query, offline the row's own timestamp.
    """


# --- core -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unary:
    op: UnaryOp
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary:
    op: BinaryOp
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class WhenThen:
    when: Expr
    then: Expr


@dataclass(frozen=True, slots=True)
class Case:
    """The first branch whose `when` is true.

    `otherwise` is None if the client sent none; the result is then Optional.
    """

    branches: tuple[WhenThen, ...]
    otherwise: Expr | None


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Expr


@dataclass(frozen=True, slots=True)
class FillNull:
    operand: Expr
    fill: Expr


# --- lists ----------------------------------------------------------------------------------------


class ListFold(Enum):
    """List operations without parameters."""

    LEN = "len"
    HAS_NULL = "has_null"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    ALL = "all"
    ANY = "any"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class ListGet:
    index: Expr


@dataclass(frozen=True, slots=True)
class ListContains:
    element: Expr


@dataclass(frozen=True, slots=True)
class ListFilter:
    var: str
    predicate: Expr


@dataclass(frozen=True, slots=True)
class ListMap:
    var: str
    body: Expr


ListOp = ListFold | ListGet | ListContains | ListFilter | ListMap


@dataclass(frozen=True, slots=True)
class ListFn:
    operand: Expr
    op: ListOp


# --- numbers --------------------------------------------------------------------------------------


class MathUnary(Enum):
    """Number operations without parameters."""

    ABS = "abs"
    CEIL = "ceil"
    FLOOR = "floor"
    TO_STRING = "to_string"
    SQRT = "sqrt"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    IS_NAN = "is_nan"
    IS_INFINITE = "is_infinite"


@dataclass(frozen=True, slots=True)
class Round:
    """Rounds half away from zero to `precision` decimal places."""

    precision: int


@dataclass(frozen=True, slots=True)
class Pow:
    exponent: Expr


@dataclass(frozen=True, slots=True)
class Log:
    base: float


MathOp = MathUnary | Round | Pow | Log


@dataclass(frozen=True, slots=True)
class MathFn:
    operand: Expr
    op: MathOp


# --- structs and dicts ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StructGet:
    operand: Expr
    field: str


@dataclass(frozen=True, slots=True)
class DictLen:
    pass


@dataclass(frozen=True, slots=True)
class DictGet:
    """The value of a key; `default` None makes the result Optional."""

    key: Expr
    default: Expr | None


@dataclass(frozen=True, slots=True)
class DictContains:
    key: Expr


DictOp = DictLen | DictGet | DictContains


@dataclass(frozen=True, slots=True)
class DictFn:
    operand: Expr
    op: DictOp


@dataclass(frozen=True, slots=True)
class MakeStruct:
    """A struct with one expression per field of `struct`, in the struct's field order."""

    struct: Struct
    fields: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True)
class Zip:
    """A list of structs from parallel lists, as long as the shortest of them.

    Fields are in the struct's order.
    """

    struct: Struct
    fields: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A list of `count` copies of `operand`."""

    operand: Expr
    count: Expr


# --- strings --------------------------------------------------------------------------------------


class StringUnary(Enum):
    """String operations without parameters."""

    LEN = "len"
    TO_LOWER = "to_lower"
    TO_UPPER = "to_upper"
    TO_INT = "to_int"


@dataclass(frozen=True, slots=True)
class StringContains:
    element: Expr


@dataclass(frozen=True, slots=True)
class StartsWith:
    prefix: Expr


@dataclass(frozen=True, slots=True)
class EndsWith:
    suffix: Expr


@dataclass(frozen=True, slots=True)
class Concat:
    other: Expr


@dataclass(frozen=True, slots=True)
class Strptime:
    """Parses text by the chrono pattern `format`; text without an offset is in `timezone`."""

    format: str
    timezone: str


@dataclass(frozen=True, slots=True)
class JsonDecode:
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class Split:
    separator: str


@dataclass(frozen=True, slots=True)
class JsonExtract:
    """Extracts the value at the JSONPath `path` as text."""

    path: str


StringOp = (
    StringUnary
    | StringContains
    | StartsWith
    | EndsWith
    | Concat
    | Strptime
    | JsonDecode
    | Split
    | JsonExtract
)


@dataclass(frozen=True, slots=True)
class StringFn:
    operand: Expr
    op: StringOp


# --- datetimes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Since:
    other: Expr
    unit: TimeUnit


@dataclass(frozen=True, slots=True)
class SinceEpoch:
    unit: TimeUnit


@dataclass(frozen=True, slots=True)
class Strftime:
    """Formats a datetime by the chrono pattern `format`, in `timezone`."""

    format: str
    timezone: str


@dataclass(frozen=True, slots=True)
class Part:
    unit: TimeUnit
    timezone: str


DateTimeOp = Since | SinceEpoch | Strftime | Part


@dataclass(frozen=True, slots=True)
class DateTimeFn:
    operand: Expr
    op: DateTimeOp


@dataclass(frozen=True, slots=True)
class FromEpoch:
    """A datetime from a number of `unit` since 1970-01-01 UTC."""

    operand: Expr
    unit: TimeUnit


Expr = (
    Ref
    | Literal
    | DatetimeLiteral
    | Var
    | Now
    | Unary
    | Binary
    | Case
    | IsNull
    | FillNull
    | ListFn
    | MathFn
    | StructGet
    | DictFn
    | MakeStruct
    | Zip
    | Repeat
    | StringFn
    | DateTimeFn
    | FromEpoch
)
