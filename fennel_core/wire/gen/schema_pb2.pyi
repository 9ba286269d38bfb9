import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(_message.Message):
    __slots__ = ("int_type", "double_type", "string_type", "bool_type", "timestamp_type", "array_type", "map_type", "embedding_type", "between_type", "one_of_type", "regex_type", "optional_type", "struct_type", "decimal_type", "date_type", "bytes_type", "null_type")
    INT_TYPE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_TYPE_FIELD_NUMBER: _ClassVar[int]
    STRING_TYPE_FIELD_NUMBER: _ClassVar[int]
    BOOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_TYPE_FIELD_NUMBER: _ClassVar[int]
    ARRAY_TYPE_FIELD_NUMBER: _ClassVar[int]
    MAP_TYPE_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_TYPE_FIELD_NUMBER: _ClassVar[int]
    BETWEEN_TYPE_FIELD_NUMBER: _ClassVar[int]
    ONE_OF_TYPE_FIELD_NUMBER: _ClassVar[int]
    REGEX_TYPE_FIELD_NUMBER: _ClassVar[int]
    OPTIONAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    STRUCT_TYPE_FIELD_NUMBER: _ClassVar[int]
    DECIMAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATE_TYPE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TYPE_FIELD_NUMBER: _ClassVar[int]
    NULL_TYPE_FIELD_NUMBER: _ClassVar[int]
    int_type: IntType
    double_type: DoubleType
    string_type: StringType
    bool_type: BoolType
    timestamp_type: TimestampType
    array_type: ArrayType
    map_type: MapType
    embedding_type: EmbeddingType
    between_type: Between
    one_of_type: OneOf
    regex_type: RegexType
    optional_type: OptionalType
    struct_type: StructType
    decimal_type: DecimalType
    date_type: DateType
    bytes_type: BytesType
    null_type: NullType
    def __init__(self, int_type: _Optional[_Union[IntType, _Mapping]] = ..., double_type: _Optional[_Union[DoubleType, _Mapping]] = ..., string_type: _Optional[_Union[StringType, _Mapping]] = ..., bool_type: _Optional[_Union[BoolType, _Mapping]] = ..., timestamp_type: _Optional[_Union[TimestampType, _Mapping]] = ..., array_type: _Optional[_Union[ArrayType, _Mapping]] = ..., map_type: _Optional[_Union[MapType, _Mapping]] = ..., embedding_type: _Optional[_Union[EmbeddingType, _Mapping]] = ..., between_type: _Optional[_Union[Between, _Mapping]] = ..., one_of_type: _Optional[_Union[OneOf, _Mapping]] = ..., regex_type: _Optional[_Union[RegexType, _Mapping]] = ..., optional_type: _Optional[_Union[OptionalType, _Mapping]] = ..., struct_type: _Optional[_Union[StructType, _Mapping]] = ..., decimal_type: _Optional[_Union[DecimalType, _Mapping]] = ..., date_type: _Optional[_Union[DateType, _Mapping]] = ..., bytes_type: _Optional[_Union[BytesType, _Mapping]] = ..., null_type: _Optional[_Union[NullType, _Mapping]] = ...) -> None: ...

class Field(_message.Message):
    __slots__ = ("name", "dtype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: DataType
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DataType, _Mapping]] = ...) -> None: ...

class RegexType(_message.Message):
    __slots__ = ("pattern",)
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    def __init__(self, pattern: _Optional[str] = ...) -> None: ...

class ArrayType(_message.Message):
    __slots__ = ("of",)
    OF_FIELD_NUMBER: _ClassVar[int]
    of: DataType
    def __init__(self, of: _Optional[_Union[DataType, _Mapping]] = ...) -> None: ...

class EmbeddingType(_message.Message):
    __slots__ = ("embedding_size",)
    EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    embedding_size: int
    def __init__(self, embedding_size: _Optional[int] = ...) -> None: ...

