import datetime

from fennel_core.wire.gen import expression_pb2 as _expression_pb2
from fennel_core.wire.gen import metadata_pb2 as _metadata_pb2
from fennel_core.wire.gen import pycode_pb2 as _pycode_pb2
from fennel_core.wire.gen import schema_pb2 as _schema_pb2
from fennel_core.wire.gen import spec_pb2 as _spec_pb2
from fennel_core.wire.gen import window_pb2 as _window_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EmitStrategy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Eager: _ClassVar[EmitStrategy]
    Final: _ClassVar[EmitStrategy]
Eager: EmitStrategy
Final: EmitStrategy

class CoreDataset(_message.Message):
    __slots__ = ("name", "metadata", "dsschema", "history", "retention", "field_metadata", "pycode", "is_source_dataset", "version", "tags")
    class FieldMetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _metadata_pb2.Metadata
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_metadata_pb2.Metadata, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    DSSCHEMA_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    FIELD_METADATA_FIELD_NUMBER: _ClassVar[int]
    PYCODE_FIELD_NUMBER: _ClassVar[int]
    IS_SOURCE_DATASET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    metadata: _metadata_pb2.Metadata
    dsschema: _schema_pb2.DSSchema
    history: _duration_pb2.Duration
    retention: _duration_pb2.Duration
    field_metadata: _containers.MessageMap[str, _metadata_pb2.Metadata]
    pycode: _pycode_pb2.PyCode
    is_source_dataset: bool
    version: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., metadata: _Optional[_Union[_metadata_pb2.Metadata, _Mapping]] = ..., dsschema: _Optional[_Union[_schema_pb2.DSSchema, _Mapping]] = ..., history: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., retention: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., field_metadata: _Optional[_Mapping[str, _metadata_pb2.Metadata]] = ..., pycode: _Optional[_Union[_pycode_pb2.PyCode, _Mapping]] = ..., is_source_dataset: _Optional[bool] = ..., version: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class OnDemand(_message.Message):
    __slots__ = ("function_source_code", "function", "expires_after")
    FUNCTION_SOURCE_CODE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AFTER_FIELD_NUMBER: _ClassVar[int]
    function_source_code: str
    function: bytes
    expires_after: int
    def __init__(self, function_source_code: _Optional[str] = ..., function: _Optional[bytes] = ..., expires_after: _Optional[int] = ...) -> None: ...

class Pipeline(_message.Message):
    __slots__ = ("name", "dataset_name", "signature", "metadata", "input_dataset_names", "ds_version", "pycode")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATASET_NAME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    INPUT_DATASET_NAMES_FIELD_NUMBER: _ClassVar[int]
    DS_VERSION_FIELD_NUMBER: _ClassVar[int]
    PYCODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dataset_name: str
    signature: str
    metadata: _metadata_pb2.Metadata
    input_dataset_names: _containers.RepeatedScalarFieldContainer[str]
    ds_version: int
    pycode: _pycode_pb2.PyCode
    def __init__(self, name: _Optional[str] = ..., dataset_name: _Optional[str] = ..., signature: _Optional[str] = ..., metadata: _Optional[_Union[_metadata_pb2.Metadata, _Mapping]] = ..., input_dataset_names: _Optional[_Iterable[str]] = ..., ds_version: _Optional[int] = ..., pycode: _Optional[_Union[_pycode_pb2.PyCode, _Mapping]] = ...) -> None: ...

