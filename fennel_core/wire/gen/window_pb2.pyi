import datetime

from fennel_core.wire.gen import pycode_pb2 as _pycode_pb2
from fennel_core.wire.gen import schema_pb2 as _schema_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Window(_message.Message):
    __slots__ = ("sliding", "forever", "session", "tumbling", "hopping", "forever_hopping")
    SLIDING_FIELD_NUMBER: _ClassVar[int]
    FOREVER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TUMBLING_FIELD_NUMBER: _ClassVar[int]
    HOPPING_FIELD_NUMBER: _ClassVar[int]
    FOREVER_HOPPING_FIELD_NUMBER: _ClassVar[int]
    sliding: Sliding
    forever: Forever
    session: Session
    tumbling: Tumbling
    hopping: Hopping
    forever_hopping: ForeverHopping
    def __init__(self, sliding: _Optional[_Union[Sliding, _Mapping]] = ..., forever: _Optional[_Union[Forever, _Mapping]] = ..., session: _Optional[_Union[Session, _Mapping]] = ..., tumbling: _Optional[_Union[Tumbling, _Mapping]] = ..., hopping: _Optional[_Union[Hopping, _Mapping]] = ..., forever_hopping: _Optional[_Union[ForeverHopping, _Mapping]] = ...) -> None: ...

class Sliding(_message.Message):
    __slots__ = ("duration",)
    DURATION_FIELD_NUMBER: _ClassVar[int]
    duration: _duration_pb2.Duration
    def __init__(self, duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Tumbling(_message.Message):
    __slots__ = ("duration", "lookback")
    DURATION_FIELD_NUMBER: _ClassVar[int]
    LOOKBACK_FIELD_NUMBER: _ClassVar[int]
    duration: _duration_pb2.Duration
    lookback: _duration_pb2.Duration
    def __init__(self, duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lookback: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Hopping(_message.Message):
    __slots__ = ("duration", "stride", "lookback")
    DURATION_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    LOOKBACK_FIELD_NUMBER: _ClassVar[int]
    duration: _duration_pb2.Duration
    stride: _duration_pb2.Duration
    lookback: _duration_pb2.Duration
    def __init__(self, duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., stride: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lookback: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ForeverHopping(_message.Message):
    __slots__ = ("stride", "lookback")
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    LOOKBACK_FIELD_NUMBER: _ClassVar[int]
    stride: _duration_pb2.Duration
    lookback: _duration_pb2.Duration
    def __init__(self, stride: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lookback: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("gap",)
    GAP_FIELD_NUMBER: _ClassVar[int]
    gap: _duration_pb2.Duration
    def __init__(self, gap: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Summary(_message.Message):
    __slots__ = ("column_name", "output_type", "pycode")
    COLUMN_NAME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PYCODE_FIELD_NUMBER: _ClassVar[int]
    column_name: str
    output_type: _schema_pb2.DataType
    pycode: _pycode_pb2.PyCode
    def __init__(self, column_name: _Optional[str] = ..., output_type: _Optional[_Union[_schema_pb2.DataType, _Mapping]] = ..., pycode: _Optional[_Union[_pycode_pb2.PyCode, _Mapping]] = ...) -> None: ...

class Forever(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
