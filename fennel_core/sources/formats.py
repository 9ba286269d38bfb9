"""The decoder of a source's messages, by the format that its definition names."""

from __future__ import annotations

from typing import assert_never

from fennel_core.connections.external_kafka import OpenSecret
from fennel_core.connections.schema_registry import RegistryClient
from fennel_core.sources.avro import compile_avro
from fennel_core.sources.framed import FramedDecoder
from fennel_core.sources.messages import Decode, decode_messages
from fennel_core.sources.protobuf import compile_protobuf
from fennel_core.wire.connectors import AvroFormat, JsonFormat, ProtobufFormat, RecordFormat


def decoder_of(record_format: RecordFormat, open_secret: OpenSecret) -> Decode:
    """Return the decoder of a format. Raises `SecretUnreadable`."""
    match record_format:
        case JsonFormat():
            return decode_messages
        case AvroFormat(registry):
            return FramedDecoder(RegistryClient.of(registry, open_secret), compile_avro)
        case ProtobufFormat(registry):
            return FramedDecoder(RegistryClient.of(registry, open_secret), compile_protobuf)
        case unreachable:
            assert_never(unreachable)
