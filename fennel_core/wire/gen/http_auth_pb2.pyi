from fennel_core.wire.gen import secret_pb2 as _secret_pb2
from google.protobuf import wrappers_pb2 as _wrappers_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HTTPAuthentication(_message.Message):
    __slots__ = ("basic", "token")
    BASIC_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    basic: BasicAuthentication
    token: TokenAuthentication
    def __init__(self, basic: _Optional[_Union[BasicAuthentication, _Mapping]] = ..., token: _Optional[_Union[TokenAuthentication, _Mapping]] = ...) -> None: ...

class BasicAuthentication(_message.Message):
    __slots__ = ("username", "username_secret", "password", "password_secret")
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    USERNAME_SECRET_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_SECRET_FIELD_NUMBER: _ClassVar[int]
    username: str
    username_secret: _secret_pb2.SecretRef
    password: _wrappers_pb2.StringValue
    password_secret: _secret_pb2.SecretRef
    def __init__(self, username: _Optional[str] = ..., username_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ..., password: _Optional[_Union[_wrappers_pb2.StringValue, _Mapping]] = ..., password_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ...) -> None: ...

class TokenAuthentication(_message.Message):
    __slots__ = ("token", "token_secret")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_SECRET_FIELD_NUMBER: _ClassVar[int]
    token: str
    token_secret: _secret_pb2.SecretRef
    def __init__(self, token: _Optional[str] = ..., token_secret: _Optional[_Union[_secret_pb2.SecretRef, _Mapping]] = ...) -> None: ...
