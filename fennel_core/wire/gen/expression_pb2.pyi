from fennel_core.wire.gen import schema_pb2 as _schema_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UnaryOp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEG: _ClassVar[UnaryOp]
    NOT: _ClassVar[UnaryOp]

class BinOp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADD: _ClassVar[BinOp]
    SUB: _ClassVar[BinOp]
    MUL: _ClassVar[BinOp]
    DIV: _ClassVar[BinOp]
    MOD: _ClassVar[BinOp]
    FLOOR_DIV: _ClassVar[BinOp]
    EQ: _ClassVar[BinOp]
    NE: _ClassVar[BinOp]
    GT: _ClassVar[BinOp]
    GTE: _ClassVar[BinOp]
    LT: _ClassVar[BinOp]
    LTE: _ClassVar[BinOp]
    AND: _ClassVar[BinOp]
    OR: _ClassVar[BinOp]

class TimeUnit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[TimeUnit]
    SECOND: _ClassVar[TimeUnit]
    MINUTE: _ClassVar[TimeUnit]
    HOUR: _ClassVar[TimeUnit]
    DAY: _ClassVar[TimeUnit]
    WEEK: _ClassVar[TimeUnit]
    MONTH: _ClassVar[TimeUnit]
    YEAR: _ClassVar[TimeUnit]
    MICROSECOND: _ClassVar[TimeUnit]
    MILLISECOND: _ClassVar[TimeUnit]
NEG: UnaryOp
NOT: UnaryOp
ADD: BinOp
SUB: BinOp
MUL: BinOp
DIV: BinOp
MOD: BinOp
FLOOR_DIV: BinOp
EQ: BinOp
NE: BinOp
GT: BinOp
GTE: BinOp
LT: BinOp
LTE: BinOp
AND: BinOp
OR: BinOp
UNKNOWN: TimeUnit
SECOND: TimeUnit
MINUTE: TimeUnit
HOUR: TimeUnit
DAY: TimeUnit
WEEK: TimeUnit
MONTH: TimeUnit
YEAR: TimeUnit
MICROSECOND: TimeUnit
MILLISECOND: TimeUnit

class EvalContext(_message.Message):
    __slots__ = ("now_col_name", "index_col_name")
    NOW_COL_NAME_FIELD_NUMBER: _ClassVar[int]
    INDEX_COL_NAME_FIELD_NUMBER: _ClassVar[int]
    now_col_name: str
    index_col_name: str
    def __init__(self, now_col_name: _Optional[str] = ..., index_col_name: _Optional[str] = ...) -> None: ...

