from fennel_core.wire.gen import window_pb2 as _window_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PreSpec(_message.Message):
    __slots__ = ("sum", "average", "count", "last_k", "min", "max", "stddev", "distinct", "quantile", "exp_decay", "first_k")
    SUM_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_K_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    STDDEV_FIELD_NUMBER: _ClassVar[int]
    DISTINCT_FIELD_NUMBER: _ClassVar[int]
    QUANTILE_FIELD_NUMBER: _ClassVar[int]
    EXP_DECAY_FIELD_NUMBER: _ClassVar[int]
    FIRST_K_FIELD_NUMBER: _ClassVar[int]
    sum: Sum
    average: Average
    count: Count
    last_k: LastK
    min: Min
    max: Max
    stddev: Stddev
    distinct: Distinct
    quantile: Quantile
    exp_decay: ExponentialDecayAggregate
    first_k: FirstK
    def __init__(self, sum: _Optional[_Union[Sum, _Mapping]] = ..., average: _Optional[_Union[Average, _Mapping]] = ..., count: _Optional[_Union[Count, _Mapping]] = ..., last_k: _Optional[_Union[LastK, _Mapping]] = ..., min: _Optional[_Union[Min, _Mapping]] = ..., max: _Optional[_Union[Max, _Mapping]] = ..., stddev: _Optional[_Union[Stddev, _Mapping]] = ..., distinct: _Optional[_Union[Distinct, _Mapping]] = ..., quantile: _Optional[_Union[Quantile, _Mapping]] = ..., exp_decay: _Optional[_Union[ExponentialDecayAggregate, _Mapping]] = ..., first_k: _Optional[_Union[FirstK, _Mapping]] = ...) -> None: ...

class Sum(_message.Message):
    __slots__ = ("of", "name", "window")
    OF_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    of: str
    name: str
    window: _window_pb2.Window
    def __init__(self, of: _Optional[str] = ..., name: _Optional[str] = ..., window: _Optional[_Union[_window_pb2.Window, _Mapping]] = ...) -> None: ...

class Average(_message.Message):
    __slots__ = ("of", "name", "window", "default", "default_null")
    OF_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_NULL_FIELD_NUMBER: _ClassVar[int]
    of: str
    name: str
    window: _window_pb2.Window
    default: float
    default_null: bool
    def __init__(self, of: _Optional[str] = ..., name: _Optional[str] = ..., window: _Optional[_Union[_window_pb2.Window, _Mapping]] = ..., default: _Optional[float] = ..., default_null: _Optional[bool] = ...) -> None: ...

class Count(_message.Message):
    __slots__ = ("name", "window", "unique", "approx", "of", "dropnull")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_FIELD_NUMBER: _ClassVar[int]
    APPROX_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    DROPNULL_FIELD_NUMBER: _ClassVar[int]
    name: str
    window: _window_pb2.Window
    unique: bool
    approx: bool
    of: str
    dropnull: bool
    def __init__(self, name: _Optional[str] = ..., window: _Optional[_Union[_window_pb2.Window, _Mapping]] = ..., unique: _Optional[bool] = ..., approx: _Optional[bool] = ..., of: _Optional[str] = ..., dropnull: _Optional[bool] = ...) -> None: ...

class LastK(_message.Message):
    __slots__ = ("of", "name", "limit", "dedup", "window", "dropnull")
    OF_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DEDUP_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DROPNULL_FIELD_NUMBER: _ClassVar[int]
    of: str
    name: str
    limit: int
    dedup: bool
    window: _window_pb2.Window
    dropnull: bool
    def __init__(self, of: _Optional[str] = ..., name: _Optional[str] = ..., limit: _Optional[int] = ..., dedup: _Optional[bool] = ..., window: _Optional[_Union[_window_pb2.Window, _Mapping]] = ..., dropnull: _Optional[bool] = ...) -> None: ...

class FirstK(_message.Message):
    __slots__ = ("of", "name", "limit", "dedup", "window", "dropnull")
    OF_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DEDUP_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DROPNULL_FIELD_NUMBER: _ClassVar[int]
    of: str
    name: str
    limit: int
    dedup: bool
    window: _window_pb2.Window
    dropnull: bool
    def __init__(self, of: _Optional[str] = ..., name: _Optional[str] = ..., limit: _Optional[int] = ..., dedup: _Optional[bool] = ..., window: _Optional[_Union[_window_pb2.Window, _Mapping]] = ..., dropnull: _Optional[bool] = ...) -> None: ...

class Min(_message.Message):
    __slots__ = ("of", "name", "window", "default", "default_null")
    OF_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_NULL_FIELD_NUMBER: _ClassVar[int]
    of: str
    name: str
    window: _window_pb2.Window
    default: float
    default_null: bool
    def __init__(self, of: _Optional[str] = ..., name: _Optional[str] = ..., window: _Optional[_Union[_window_pb2.Window, _Mapping]] = ..., default: _Optional[float] = ..., default_null: _Optional[bool] = ...) -> None: ...

class Max(_message.Message):
    __slots__ = ("of", "name", "window", "default", "default_null")
    OF_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_NULL_FIELD_NUMBER: _ClassVar[int]
    of: str
    name: str
    window: _window_pb2.Window
    default: float
    default_null: bool
    def __init__(self, of: _Optional[str] = ..., name: _Optional[str] = ..., window: _Optional[_Union[_window_pb2.Window, _Mapping]] = ..., default: _Optional[float] = ..., default_null: _Optional[bool] = ...) -> None: ...

class Stddev(_message.Message):
    __slots__ = ("of", "name", "window", "default", "default_null")
    OF_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_NULL_FIELD_NUMBER: _ClassVar[int]
    of: str
    name: str
    window: _window_pb2.Window
    default: float
    default_null: bool
    def __init__(self, of: _Optional[str] = ..., name: _Optional[str] = ..., window: _Optional[_Union[_window_pb2.Window, _Mapping]] = ..., default: _Optional[float] = ..., default_null: _Optional[bool] = ...) -> None: ...

class Distinct(_message.Message):
    __slots__ = ("of", "name", "window", "dropnull")
    OF_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DROPNULL_FIELD_NUMBER: _ClassVar[int]
    of: str
    name: str
    window: _window_pb2.Window
    dropnull: bool
    def __init__(self, of: _Optional[str] = ..., name: _Optional[str] = ..., window: _Optional[_Union[_window_pb2.Window, _Mapping]] = ..., dropnull: _Optional[bool] = ...) -> None: ...

class Quantile(_message.Message):
    __slots__ = ("of", "name", "window", "default", "quantile", "approx")
    OF_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    QUANTILE_FIELD_NUMBER: _ClassVar[int]
    APPROX_FIELD_NUMBER: _ClassVar[int]
    of: str
    name: str
    window: _window_pb2.Window
    default: float
    quantile: float
    approx: bool
    def __init__(self, of: _Optional[str] = ..., name: _Optional[str] = ..., window: _Optional[_Union[_window_pb2.Window, _Mapping]] = ..., default: _Optional[float] = ..., quantile: _Optional[float] = ..., approx: _Optional[bool] = ...) -> None: ...

class ExponentialDecayAggregate(_message.Message):
    __slots__ = ("of", "name", "window", "half_life_seconds")
    OF_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    HALF_LIFE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    of: str
    name: str
    window: _window_pb2.Window
    half_life_seconds: int
    def __init__(self, of: _Optional[str] = ..., name: _Optional[str] = ..., window: _Optional[_Union[_window_pb2.Window, _Mapping]] = ..., half_life_seconds: _Optional[int] = ...) -> None: ...
