from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class InitPosition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LATEST: _ClassVar[InitPosition]
    TRIM_HORIZON: _ClassVar[InitPosition]
    AT_TIMESTAMP: _ClassVar[InitPosition]
LATEST: InitPosition
TRIM_HORIZON: InitPosition
AT_TIMESTAMP: InitPosition