class Expr(_message.Message):
    __slots__ = ("ref", "json_literal", "unary", "case", "binary", "isnull", "fillnull", "list_fn", "math_fn", "struct_fn", "dict_fn", "string_fn", "datetime_fn", "datetime_literal", "make_struct", "from_epoch", "var", "now", "zip", "repeat")
    REF_FIELD_NUMBER: _ClassVar[int]
    JSON_LITERAL_FIELD_NUMBER: _ClassVar[int]
    UNARY_FIELD_NUMBER: _ClassVar[int]
    CASE_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    ISNULL_FIELD_NUMBER: _ClassVar[int]
    FILLNULL_FIELD_NUMBER: _ClassVar[int]
    LIST_FN_FIELD_NUMBER: _ClassVar[int]
    MATH_FN_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FN_FIELD_NUMBER: _ClassVar[int]
    DICT_FN_FIELD_NUMBER: _ClassVar[int]
    STRING_FN_FIELD_NUMBER: _ClassVar[int]
    DATETIME_FN_FIELD_NUMBER: _ClassVar[int]
    DATETIME_LITERAL_FIELD_NUMBER: _ClassVar[int]
    MAKE_STRUCT_FIELD_NUMBER: _ClassVar[int]
    FROM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    VAR_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    ZIP_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    ref: Ref
    json_literal: JsonLiteral
    unary: Unary
    case: Case
    binary: Binary
    isnull: IsNull
    fillnull: FillNull
    list_fn: ListFn
    math_fn: MathFn
    struct_fn: StructFn
    dict_fn: DictFn
    string_fn: StringFn
    datetime_fn: DateTimeFn
    datetime_literal: DatetimeLiteral
    make_struct: MakeStruct
    from_epoch: FromEpoch
    var: Var
    now: Now
    zip: Zip
    repeat: Repeat
    def __init__(self, ref: _Optional[_Union[Ref, _Mapping]] = ..., json_literal: _Optional[_Union[JsonLiteral, _Mapping]] = ..., unary: _Optional[_Union[Unary, _Mapping]] = ..., case: _Optional[_Union[Case, _Mapping]] = ..., binary: _Optional[_Union[Binary, _Mapping]] = ..., isnull: _Optional[_Union[IsNull, _Mapping]] = ..., fillnull: _Optional[_Union[FillNull, _Mapping]] = ..., list_fn: _Optional[_Union[ListFn, _Mapping]] = ..., math_fn: _Optional[_Union[MathFn, _Mapping]] = ..., struct_fn: _Optional[_Union[StructFn, _Mapping]] = ..., dict_fn: _Optional[_Union[DictFn, _Mapping]] = ..., string_fn: _Optional[_Union[StringFn, _Mapping]] = ..., datetime_fn: _Optional[_Union[DateTimeFn, _Mapping]] = ..., datetime_literal: _Optional[_Union[DatetimeLiteral, _Mapping]] = ..., make_struct: _Optional[_Union[MakeStruct, _Mapping]] = ..., from_epoch: _Optional[_Union[FromEpoch, _Mapping]] = ..., var: _Optional[_Union[Var, _Mapping]] = ..., now: _Optional[_Union[Now, _Mapping]] = ..., zip: _Optional[_Union[Zip, _Mapping]] = ..., repeat: _Optional[_Union[Repeat, _Mapping]] = ...) -> None: ...

