from fennel_core.wire.gen import http_auth_pb2 as _http_auth_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegistryProvider(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONFLUENT: _ClassVar[RegistryProvider]
CONFLUENT: RegistryProvider

class SchemaRegistry(_message.Message):
    __slots__ = ("registry_provider", "url", "auth")
    REGISTRY_PROVIDER_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    AUTH_FIELD_NUMBER: _ClassVar[int]
    registry_provider: RegistryProvider
    url: str
    auth: _http_auth_pb2.HTTPAuthentication
    def __init__(self, registry_provider: _Optional[_Union[RegistryProvider, str]] = ..., url: _Optional[str] = ..., auth: _Optional[_Union[_http_auth_pb2.HTTPAuthentication, _Mapping]] = ...) -> None: ...
