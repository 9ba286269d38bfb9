from fennel_core.wire.gen import connector_pb2 as _connector_pb2
from fennel_core.wire.gen import dataset_pb2 as _dataset_pb2
from fennel_core.wire.gen import expectations_pb2 as _expectations_pb2
from fennel_core.wire.gen import featureset_pb2 as _featureset_pb2
from fennel_core.wire.gen import index_pb2 as _index_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SyncRequest(_message.Message):
    __slots__ = ("datasets", "pipelines", "operators", "feature_sets", "features", "extractors", "models", "sources", "extdbs", "expectations", "message", "offline_indices", "online_indices", "sinks")
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_SETS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    EXTRACTORS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    EXTDBS_FIELD_NUMBER: _ClassVar[int]
    EXPECTATIONS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_INDICES_FIELD_NUMBER: _ClassVar[int]
    ONLINE_INDICES_FIELD_NUMBER: _ClassVar[int]
    SINKS_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[_dataset_pb2.CoreDataset]
    pipelines: _containers.RepeatedCompositeFieldContainer[_dataset_pb2.Pipeline]
    operators: _containers.RepeatedCompositeFieldContainer[_dataset_pb2.Operator]
    feature_sets: _containers.RepeatedCompositeFieldContainer[_featureset_pb2.CoreFeatureset]
    features: _containers.RepeatedCompositeFieldContainer[_featureset_pb2.Feature]
    extractors: _containers.RepeatedCompositeFieldContainer[_featureset_pb2.Extractor]
    models: _containers.RepeatedCompositeFieldContainer[_featureset_pb2.Model]
    sources: _containers.RepeatedCompositeFieldContainer[_connector_pb2.Source]
    extdbs: _containers.RepeatedCompositeFieldContainer[_connector_pb2.ExtDatabase]
    expectations: _containers.RepeatedCompositeFieldContainer[_expectations_pb2.Expectations]
    message: str
    offline_indices: _containers.RepeatedCompositeFieldContainer[_index_pb2.OfflineIndex]
    online_indices: _containers.RepeatedCompositeFieldContainer[_index_pb2.OnlineIndex]
    sinks: _containers.RepeatedCompositeFieldContainer[_connector_pb2.Sink]
    def __init__(self, datasets: _Optional[_Iterable[_Union[_dataset_pb2.CoreDataset, _Mapping]]] = ..., pipelines: _Optional[_Iterable[_Union[_dataset_pb2.Pipeline, _Mapping]]] = ..., operators: _Optional[_Iterable[_Union[_dataset_pb2.Operator, _Mapping]]] = ..., feature_sets: _Optional[_Iterable[_Union[_featureset_pb2.CoreFeatureset, _Mapping]]] = ..., features: _Optional[_Iterable[_Union[_featureset_pb2.Feature, _Mapping]]] = ..., extractors: _Optional[_Iterable[_Union[_featureset_pb2.Extractor, _Mapping]]] = ..., models: _Optional[_Iterable[_Union[_featureset_pb2.Model, _Mapping]]] = ..., sources: _Optional[_Iterable[_Union[_connector_pb2.Source, _Mapping]]] = ..., extdbs: _Optional[_Iterable[_Union[_connector_pb2.ExtDatabase, _Mapping]]] = ..., expectations: _Optional[_Iterable[_Union[_expectations_pb2.Expectations, _Mapping]]] = ..., message: _Optional[str] = ..., offline_indices: _Optional[_Iterable[_Union[_index_pb2.OfflineIndex, _Mapping]]] = ..., online_indices: _Optional[_Iterable[_Union[_index_pb2.OnlineIndex, _Mapping]]] = ..., sinks: _Optional[_Iterable[_Union[_connector_pb2.Sink, _Mapping]]] = ...) -> None: ...