class Operator(_message.Message):
    __slots__ = ("id", "is_root", "pipeline_name", "dataset_name", "ds_version", "aggregate", "join", "transform", "union", "filter", "dataset_ref", "rename", "drop", "explode", "dedup", "first", "assign", "dropnull", "window", "latest", "changelog", "assign_expr", "filter_expr", "name")
    ID_FIELD_NUMBER: _ClassVar[int]
    IS_ROOT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_NAME_FIELD_NUMBER: _ClassVar[int]
    DATASET_NAME_FIELD_NUMBER: _ClassVar[int]
    DS_VERSION_FIELD_NUMBER: _ClassVar[int]
    AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    UNION_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    DATASET_REF_FIELD_NUMBER: _ClassVar[int]
    RENAME_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    EXPLODE_FIELD_NUMBER: _ClassVar[int]
    DEDUP_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    DROPNULL_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    CHANGELOG_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_EXPR_FIELD_NUMBER: _ClassVar[int]
    FILTER_EXPR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    id: str
    is_root: bool
    pipeline_name: str
    dataset_name: str
    ds_version: int
    aggregate: Aggregate
    join: Join
    transform: Transform
    union: Union
    filter: Filter
    dataset_ref: DatasetRef
    rename: Rename
    drop: Drop
    explode: Explode
    dedup: Dedup
    first: First
    assign: Assign
    dropnull: Dropnull
    window: WindowOperatorKind
    latest: Latest
    changelog: Changelog
    assign_expr: AssignExpr
    filter_expr: FilterExpr
    name: str
    def __init__(self, id: _Optional[str] = ..., is_root: _Optional[bool] = ..., pipeline_name: _Optional[str] = ..., dataset_name: _Optional[str] = ..., ds_version: _Optional[int] = ..., aggregate: _Optional[_Union[Aggregate, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ..., transform: _Optional[_Union[Transform, _Mapping]] = ..., union: _Optional[_Union[Union, _Mapping]] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., dataset_ref: _Optional[_Union[DatasetRef, _Mapping]] = ..., rename: _Optional[_Union[Rename, _Mapping]] = ..., drop: _Optional[_Union[Drop, _Mapping]] = ..., explode: _Optional[_Union[Explode, _Mapping]] = ..., dedup: _Optional[_Union[Dedup, _Mapping]] = ..., first: _Optional[_Union[First, _Mapping]] = ..., assign: _Optional[_Union[Assign, _Mapping]] = ..., dropnull: _Optional[_Union[Dropnull, _Mapping]] = ..., window: _Optional[_Union[WindowOperatorKind, _Mapping]] = ..., latest: _Optional[_Union[Latest, _Mapping]] = ..., changelog: _Optional[_Union[Changelog, _Mapping]] = ..., assign_expr: _Optional[_Union[AssignExpr, _Mapping]] = ..., filter_expr: _Optional[_Union[FilterExpr, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class Aggregate(_message.Message):
    __slots__ = ("operand_id", "keys", "specs", "along", "emit_strategy", "operand_name")
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SPECS_FIELD_NUMBER: _ClassVar[int]
    ALONG_FIELD_NUMBER: _ClassVar[int]
    EMIT_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    specs: _containers.RepeatedCompositeFieldContainer[_spec_pb2.PreSpec]
    along: str
    emit_strategy: EmitStrategy
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., specs: _Optional[_Iterable[_Union[_spec_pb2.PreSpec, _Mapping]]] = ..., along: _Optional[str] = ..., emit_strategy: _Optional[_Union[EmitStrategy, str]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("lhs_operand_id", "rhs_dsref_operand_id", "on", "within_low", "within_high", "lhs_operand_name", "rhs_dsref_operand_name", "how", "broadcast", "rhs_fields")
    class How(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        Left: _ClassVar[Join.How]
        Inner: _ClassVar[Join.How]
    Left: Join.How
    Inner: Join.How
    class OnEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LHS_OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    RHS_DSREF_OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    ON_FIELD_NUMBER: _ClassVar[int]
    WITHIN_LOW_FIELD_NUMBER: _ClassVar[int]
    WITHIN_HIGH_FIELD_NUMBER: _ClassVar[int]
    LHS_OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    RHS_DSREF_OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_FIELD_NUMBER: _ClassVar[int]
    RHS_FIELDS_FIELD_NUMBER: _ClassVar[int]
    lhs_operand_id: str
    rhs_dsref_operand_id: str
    on: _containers.ScalarMap[str, str]
    within_low: _duration_pb2.Duration
    within_high: _duration_pb2.Duration
    lhs_operand_name: str
    rhs_dsref_operand_name: str
    how: Join.How
    broadcast: bool
    rhs_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lhs_operand_id: _Optional[str] = ..., rhs_dsref_operand_id: _Optional[str] = ..., on: _Optional[_Mapping[str, str]] = ..., within_low: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., within_high: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lhs_operand_name: _Optional[str] = ..., rhs_dsref_operand_name: _Optional[str] = ..., how: _Optional[_Union[Join.How, str]] = ..., broadcast: _Optional[bool] = ..., rhs_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class Transform(_message.Message):
    __slots__ = ("operand_id", "schema", "pycode", "operand_name")
    class SchemaEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _schema_pb2.DataType
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_schema_pb2.DataType, _Mapping]] = ...) -> None: ...
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PYCODE_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    schema: _containers.MessageMap[str, _schema_pb2.DataType]
    pycode: _pycode_pb2.PyCode
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., schema: _Optional[_Mapping[str, _schema_pb2.DataType]] = ..., pycode: _Optional[_Union[_pycode_pb2.PyCode, _Mapping]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class FilterExpr(_message.Message):
    __slots__ = ("operand_id", "expr", "operand_name")
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    EXPR_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    expr: _expression_pb2.Expr
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., expr: _Optional[_Union[_expression_pb2.Expr, _Mapping]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("operand_id", "pycode", "operand_name")
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    PYCODE_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    pycode: _pycode_pb2.PyCode
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., pycode: _Optional[_Union[_pycode_pb2.PyCode, _Mapping]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class Assign(_message.Message):
    __slots__ = ("operand_id", "pycode", "column_name", "output_type", "operand_name")
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    PYCODE_FIELD_NUMBER: _ClassVar[int]
    COLUMN_NAME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    pycode: _pycode_pb2.PyCode
    column_name: str
    output_type: _schema_pb2.DataType
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., pycode: _Optional[_Union[_pycode_pb2.PyCode, _Mapping]] = ..., column_name: _Optional[str] = ..., output_type: _Optional[_Union[_schema_pb2.DataType, _Mapping]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class AssignExpr(_message.Message):
    __slots__ = ("operand_id", "exprs", "output_types", "operand_name")
    class ExprsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _expression_pb2.Expr
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_expression_pb2.Expr, _Mapping]] = ...) -> None: ...
    class OutputTypesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _schema_pb2.DataType
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_schema_pb2.DataType, _Mapping]] = ...) -> None: ...
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    EXPRS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TYPES_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    exprs: _containers.MessageMap[str, _expression_pb2.Expr]
    output_types: _containers.MessageMap[str, _schema_pb2.DataType]
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., exprs: _Optional[_Mapping[str, _expression_pb2.Expr]] = ..., output_types: _Optional[_Mapping[str, _schema_pb2.DataType]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class Dropnull(_message.Message):
    __slots__ = ("operand_id", "columns", "operand_name")
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class Drop(_message.Message):
    __slots__ = ("operand_id", "dropcols", "operand_name")
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    DROPCOLS_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    dropcols: _containers.RepeatedScalarFieldContainer[str]
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., dropcols: _Optional[_Iterable[str]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class Rename(_message.Message):
    __slots__ = ("operand_id", "column_map", "operand_name")
    class ColumnMapEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    COLUMN_MAP_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    column_map: _containers.ScalarMap[str, str]
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., column_map: _Optional[_Mapping[str, str]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class Union(_message.Message):
    __slots__ = ("operand_ids", "operand_names")
    OPERAND_IDS_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAMES_FIELD_NUMBER: _ClassVar[int]
    operand_ids: _containers.RepeatedScalarFieldContainer[str]
    operand_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, operand_ids: _Optional[_Iterable[str]] = ..., operand_names: _Optional[_Iterable[str]] = ...) -> None: ...

class Dedup(_message.Message):
    __slots__ = ("operand_id", "columns", "window_type", "operand_name")
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_TYPE_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    window_type: _window_pb2.Window
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ..., window_type: _Optional[_Union[_window_pb2.Window, _Mapping]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class Explode(_message.Message):
    __slots__ = ("operand_id", "columns", "operand_name")
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class First(_message.Message):
    __slots__ = ("operand_id", "by", "operand_name")
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    by: _containers.RepeatedScalarFieldContainer[str]
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., by: _Optional[_Iterable[str]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class Latest(_message.Message):
    __slots__ = ("operand_id", "by", "operand_name")
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    by: _containers.RepeatedScalarFieldContainer[str]
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., by: _Optional[_Iterable[str]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class Changelog(_message.Message):
    __slots__ = ("operand_id", "kind_column", "deletes", "operand_name")
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_COLUMN_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    kind_column: str
    deletes: bool
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., kind_column: _Optional[str] = ..., deletes: _Optional[bool] = ..., operand_name: _Optional[str] = ...) -> None: ...

class WindowOperatorKind(_message.Message):
    __slots__ = ("operand_id", "window_type", "by", "field", "summary", "operand_name")
    OPERAND_ID_FIELD_NUMBER: _ClassVar[int]
    WINDOW_TYPE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    OPERAND_NAME_FIELD_NUMBER: _ClassVar[int]
    operand_id: str
    window_type: _window_pb2.Window
    by: _containers.RepeatedScalarFieldContainer[str]
    field: str
    summary: _window_pb2.Summary
    operand_name: str
    def __init__(self, operand_id: _Optional[str] = ..., window_type: _Optional[_Union[_window_pb2.Window, _Mapping]] = ..., by: _Optional[_Iterable[str]] = ..., field: _Optional[str] = ..., summary: _Optional[_Union[_window_pb2.Summary, _Mapping]] = ..., operand_name: _Optional[str] = ...) -> None: ...

class DatasetRef(_message.Message):
    __slots__ = ("referring_dataset_name",)
    REFERRING_DATASET_NAME_FIELD_NUMBER: _ClassVar[int]
    referring_dataset_name: str
    def __init__(self, referring_dataset_name: _Optional[str] = ...) -> None: ...

class Dataflow(_message.Message):
    __slots__ = ("dataset_name", "pipeline_dataflow", "tags")
    class PipelineDataflow(_message.Message):
        __slots__ = ("dataset_name", "pipeline_name", "input_dataflows")
        DATASET_NAME_FIELD_NUMBER: _ClassVar[int]
        PIPELINE_NAME_FIELD_NUMBER: _ClassVar[int]
        INPUT_DATAFLOWS_FIELD_NUMBER: _ClassVar[int]
        dataset_name: str
        pipeline_name: str
        input_dataflows: _containers.RepeatedCompositeFieldContainer[Dataflow]
        def __init__(self, dataset_name: _Optional[str] = ..., pipeline_name: _Optional[str] = ..., input_dataflows: _Optional[_Iterable[_Union[Dataflow, _Mapping]]] = ...) -> None: ...
    DATASET_NAME_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_DATAFLOW_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    dataset_name: str
    pipeline_dataflow: Dataflow.PipelineDataflow
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, dataset_name: _Optional[str] = ..., pipeline_dataflow: _Optional[_Union[Dataflow.PipelineDataflow, _Mapping]] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class PipelineLineages(_message.Message):
    __slots__ = ("dataset_name", "pipeline_name", "input_datasets", "active", "tags")
    DATASET_NAME_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_DATASETS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    dataset_name: str
    pipeline_name: str
    input_datasets: _containers.RepeatedCompositeFieldContainer[DatasetLineages]
    active: bool
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, dataset_name: _Optional[str] = ..., pipeline_name: _Optional[str] = ..., input_datasets: _Optional[_Iterable[_Union[DatasetLineages, _Mapping]]] = ..., active: _Optional[bool] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class DatasetPipelineLineages(_message.Message):
    __slots__ = ("pipeline_lineages",)
    PIPELINE_LINEAGES_FIELD_NUMBER: _ClassVar[int]
    pipeline_lineages: _containers.RepeatedCompositeFieldContainer[PipelineLineages]
    def __init__(self, pipeline_lineages: _Optional[_Iterable[_Union[PipelineLineages, _Mapping]]] = ...) -> None: ...

class DatasetLineages(_message.Message):
    __slots__ = ("source_dataset", "derived_dataset", "tags")
    SOURCE_DATASET_FIELD_NUMBER: _ClassVar[int]
    DERIVED_DATASET_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    source_dataset: str
    derived_dataset: DatasetPipelineLineages
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, source_dataset: _Optional[str] = ..., derived_dataset: _Optional[_Union[DatasetPipelineLineages, _Mapping]] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...
