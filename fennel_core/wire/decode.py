"""Decode the bytes of a commit.

Theory. Decoding is total: either every entity of the request becomes a frozen value, or one
`WireError` names all entities that cannot be decoded and the remedy of each. Rules that need a
second entity are not checked here (the package `graph` does that), and no entity is dropped:
de-selected operators and deleted entities are still in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

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
from fennel_core.wire.errors import (
    MalformedMessage,
    UndecodableEntities,
    UndecodableEntity,
    UnsupportedValue,
)
from fennel_core.wire.gen import dataset_pb2, services_pb2

PARSER_DEPTH = "MaxDepth"
"""Part of the parser's text when nesting exceeds its limit of 100.

The limit also bounds every recursion over a decoded value.
"""

M = TypeVar("M", bound=Message)
V = TypeVar("V")


def decode_sync_request(body: bytes) -> SyncRequest:
    """Decode the body of a commit.

    Raises `MalformedMessage` if the bytes are not a SyncRequest and `UnsupportedValue` if a part of
    it is missing or unknown: `UndecodableEntities` if these parts belong to entities.
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
    if message.models:
        raise UnsupportedValue("the commit has models, which this platform does not serve")
    return _decode(message)


@dataclass(frozen=True, slots=True)
class _Label:
    """How an entity is called in a sentence, and its full name."""

    title: str
    name: str


def _decode(message: services_pb2.SyncRequest) -> SyncRequest:
    each = _Decoder()
    request = SyncRequest(
        datasets=each.of(message.datasets, decode_dataset, _named("dataset", "name")),
        pipelines=each.of(
            message.pipelines, decode_pipeline, _of_parts("pipeline", "dataset_name", "name")
        ),
        operators=each.of(message.operators, decode_operator, _operator),
        featuresets=each.of(message.feature_sets, decode_featureset, _named("featureset", "name")),
        features=each.of(
            message.features, decode_feature, _of_parts("feature", "feature_set_name", "name")
        ),
        extractors=each.of(
            message.extractors, decode_extractor, _of_parts("extractor", "feature_set_name", "name")
        ),
        sources=each.of(message.sources, decode_source, _named("a source of dataset", "dataset")),
        databases=each.of(message.extdbs, decode_database, _named("connector", "name")),
        sinks=each.of(message.sinks, decode_sink, _named("a sink of dataset", "dataset")),
        indices=(
            *each.of(
                message.online_indices,
                decode_online_index,
                _named("the online index of dataset", "ds_name"),
            ),
            *each.of(
                message.offline_indices,
                decode_offline_index,
                _named("the offline index of dataset", "ds_name"),
            ),
        ),
        expectations=each.of(
            message.expectations,
            decode_expectations,
            _named("the expectations of", "entity_name"),
        ),
        message=message.message,
    )
    if each.failures:
        raise UndecodableEntities(each.failures, request)
    return request


class _Decoder:
    """Decodes entities one by one and collects the failures of all of them."""

    def __init__(self) -> None:
        self.failures: list[UndecodableEntity] = []

    def of(
        self, messages: Iterable[M], decode: Callable[[M], V], label: Callable[[M], _Label]
    ) -> tuple[V, ...]:
        """Return the entities that can be decoded."""
        values = []
        for message in messages:
            try:
                values.append(decode(message))
            except UnsupportedValue as error:
                named = label(message)
                self.failures.append(UndecodableEntity(named.name, f"{named.title}: {error}"))
        return tuple(values)


def _named(title: str, field: str) -> Callable[[Message], _Label]:
    """Return the label of entities that one field names."""
    return lambda m: _Label(f"{title} `{getattr(m, field)}`", getattr(m, field))


def _of_parts(title: str, owner: str, field: str) -> Callable[[Message], _Label]:
    """Return the label of entities that belong to another one."""

    def label(message: Message) -> _Label:
        name = f"{getattr(message, owner)}.{getattr(message, field)}"
        return _Label(f"{title} `{name}`", name)

    return label


def _operator(message: dataset_pb2.Operator) -> _Label:
    kind = message.WhichOneof("kind") or "unknown"
    name = f"{message.dataset_name}.{message.pipeline_name}"
    return _Label(f"a `{kind}` operator of pipeline `{name}`", name)
