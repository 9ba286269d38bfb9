from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SecretRef(_message.Message):
    __slots__ = ("secret_arn", "role_arn", "path")
    SECRET_ARN_FIELD_NUMBER: _ClassVar[int]
    ROLE_ARN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    secret_arn: str
    role_arn: str
    path: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, secret_arn: _Optional[str] = ..., role_arn: _Optional[str] = ..., path: _Optional[_Iterable[str]] = ...) -> None: ...
