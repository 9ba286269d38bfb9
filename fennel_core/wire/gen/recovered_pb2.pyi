from fennel_core.wire.gen import dataset_pb2 as _dataset_pb2
from fennel_core.wire.gen import spec_pb2 as _spec_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecoveredWindow(_message.Message):
    __slots__ = ("specs", "emit")
    SPECS_FIELD_NUMBER: _ClassVar[int]
    EMIT_FIELD_NUMBER: _ClassVar[int]
    specs: _containers.RepeatedCompositeFieldContainer[_spec_pb2.PreSpec]
    emit: _dataset_pb2.EmitStrategy
    def __init__(self, specs: _Optional[_Iterable[_Union[_spec_pb2.PreSpec, _Mapping]]] = ..., emit: _Optional[_Union[_dataset_pb2.EmitStrategy, str]] = ...) -> None: ...

class OperatorAddition(_message.Message):
    __slots__ = ("window",)
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    window: RecoveredWindow
    def __init__(self, window: _Optional[_Union[RecoveredWindow, _Mapping]] = ...) -> None: ...