class Repeat(_message.Message):
    __slots__ = ("expr", "count")
    EXPR_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    expr: Expr
    count: Expr
    def __init__(self, expr: _Optional[_Union[Expr, _Mapping]] = ..., count: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class Var(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class FromEpoch(_message.Message):
    __slots__ = ("duration", "unit")
    DURATION_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    duration: Expr
    unit: TimeUnit
    def __init__(self, duration: _Optional[_Union[Expr, _Mapping]] = ..., unit: _Optional[_Union[TimeUnit, str]] = ...) -> None: ...

class DatetimeLiteral(_message.Message):
    __slots__ = ("year", "month", "day", "hour", "minute", "second", "microsecond", "timezone")
    YEAR_FIELD_NUMBER: _ClassVar[int]
    MONTH_FIELD_NUMBER: _ClassVar[int]
    DAY_FIELD_NUMBER: _ClassVar[int]
    HOUR_FIELD_NUMBER: _ClassVar[int]
    MINUTE_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    MICROSECOND_FIELD_NUMBER: _ClassVar[int]
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    microsecond: int
    timezone: Timezone
    def __init__(self, year: _Optional[int] = ..., month: _Optional[int] = ..., day: _Optional[int] = ..., hour: _Optional[int] = ..., minute: _Optional[int] = ..., second: _Optional[int] = ..., microsecond: _Optional[int] = ..., timezone: _Optional[_Union[Timezone, _Mapping]] = ...) -> None: ...

class MakeStruct(_message.Message):
    __slots__ = ("struct_type", "fields")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Expr
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...
    STRUCT_TYPE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    struct_type: _schema_pb2.StructType
    fields: _containers.MessageMap[str, Expr]
    def __init__(self, struct_type: _Optional[_Union[_schema_pb2.StructType, _Mapping]] = ..., fields: _Optional[_Mapping[str, Expr]] = ...) -> None: ...

class Zip(_message.Message):
    __slots__ = ("struct_type", "fields")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Expr
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...
    STRUCT_TYPE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    struct_type: _schema_pb2.StructType
    fields: _containers.MessageMap[str, Expr]
    def __init__(self, struct_type: _Optional[_Union[_schema_pb2.StructType, _Mapping]] = ..., fields: _Optional[_Mapping[str, Expr]] = ...) -> None: ...

class JsonLiteral(_message.Message):
    __slots__ = ("literal", "dtype")
    LITERAL_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    literal: str
    dtype: _schema_pb2.DataType
    def __init__(self, literal: _Optional[str] = ..., dtype: _Optional[_Union[_schema_pb2.DataType, _Mapping]] = ...) -> None: ...

class Ref(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Unary(_message.Message):
    __slots__ = ("op", "operand")
    OP_FIELD_NUMBER: _ClassVar[int]
    OPERAND_FIELD_NUMBER: _ClassVar[int]
    op: UnaryOp
    operand: Expr
    def __init__(self, op: _Optional[_Union[UnaryOp, str]] = ..., operand: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class Binary(_message.Message):
    __slots__ = ("left", "right", "op")
    LEFT_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    left: Expr
    right: Expr
    op: BinOp
    def __init__(self, left: _Optional[_Union[Expr, _Mapping]] = ..., right: _Optional[_Union[Expr, _Mapping]] = ..., op: _Optional[_Union[BinOp, str]] = ...) -> None: ...

class Case(_message.Message):
    __slots__ = ("when_then", "otherwise")
    WHEN_THEN_FIELD_NUMBER: _ClassVar[int]
    OTHERWISE_FIELD_NUMBER: _ClassVar[int]
    when_then: _containers.RepeatedCompositeFieldContainer[WhenThen]
    otherwise: Expr
    def __init__(self, when_then: _Optional[_Iterable[_Union[WhenThen, _Mapping]]] = ..., otherwise: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class WhenThen(_message.Message):
    __slots__ = ("when", "then")
    WHEN_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    when: Expr
    then: Expr
    def __init__(self, when: _Optional[_Union[Expr, _Mapping]] = ..., then: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class IsNull(_message.Message):
    __slots__ = ("operand",)
    OPERAND_FIELD_NUMBER: _ClassVar[int]
    operand: Expr
    def __init__(self, operand: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class FillNull(_message.Message):
    __slots__ = ("operand", "fill")
    OPERAND_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    operand: Expr
    fill: Expr
    def __init__(self, operand: _Optional[_Union[Expr, _Mapping]] = ..., fill: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class ListOp(_message.Message):
    __slots__ = ("len", "get", "contains", "has_null", "sum", "min", "max", "all", "any", "mean", "filter", "map")
    LEN_FIELD_NUMBER: _ClassVar[int]
    GET_FIELD_NUMBER: _ClassVar[int]
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    HAS_NULL_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    ANY_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    MAP_FIELD_NUMBER: _ClassVar[int]
    len: Len
    get: Expr
    contains: Contains
    has_null: HasNull
    sum: ListSum
    min: ListMin
    max: ListMax
    all: ListAll
    any: ListAny
    mean: ListMean
    filter: ListFilter
    map: ListMap
    def __init__(self, len: _Optional[_Union[Len, _Mapping]] = ..., get: _Optional[_Union[Expr, _Mapping]] = ..., contains: _Optional[_Union[Contains, _Mapping]] = ..., has_null: _Optional[_Union[HasNull, _Mapping]] = ..., sum: _Optional[_Union[ListSum, _Mapping]] = ..., min: _Optional[_Union[ListMin, _Mapping]] = ..., max: _Optional[_Union[ListMax, _Mapping]] = ..., all: _Optional[_Union[ListAll, _Mapping]] = ..., any: _Optional[_Union[ListAny, _Mapping]] = ..., mean: _Optional[_Union[ListMean, _Mapping]] = ..., filter: _Optional[_Union[ListFilter, _Mapping]] = ..., map: _Optional[_Union[ListMap, _Mapping]] = ...) -> None: ...

class ListFilter(_message.Message):
    __slots__ = ("var", "predicate")
    VAR_FIELD_NUMBER: _ClassVar[int]
    PREDICATE_FIELD_NUMBER: _ClassVar[int]
    var: str
    predicate: Expr
    def __init__(self, var: _Optional[str] = ..., predicate: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class ListMap(_message.Message):
    __slots__ = ("var", "map_expr")
    VAR_FIELD_NUMBER: _ClassVar[int]
    MAP_EXPR_FIELD_NUMBER: _ClassVar[int]
    var: str
    map_expr: Expr
    def __init__(self, var: _Optional[str] = ..., map_expr: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class Contains(_message.Message):
    __slots__ = ("element",)
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    element: Expr
    def __init__(self, element: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class ListFn(_message.Message):
    __slots__ = ("list", "fn")
    LIST_FIELD_NUMBER: _ClassVar[int]
    FN_FIELD_NUMBER: _ClassVar[int]
    list: Expr
    fn: ListOp
    def __init__(self, list: _Optional[_Union[Expr, _Mapping]] = ..., fn: _Optional[_Union[ListOp, _Mapping]] = ...) -> None: ...

class MathOp(_message.Message):
    __slots__ = ("round", "abs", "ceil", "floor", "to_string", "pow", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "is_nan", "is_infinite")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ABS_FIELD_NUMBER: _ClassVar[int]
    CEIL_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    TO_STRING_FIELD_NUMBER: _ClassVar[int]
    POW_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    SQRT_FIELD_NUMBER: _ClassVar[int]
    SIN_FIELD_NUMBER: _ClassVar[int]
    COS_FIELD_NUMBER: _ClassVar[int]
    TAN_FIELD_NUMBER: _ClassVar[int]
    ASIN_FIELD_NUMBER: _ClassVar[int]
    ACOS_FIELD_NUMBER: _ClassVar[int]
    ATAN_FIELD_NUMBER: _ClassVar[int]
    IS_NAN_FIELD_NUMBER: _ClassVar[int]
    IS_INFINITE_FIELD_NUMBER: _ClassVar[int]
    round: Round
    abs: Abs
    ceil: Ceil
    floor: Floor
    to_string: ToString
    pow: Pow
    log: Log
    sqrt: Sqrt
    sin: Sin
    cos: Cos
    tan: Tan
    asin: Asin
    acos: Acos
    atan: Atan
    is_nan: IsNan
    is_infinite: IsInfinite
    def __init__(self, round: _Optional[_Union[Round, _Mapping]] = ..., abs: _Optional[_Union[Abs, _Mapping]] = ..., ceil: _Optional[_Union[Ceil, _Mapping]] = ..., floor: _Optional[_Union[Floor, _Mapping]] = ..., to_string: _Optional[_Union[ToString, _Mapping]] = ..., pow: _Optional[_Union[Pow, _Mapping]] = ..., log: _Optional[_Union[Log, _Mapping]] = ..., sqrt: _Optional[_Union[Sqrt, _Mapping]] = ..., sin: _Optional[_Union[Sin, _Mapping]] = ..., cos: _Optional[_Union[Cos, _Mapping]] = ..., tan: _Optional[_Union[Tan, _Mapping]] = ..., asin: _Optional[_Union[Asin, _Mapping]] = ..., acos: _Optional[_Union[Acos, _Mapping]] = ..., atan: _Optional[_Union[Atan, _Mapping]] = ..., is_nan: _Optional[_Union[IsNan, _Mapping]] = ..., is_infinite: _Optional[_Union[IsInfinite, _Mapping]] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("precision",)
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    precision: int
    def __init__(self, precision: _Optional[int] = ...) -> None: ...

class Pow(_message.Message):
    __slots__ = ("exponent",)
    EXPONENT_FIELD_NUMBER: _ClassVar[int]
    exponent: Expr
    def __init__(self, exponent: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class Log(_message.Message):
    __slots__ = ("base",)
    BASE_FIELD_NUMBER: _ClassVar[int]
    base: float
    def __init__(self, base: _Optional[float] = ...) -> None: ...

class MathFn(_message.Message):
    __slots__ = ("operand", "fn")
    OPERAND_FIELD_NUMBER: _ClassVar[int]
    FN_FIELD_NUMBER: _ClassVar[int]
    operand: Expr
    fn: MathOp
    def __init__(self, operand: _Optional[_Union[Expr, _Mapping]] = ..., fn: _Optional[_Union[MathOp, _Mapping]] = ...) -> None: ...

class StructOp(_message.Message):
    __slots__ = ("field",)
    FIELD_FIELD_NUMBER: _ClassVar[int]
    field: str
    def __init__(self, field: _Optional[str] = ...) -> None: ...

class StructFn(_message.Message):
    __slots__ = ("struct", "fn")
    STRUCT_FIELD_NUMBER: _ClassVar[int]
    FN_FIELD_NUMBER: _ClassVar[int]
    struct: Expr
    fn: StructOp
    def __init__(self, struct: _Optional[_Union[Expr, _Mapping]] = ..., fn: _Optional[_Union[StructOp, _Mapping]] = ...) -> None: ...

class DictGet(_message.Message):
    __slots__ = ("field", "default_value")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    field: Expr
    default_value: Expr
    def __init__(self, field: _Optional[_Union[Expr, _Mapping]] = ..., default_value: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class DictOp(_message.Message):
    __slots__ = ("len", "get", "contains")
    LEN_FIELD_NUMBER: _ClassVar[int]
    GET_FIELD_NUMBER: _ClassVar[int]
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    len: Len
    get: DictGet
    contains: Contains
    def __init__(self, len: _Optional[_Union[Len, _Mapping]] = ..., get: _Optional[_Union[DictGet, _Mapping]] = ..., contains: _Optional[_Union[Contains, _Mapping]] = ...) -> None: ...

class DictFn(_message.Message):
    __slots__ = ("dict", "fn")
    DICT_FIELD_NUMBER: _ClassVar[int]
    FN_FIELD_NUMBER: _ClassVar[int]
    dict: Expr
    fn: DictOp
    def __init__(self, dict: _Optional[_Union[Expr, _Mapping]] = ..., fn: _Optional[_Union[DictOp, _Mapping]] = ...) -> None: ...

class StringOp(_message.Message):
    __slots__ = ("len", "tolower", "toupper", "contains", "startswith", "endswith", "concat", "strptime", "json_decode", "split", "json_extract", "to_int")
    LEN_FIELD_NUMBER: _ClassVar[int]
    TOLOWER_FIELD_NUMBER: _ClassVar[int]
    TOUPPER_FIELD_NUMBER: _ClassVar[int]
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    STARTSWITH_FIELD_NUMBER: _ClassVar[int]
    ENDSWITH_FIELD_NUMBER: _ClassVar[int]
    CONCAT_FIELD_NUMBER: _ClassVar[int]
    STRPTIME_FIELD_NUMBER: _ClassVar[int]
    JSON_DECODE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    JSON_EXTRACT_FIELD_NUMBER: _ClassVar[int]
    TO_INT_FIELD_NUMBER: _ClassVar[int]
    len: Len
    tolower: ToLower
    toupper: ToUpper
    contains: Contains
    startswith: StartsWith
    endswith: EndsWith
    concat: Concat
    strptime: Strptime
    json_decode: JsonDecode
    split: Split
    json_extract: JsonExtract
    to_int: ToInt
    def __init__(self, len: _Optional[_Union[Len, _Mapping]] = ..., tolower: _Optional[_Union[ToLower, _Mapping]] = ..., toupper: _Optional[_Union[ToUpper, _Mapping]] = ..., contains: _Optional[_Union[Contains, _Mapping]] = ..., startswith: _Optional[_Union[StartsWith, _Mapping]] = ..., endswith: _Optional[_Union[EndsWith, _Mapping]] = ..., concat: _Optional[_Union[Concat, _Mapping]] = ..., strptime: _Optional[_Union[Strptime, _Mapping]] = ..., json_decode: _Optional[_Union[JsonDecode, _Mapping]] = ..., split: _Optional[_Union[Split, _Mapping]] = ..., json_extract: _Optional[_Union[JsonExtract, _Mapping]] = ..., to_int: _Optional[_Union[ToInt, _Mapping]] = ...) -> None: ...

class Timezone(_message.Message):
    __slots__ = ("timezone",)
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    timezone: str
    def __init__(self, timezone: _Optional[str] = ...) -> None: ...

class JsonDecode(_message.Message):
    __slots__ = ("dtype",)
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    dtype: _schema_pb2.DataType
    def __init__(self, dtype: _Optional[_Union[_schema_pb2.DataType, _Mapping]] = ...) -> None: ...

class Strptime(_message.Message):
    __slots__ = ("format", "timezone")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    format: str
    timezone: Timezone
    def __init__(self, format: _Optional[str] = ..., timezone: _Optional[_Union[Timezone, _Mapping]] = ...) -> None: ...

class StartsWith(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: Expr
    def __init__(self, key: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class EndsWith(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: Expr
    def __init__(self, key: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class Concat(_message.Message):
    __slots__ = ("other",)
    OTHER_FIELD_NUMBER: _ClassVar[int]
    other: Expr
    def __init__(self, other: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...

class StringFn(_message.Message):
    __slots__ = ("string", "fn")
    STRING_FIELD_NUMBER: _ClassVar[int]
    FN_FIELD_NUMBER: _ClassVar[int]
    string: Expr
    fn: StringOp
    def __init__(self, string: _Optional[_Union[Expr, _Mapping]] = ..., fn: _Optional[_Union[StringOp, _Mapping]] = ...) -> None: ...

class DateTimeFn(_message.Message):
    __slots__ = ("datetime", "fn")
    DATETIME_FIELD_NUMBER: _ClassVar[int]
    FN_FIELD_NUMBER: _ClassVar[int]
    datetime: Expr
    fn: DateTimeOp
    def __init__(self, datetime: _Optional[_Union[Expr, _Mapping]] = ..., fn: _Optional[_Union[DateTimeOp, _Mapping]] = ...) -> None: ...

class DateTimeOp(_message.Message):
    __slots__ = ("since", "since_epoch", "strftime", "part")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SINCE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STRFTIME_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    since: Since
    since_epoch: SinceEpoch
    strftime: Strftime
    part: Part
    def __init__(self, since: _Optional[_Union[Since, _Mapping]] = ..., since_epoch: _Optional[_Union[SinceEpoch, _Mapping]] = ..., strftime: _Optional[_Union[Strftime, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ...) -> None: ...

class Since(_message.Message):
    __slots__ = ("other", "unit")
    OTHER_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    other: Expr
    unit: TimeUnit
    def __init__(self, other: _Optional[_Union[Expr, _Mapping]] = ..., unit: _Optional[_Union[TimeUnit, str]] = ...) -> None: ...

class SinceEpoch(_message.Message):
    __slots__ = ("unit",)
    UNIT_FIELD_NUMBER: _ClassVar[int]
    unit: TimeUnit
    def __init__(self, unit: _Optional[_Union[TimeUnit, str]] = ...) -> None: ...

class Strftime(_message.Message):
    __slots__ = ("format", "timezone")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    format: str
    timezone: Timezone
    def __init__(self, format: _Optional[str] = ..., timezone: _Optional[_Union[Timezone, _Mapping]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("unit", "timezone")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    unit: TimeUnit
    timezone: Timezone
    def __init__(self, unit: _Optional[_Union[TimeUnit, str]] = ..., timezone: _Optional[_Union[Timezone, _Mapping]] = ...) -> None: ...

class Split(_message.Message):
    __slots__ = ("sep",)
    SEP_FIELD_NUMBER: _ClassVar[int]
    sep: str
    def __init__(self, sep: _Optional[str] = ...) -> None: ...

class JsonExtract(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class Now(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSum(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMin(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMean(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMax(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAll(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAny(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Len(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HasNull(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Sqrt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Abs(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Ceil(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Floor(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ToString(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Sin(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cos(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Tan(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Asin(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Acos(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Atan(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class IsNan(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class IsInfinite(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ToLower(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ToUpper(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ToInt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
