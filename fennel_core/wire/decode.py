"""Decode the bytes of a commit.

Theory. Decoding is total: either every entity of the request becomes a frozen value, or one
`WireError` names the entity and the remedy. Rules that need a second entity are not checked here
(the package `graph` does that), and no entity is dropped: de-selected operators and deleted
entities are still in the result. The client never fills `models`; it is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from google.protobuf.message import DecodeError

from fennel_core.wire.decode_connectors import decode_database
from fennel_core.wire.decode_datasets import (
    decode_dataset,
    decode_expectations,
    decode_offline_index,
    decode_online_index,
    decode_pipeline,
)
from fennel_core.wire.decode_featuresets import decode_extractor, decode_feature, decode_featureset
from fennel_core.wire.decode_operators import decode_operator
from fennel_core.wire.decode_sources import decode_sink, decode_source
from fennel_core.wire.entities import SyncRequest
from fennel_core.wire.errors import MalformedMessage, UnsupportedValue
from fennel_core.wire.gen import dataset_pb2, services_pb2

PARSER_DEPTH = "MaxDepth"
"""Part of the parser's text when nesting exceeds its limit of 100.

The limit also bounds every recursion over a decoded value.
"""

M = TypeVar("M")
V = TypeVar("V")


def decode_sync_request(body: bytes) -> SyncRequest:
    """Decode the body of a commit.

    Raises `MalformedMessage` if the bytes are not a SyncRequest and `UnsupportedValue`, which names
    the entity, if a part of it is missing or unknown.
    """
    message = services_pb2.SyncRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        if PARSER_DEPTH in str(error):
            raise UnsupportedValue(
                "the commit nests messages deeper than 100 levels; an expression of "
                "more than about 45 chained operations does that: "
                "assign parts of it to columns of their own first"
            ) from error
        raise MalformedMessage(
            "the body is not a commit of the Fennel client; send the bytes of a SyncRequest"
        ) from error
    return SyncRequest(
        datasets=_each(message.datasets, decode_dataset, lambda m: f"dataset `{m.name}`"),
        pipelines=_each(
            message.pipelines, decode_pipeline, lambda m: f"pipeline `{m.dataset_name}.{m.name}`"
        ),
        operators=_each(message.operators, decode_operator, _operator_name),
        featuresets=_each(
            message.feature_sets, decode_featureset, lambda m: f"featureset `{m.name}`"
        ),
        features=_each(
            message.features, decode_feature, lambda m: f"feature `{m.feature_set_name}.{m.name}`"
        ),
        extractors=_each(
            message.extractors,
            decode_extractor,
            lambda m: f"extractor `{m.feature_set_name}.{m.name}`",
        ),
        sources=_each(
            message.sources, decode_source, lambda m: f"a source of dataset `{m.dataset}`"
        ),
        databases=_each(message.extdbs, decode_database, lambda m: f"connector `{m.name}`"),
        sinks=_each(message.sinks, decode_sink, lambda m: f"a sink of dataset `{m.dataset}`"),
        indices=(
            *_each(
                message.online_indices,
                decode_online_index,
                lambda m: f"the online index of dataset `{m.ds_name}`",
            ),
            *_each(
                message.offline_indices,
                decode_offline_index,
                lambda m: f"the offline index of dataset `{m.ds_name}`",
            ),
        ),
        expectations=_each(
            message.expectations,
            decode_expectations,
            lambda m: f"the expectations of `{m.entity_name}`",
        ),
        message=message.message,
    )


def _operator_name(message: dataset_pb2.Operator) -> str:
    kind = message.WhichOneof("kind") or "unknown"
    return f"a `{kind}` operator of pipeline `{message.dataset_name}.{message.pipeline_name}`"


def _each(
    messages: Iterable[M], decode: Callable[[M], V], name: Callable[[M], str]
) -> tuple[V, ...]:
    values = []
    for message in messages:
        try:
            values.append(decode(message))
        except UnsupportedValue as error:
            raise UnsupportedValue(f"{name(message)}: {error}") from error
    return tuple(values)
