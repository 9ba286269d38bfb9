"""Decode featuresets, features and extractors into `wire.entities`."""

from __future__ import annotations

from fennel_core.vocab.dtypes import Field
from fennel_core.vocab.ids import DatasetName, FeaturesetName
from fennel_core.wire import entities as en
from fennel_core.wire.decode_datatypes import decode_dtype
from fennel_core.wire.decode_expressions import decode_expr
from fennel_core.wire.decode_pycode import decode_metadata, decode_pycode
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.gen import featureset_pb2 as pb

NO_DEFAULT = ("", "null")


def decode_featureset(message: pb.CoreFeatureset) -> en.Featureset:
    """Decode a featureset; its features and extractors are separate messages."""
    return en.Featureset(
        FeaturesetName(message.name),
        decode_pycode(message.pycode),
        decode_metadata(message.metadata),
    )


def decode_feature(message: pb.Feature) -> en.Feature:
    """Decode one feature."""
    ref = en.FeatureRef(FeaturesetName(message.feature_set_name), message.name)
    return en.Feature(ref, decode_dtype(message.dtype), decode_metadata(message.metadata))


def decode_extractor(message: pb.Extractor) -> en.Extractor:
    """Decode one extractor; raises `UnsupportedValue` if a part that its type needs is missing."""
    inputs = tuple(
        en.FeatureRef(FeaturesetName(item.feature.feature_set_name), item.feature.name)
        for item in message.inputs
    )
    return en.Extractor(
        name=message.name,
        featureset=FeaturesetName(message.feature_set_name),
        version=message.version,
        inputs=inputs,
        outputs=tuple(message.features),
        datasets=tuple(DatasetName(name) for name in message.datasets),
        kind=_kind(message),
        metadata=decode_metadata(message.metadata),
    )


def _kind(message: pb.Extractor) -> en.ExtractorKind:
    match message.extractor_type:
        case pb.ExtractorType.PY_FUNC:
            return en.PyFunc(decode_pycode(message.pycode))
        case pb.ExtractorType.LOOKUP:
            return en.Lookup(
                _looked_up(message), _field(message), _default(message.field_info.default_value)
            )
        case pb.ExtractorType.LIST_LOOKUP:
            return en.ListLookup(
                _looked_up(message), _field(message), _default(message.field_info.default_value)
            )
        case pb.ExtractorType.ALIAS:
            if len(message.inputs) != 1:
                raise UnsupportedValue(
                    f"an alias has exactly one input feature, not {len(message.inputs)}"
                )
            return en.Alias(_default(message.alias_info.default_value))
        case pb.ExtractorType.EXPR:
            return en.ExprExtractor(decode_expr(message.expr))
        case other:
            raise UnsupportedValue(
                f"extractor type {other} is unknown; commit with the client version "
                "this platform supports"
            )


def _looked_up(message: pb.Extractor) -> DatasetName:
    if len(message.datasets) != 1:
        raise UnsupportedValue(f"a lookup reads exactly one dataset, not {len(message.datasets)}")
    return DatasetName(message.datasets[0])


def _field(message: pb.Extractor) -> Field:
    if not message.HasField("field_info"):
        raise UnsupportedValue("a lookup must name the field of the dataset that it reads")
    return Field(message.field_info.field.name, decode_dtype(message.field_info.field.dtype))


def _default(text: str) -> str | None:
    return None if text in NO_DEFAULT else text
