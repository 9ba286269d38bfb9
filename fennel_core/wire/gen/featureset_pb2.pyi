from fennel_core.wire.gen import expression_pb2 as _expression_pb2
from fennel_core.wire.gen import metadata_pb2 as _metadata_pb2
from fennel_core.wire.gen import pycode_pb2 as _pycode_pb2
from fennel_core.wire.gen import schema_pb2 as _schema_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExtractorType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PY_FUNC: _ClassVar[ExtractorType]
    LOOKUP: _ClassVar[ExtractorType]
    ALIAS: _ClassVar[ExtractorType]
    EXPR: _ClassVar[ExtractorType]
    LIST_LOOKUP: _ClassVar[ExtractorType]
PY_FUNC: ExtractorType
LOOKUP: ExtractorType
ALIAS: ExtractorType
EXPR: ExtractorType
LIST_LOOKUP: ExtractorType

class CoreFeatureset(_message.Message):
    __slots__ = ("name", "metadata", "pycode", "tags")
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PYCODE_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    metadata: _metadata_pb2.Metadata
    pycode: _pycode_pb2.PyCode
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., metadata: _Optional[_Union[_metadata_pb2.Metadata, _Mapping]] = ..., pycode: _Optional[_Union[_pycode_pb2.PyCode, _Mapping]] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class Feature(_message.Message):
    __slots__ = ("name", "dtype", "metadata", "feature_set_name", "tags")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    FEATURE_SET_NAME_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: _schema_pb2.DataType
    metadata: _metadata_pb2.Metadata
    feature_set_name: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[_schema_pb2.DataType, _Mapping]] = ..., metadata: _Optional[_Union[_metadata_pb2.Metadata, _Mapping]] = ..., feature_set_name: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class FieldLookupInfo(_message.Message):
    __slots__ = ("field", "default_value")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    field: _schema_pb2.Field
    default_value: str
    def __init__(self, field: _Optional[_Union[_schema_pb2.Field, _Mapping]] = ..., default_value: _Optional[str] = ...) -> None: ...

class AliasInfo(_message.Message):
    __slots__ = ("dtype", "default_value")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    dtype: _schema_pb2.DataType
    default_value: str
    def __init__(self, dtype: _Optional[_Union[_schema_pb2.DataType, _Mapping]] = ..., default_value: _Optional[str] = ...) -> None: ...

class Extractor(_message.Message):
    __slots__ = ("name", "datasets", "inputs", "features", "metadata", "version", "pycode", "feature_set_name", "extractor_type", "field_info", "alias_info", "expr", "tags")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PYCODE_FIELD_NUMBER: _ClassVar[int]
    FEATURE_SET_NAME_FIELD_NUMBER: _ClassVar[int]
    EXTRACTOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    FIELD_INFO_FIELD_NUMBER: _ClassVar[int]
    ALIAS_INFO_FIELD_NUMBER: _ClassVar[int]
    EXPR_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    datasets: _containers.RepeatedScalarFieldContainer[str]
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    features: _containers.RepeatedScalarFieldContainer[str]
    metadata: _metadata_pb2.Metadata
    version: int
    pycode: _pycode_pb2.PyCode
    feature_set_name: str
    extractor_type: ExtractorType
    field_info: FieldLookupInfo
    alias_info: AliasInfo
    expr: _expression_pb2.Expr
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., datasets: _Optional[_Iterable[str]] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., features: _Optional[_Iterable[str]] = ..., metadata: _Optional[_Union[_metadata_pb2.Metadata, _Mapping]] = ..., version: _Optional[int] = ..., pycode: _Optional[_Union[_pycode_pb2.PyCode, _Mapping]] = ..., feature_set_name: _Optional[str] = ..., extractor_type: _Optional[_Union[ExtractorType, str]] = ..., field_info: _Optional[_Union[FieldLookupInfo, _Mapping]] = ..., alias_info: _Optional[_Union[AliasInfo, _Mapping]] = ..., expr: _Optional[_Union[_expression_pb2.Expr, _Mapping]] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("feature", "dtype")
    class Feature(_message.Message):
        __slots__ = ("feature_set_name", "name")
        FEATURE_SET_NAME_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        feature_set_name: str
        name: str
        def __init__(self, feature_set_name: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...
    FEATURE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    feature: Input.Feature
    dtype: _schema_pb2.DataType
    def __init__(self, feature: _Optional[_Union[Input.Feature, _Mapping]] = ..., dtype: _Optional[_Union[_schema_pb2.DataType, _Mapping]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "inputs", "outputs", "metadata")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    inputs: _containers.RepeatedCompositeFieldContainer[Feature]
    outputs: _containers.RepeatedCompositeFieldContainer[Feature]
    metadata: _metadata_pb2.Metadata
    def __init__(self, name: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Feature, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Feature, _Mapping]]] = ..., metadata: _Optional[_Union[_metadata_pb2.Metadata, _Mapping]] = ...) -> None: ...
