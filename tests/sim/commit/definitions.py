"""Definitions of simulated users: small datasets as values, and as the client's SyncRequest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from fennel_core.wire.gen import services_pb2

SECONDS_OF_HISTORY = 63_072_000
CODE = "def copy(cls, ds): return ds"


@dataclass(frozen=True, slots=True)
class Definition:
    """A keyed dataset: a source, or (`reads`) a copy of another one without its field `drops`.

    `endpoints`: those that feed a source.
    """

    name: str
    version: int
    fields: tuple[str, ...]
    reads: str | None = None
    drops: str | None = None
    description: str = ""
    endpoints: tuple[str, ...] = ()


Definitions = Mapping[str, Definition]


def source(name: str) -> Definition:
    return Definition(name, 1, ("a", "b", "c"), endpoints=(name,))


def fed_by(definition: Definition, endpoint: str) -> Definition:
    """Return the source with one endpoint more, or without it if it has it."""
    endpoints = set(definition.endpoints) ^ {endpoint}
    return replace(definition, endpoints=tuple(sorted(endpoints)))


def derived(name: str, input_: Definition) -> Definition:
    """Return a copy of `input_` without its last field."""
    return Definition(name, 1, input_.fields[:-1], input_.name, input_.fields[-1])


def wider(definition: Definition, field: str) -> Definition:
    """Return the next version, with one field more in front."""
    return replace(definition, version=definition.version + 1, fields=(field, *definition.fields))


def request(definitions: Iterable[Definition]) -> bytes:
    """Return the commit that the client would send."""
    message = services_pb2.SyncRequest(message="")
    for definition in definitions:
        _add(message, definition)
    return bytes(message.SerializeToString(deterministic=True))


def _add(message: services_pb2.SyncRequest, definition: Definition) -> None:
    dataset = message.datasets.add(name=definition.name, version=definition.version)
    dataset.metadata.owner = "me@example.com"
    dataset.metadata.description = definition.description
    dataset.history.seconds = dataset.retention.seconds = SECONDS_OF_HISTORY
    dataset.is_source_dataset = definition.reads is None
    key = dataset.dsschema.keys.fields.add(name="key")
    key.dtype.string_type.SetInParent()
    for name in definition.fields:
        dataset.dsschema.values.fields.add(name=name).dtype.int_type.SetInParent()
    dataset.dsschema.timestamp = "at"
    dataset.pycode.core_code = dataset.pycode.source_code = f"class {definition.name}: pass"
    index = message.online_indices.add(ds_name=definition.name, ds_version=definition.version)
    index.duration.forever = "forever"
    if definition.reads is None:
        for endpoint in definition.endpoints:
            _add_source(message, definition, endpoint)
    else:
        _add_pipeline(message, definition, definition.reads)


def _add_source(message: services_pb2.SyncRequest, definition: Definition, name: str) -> None:
    source_ = message.sources.add(dataset=definition.name, ds_version=definition.version)
    endpoint = source_.table.endpoint
    endpoint.db.name = endpoint.db.webhook.name = "app"
    endpoint.db.webhook.retention.seconds = endpoint.duration.seconds = 604_800
    endpoint.endpoint = name
    source_.disorder.seconds = 1_209_600
    source_.cdc = 1  # upsert
    if not message.extdbs:
        message.extdbs.add().CopyFrom(endpoint.db)


def _add_pipeline(message: services_pb2.SyncRequest, definition: Definition, input_: str) -> None:
    version = definition.version
    pipeline = message.pipelines.add(
        name="copy", dataset_name=definition.name, signature="copy", ds_version=version
    )
    pipeline.input_dataset_names.append(input_)
    pipeline.pycode.entry_point = "copy"
    pipeline.pycode.core_code = pipeline.pycode.source_code = CODE
    reference = message.operators.add(
        id=input_, pipeline_name="copy", dataset_name=definition.name, ds_version=version
    )
    reference.dataset_ref.referring_dataset_name = input_
    root = message.operators.add(
        id="root",
        is_root=True,
        pipeline_name="copy",
        dataset_name=definition.name,
        ds_version=version,
    )
    root.drop.operand_id = input_
    root.drop.dropcols.append(definition.drops or "")


@lru_cache(maxsize=4096)
def entities(body: bytes | None) -> Mapping[str, tuple[bytes, ...]]:
    """Return the messages of each dataset of a SyncRequest, compared as bytes.

    This is independent of the decoder and of the comparison that the platform uses.
    """
    found: dict[str, list[bytes]] = {}
    if body is not None:
        message = services_pb2.SyncRequest.FromString(body)
        for dataset in message.datasets:
            found.setdefault(dataset.name, []).append(_bytes(dataset))
        for source_ in message.sources:
            found.setdefault(source_.dataset, []).append(_bytes(source_))
        for part in (*message.pipelines, *message.operators):
            found.setdefault(part.dataset_name, []).append(_bytes(part))
    return {name: tuple(sorted(parts)) for name, parts in found.items()}


@lru_cache(maxsize=4096)
def versions(body: bytes | None) -> Mapping[str, tuple[int, bytes]]:
    """Return the version and the schema of each dataset of a SyncRequest."""
    if body is None:
        return {}
    message = services_pb2.SyncRequest.FromString(body)
    return {d.name: (d.version, _bytes(d.dsschema)) for d in message.datasets}


def pulled(body: bytes | None) -> dict[str, Definition]:
    """Return the definitions of a version as a user who reads it would write them."""
    if body is None:
        return {}
    message = services_pb2.SyncRequest.FromString(body)
    reads = {p.dataset_name: p.input_dataset_names[0] for p in message.pipelines}
    endpoints: dict[str, list[str]] = {}
    for source_ in message.sources:
        endpoints.setdefault(source_.dataset, []).append(source_.table.endpoint.endpoint)
    drops = {o.dataset_name: o.drop.dropcols[0] for o in message.operators if o.HasField("drop")}
    return {
        d.name: Definition(
            d.name,
            d.version,
            tuple(f.name for f in d.dsschema.values.fields),
            reads.get(d.name),
            drops.get(d.name),
            d.metadata.description,
            tuple(sorted(endpoints.get(d.name, ()))),
        )
        for d in message.datasets
    }


def _bytes(message: object) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))
