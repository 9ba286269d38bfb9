from fennel_core.wire.gen import metadata_pb2 as _metadata_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Expectations(_message.Message):
    __slots__ = ("entity_name", "entity_version", "suite", "expectations", "version", "metadata", "e_type", "tags")
    class EntityType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        Dataset: _ClassVar[Expectations.EntityType]
        Featureset: _ClassVar[Expectations.EntityType]
    Dataset: Expectations.EntityType
    Featureset: Expectations.EntityType
    ENTITY_NAME_FIELD_NUMBER: _ClassVar[int]
    ENTITY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUITE_FIELD_NUMBER: _ClassVar[int]
    EXPECTATIONS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    E_TYPE_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    entity_name: str
    entity_version: int
    suite: str
    expectations: _containers.RepeatedCompositeFieldContainer[Expectation]
    version: int
    metadata: _metadata_pb2.Metadata
    e_type: Expectations.EntityType
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, entity_name: _Optional[str] = ..., entity_version: _Optional[int] = ..., suite: _Optional[str] = ..., expectations: _Optional[_Iterable[_Union[Expectation, _Mapping]]] = ..., version: _Optional[int] = ..., metadata: _Optional[_Union[_metadata_pb2.Metadata, _Mapping]] = ..., e_type: _Optional[_Union[Expectations.EntityType, str]] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class Expectation(_message.Message):
    __slots__ = ("expectation_type", "expectation_kwargs")
    EXPECTATION_TYPE_FIELD_NUMBER: _ClassVar[int]
    EXPECTATION_KWARGS_FIELD_NUMBER: _ClassVar[int]
    expectation_type: str
    expectation_kwargs: str
    def __init__(self, expectation_type: _Optional[str] = ..., expectation_kwargs: _Optional[str] = ...) -> None: ...
