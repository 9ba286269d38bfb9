import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IndexType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIMARY: _ClassVar[IndexType]
PRIMARY: IndexType

class IndexDuration(_message.Message):
    __slots__ = ("forever", "duration")
    FOREVER_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    forever: str
    duration: _duration_pb2.Duration
    def __init__(self, forever: _Optional[str] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class OfflineIndex(_message.Message):
    __slots__ = ("ds_name", "ds_version", "index_type", "duration")
    DS_NAME_FIELD_NUMBER: _ClassVar[int]
    DS_VERSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_TYPE_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    ds_name: str
    ds_version: int
    index_type: IndexType
    duration: IndexDuration
    def __init__(self, ds_name: _Optional[str] = ..., ds_version: _Optional[int] = ..., index_type: _Optional[_Union[IndexType, str]] = ..., duration: _Optional[_Union[IndexDuration, _Mapping]] = ...) -> None: ...

class OnlineIndex(_message.Message):
    __slots__ = ("ds_name", "ds_version", "index_type", "duration")
    DS_NAME_FIELD_NUMBER: _ClassVar[int]
    DS_VERSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_TYPE_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    ds_name: str
    ds_version: int
    index_type: IndexType
    duration: IndexDuration
    def __init__(self, ds_name: _Optional[str] = ..., ds_version: _Optional[int] = ..., index_type: _Optional[_Union[IndexType, str]] = ..., duration: _Optional[_Union[IndexDuration, _Mapping]] = ...) -> None: ...
