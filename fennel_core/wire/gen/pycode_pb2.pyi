from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RefType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Dataset: _ClassVar[RefType]
    Featureset: _ClassVar[RefType]
Dataset: RefType
Featureset: RefType

class PyCode(_message.Message):
    __slots__ = ("entry_point", "source_code", "core_code", "generated_code", "includes", "ref_includes", "imports")
    class RefIncludesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: RefType
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[RefType, str]] = ...) -> None: ...
    ENTRY_POINT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_CODE_FIELD_NUMBER: _ClassVar[int]
    CORE_CODE_FIELD_NUMBER: _ClassVar[int]
    GENERATED_CODE_FIELD_NUMBER: _ClassVar[int]
    INCLUDES_FIELD_NUMBER: _ClassVar[int]
    REF_INCLUDES_FIELD_NUMBER: _ClassVar[int]
    IMPORTS_FIELD_NUMBER: _ClassVar[int]
    entry_point: str
    source_code: str
    core_code: str
    generated_code: str
    includes: _containers.RepeatedCompositeFieldContainer[PyCode]
    ref_includes: _containers.ScalarMap[str, RefType]
    imports: str
    def __init__(self, entry_point: _Optional[str] = ..., source_code: _Optional[str] = ..., core_code: _Optional[str] = ..., generated_code: _Optional[str] = ..., includes: _Optional[_Iterable[_Union[PyCode, _Mapping]]] = ..., ref_includes: _Optional[_Mapping[str, RefType]] = ..., imports: _Optional[str] = ...) -> None: ...

class UDF(_message.Message):
    __slots__ = ("pycode", "json_literal")
    PYCODE_FIELD_NUMBER: _ClassVar[int]
    JSON_LITERAL_FIELD_NUMBER: _ClassVar[int]
    pycode: PyCode
    json_literal: str
    def __init__(self, pycode: _Optional[_Union[PyCode, _Mapping]] = ..., json_literal: _Optional[str] = ...) -> None: ...