class MapType(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: DataType
    value: DataType
    def __init__(self, key: _Optional[_Union[DataType, _Mapping]] = ..., value: _Optional[_Union[DataType, _Mapping]] = ...) -> None: ...

class StructType(_message.Message):
    __slots__ = ("name", "fields")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    fields: _containers.RepeatedCompositeFieldContainer[Field]
    def __init__(self, name: _Optional[str] = ..., fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ...) -> None: ...

class Between(_message.Message):
    __slots__ = ("dtype", "min", "max", "strict_min", "strict_max")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    STRICT_MIN_FIELD_NUMBER: _ClassVar[int]
    STRICT_MAX_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    min: Value
    max: Value
    strict_min: bool
    strict_max: bool
    def __init__(self, dtype: _Optional[_Union[DataType, _Mapping]] = ..., min: _Optional[_Union[Value, _Mapping]] = ..., max: _Optional[_Union[Value, _Mapping]] = ..., strict_min: _Optional[bool] = ..., strict_max: _Optional[bool] = ...) -> None: ...

class OneOf(_message.Message):
    __slots__ = ("of", "options")
    OF_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    of: DataType
    options: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, of: _Optional[_Union[DataType, _Mapping]] = ..., options: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class OptionalType(_message.Message):
    __slots__ = ("of",)
    OF_FIELD_NUMBER: _ClassVar[int]
    of: DataType
    def __init__(self, of: _Optional[_Union[DataType, _Mapping]] = ...) -> None: ...

class DecimalType(_message.Message):
    __slots__ = ("scale",)
    SCALE_FIELD_NUMBER: _ClassVar[int]
    scale: int
    def __init__(self, scale: _Optional[int] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("fields",)
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    fields: _containers.RepeatedCompositeFieldContainer[Field]
    def __init__(self, fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ...) -> None: ...

class DSSchema(_message.Message):
    __slots__ = ("keys", "values", "timestamp", "erase_keys")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    ERASE_KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: Schema
    values: Schema
    timestamp: str
    erase_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, keys: _Optional[_Union[Schema, _Mapping]] = ..., values: _Optional[_Union[Schema, _Mapping]] = ..., timestamp: _Optional[str] = ..., erase_keys: _Optional[_Iterable[str]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("none", "bool", "int", "float", "string", "timestamp", "embedding", "list", "map", "struct", "decimal", "date", "bytes")
    NONE_FIELD_NUMBER: _ClassVar[int]
    BOOL_FIELD_NUMBER: _ClassVar[int]
    INT_FIELD_NUMBER: _ClassVar[int]
    FLOAT_FIELD_NUMBER: _ClassVar[int]
    STRING_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    MAP_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FIELD_NUMBER: _ClassVar[int]
    DECIMAL_FIELD_NUMBER: _ClassVar[int]
    DATE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    none: None_
    bool: bool
    int: int
    float: float
    string: str
    timestamp: _timestamp_pb2.Timestamp
    embedding: Embedding
    list: List
    map: Map
    struct: StructValue
    decimal: Decimal
    date: Date
    bytes: bytes
    def __init__(self, none: _Optional[_Union[None_, _Mapping]] = ..., bool: _Optional[bool] = ..., int: _Optional[int] = ..., float: _Optional[float] = ..., string: _Optional[str] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., embedding: _Optional[_Union[Embedding, _Mapping]] = ..., list: _Optional[_Union[List, _Mapping]] = ..., map: _Optional[_Union[Map, _Mapping]] = ..., struct: _Optional[_Union[StructValue, _Mapping]] = ..., decimal: _Optional[_Union[Decimal, _Mapping]] = ..., date: _Optional[_Union[Date, _Mapping]] = ..., bytes: _Optional[bytes] = ...) -> None: ...

class Embedding(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class List(_message.Message):
    __slots__ = ("dtype", "values")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, dtype: _Optional[_Union[DataType, _Mapping]] = ..., values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class Map(_message.Message):
    __slots__ = ("key_dtype", "value_dtype", "entries")
    class Entry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: Value
        value: Value
        def __init__(self, key: _Optional[_Union[Value, _Mapping]] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    KEY_DTYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    key_dtype: DataType
    value_dtype: DataType
    entries: _containers.RepeatedCompositeFieldContainer[Map.Entry]
    def __init__(self, key_dtype: _Optional[_Union[DataType, _Mapping]] = ..., value_dtype: _Optional[_Union[DataType, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[Map.Entry, _Mapping]]] = ...) -> None: ...

class StructValue(_message.Message):
    __slots__ = ("fields",)
    class Entry(_message.Message):
        __slots__ = ("name", "value")
        NAME_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        name: str
        value: Value
        def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    fields: _containers.RepeatedCompositeFieldContainer[StructValue.Entry]
    def __init__(self, fields: _Optional[_Iterable[_Union[StructValue.Entry, _Mapping]]] = ...) -> None: ...

class Decimal(_message.Message):
    __slots__ = ("scale", "value")
    SCALE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    scale: int
    value: int
    def __init__(self, scale: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...

class Date(_message.Message):
    __slots__ = ("days",)
    DAYS_FIELD_NUMBER: _ClassVar[int]
    days: int
    def __init__(self, days: _Optional[int] = ...) -> None: ...

class NullType(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class IntType(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DoubleType(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StringType(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BoolType(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TimestampType(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DateType(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BytesType(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class None_(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
