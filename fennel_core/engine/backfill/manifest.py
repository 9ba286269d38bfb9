"""What a batch stages and an owner publishes: chunks of outputs and state, named by one manifest.

Theory. A load is a pure function of a job, a partition and ranges of its inputs in history: whoever
computes it gets the same, so it needs no owner. To its job partition a load is one more input:
`backfill:<manifest>` whose records are the chunks 0, 1, …. The owner publishes a chunk like any
iteration (outputs and marker in one transaction, then mutations and the next chunk's number in one
write batch); the last chunk also moves the offsets of the real inputs to where history ended. So a
crash in the middle, a new owner and replay need no rules of their own.

Objects: `backfill/<job>/<part>/<name>/manifest` (JSON) and `…/<number>` (a chunk: zstd over msgpack
`[FORMAT, outputs, entries]`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from fennel_core.engine.broker import OutgoingRecord
from fennel_core.vocab.ids import JobId, Offset, PartitionIndex, TopicName

FORMAT: Final = 1
PREFIX: Final = "backfill"
_INPUT: Final = "backfill:"
_CODEC: Final = pa.Codec("zstd")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class BackfillCorrupt(Exception):
    """What was staged is not what its manifest says: the job partition parks, and is rebuilt."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a load: messages to write, entries to put into state."""

    outgoing: tuple[OutgoingRecord, ...]
    puts: Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """One staged chunk."""

    key: str
    sha256: str


class BackfillManifest(msgspec.Struct, frozen=True):
    """A finished load. `ends`: the next offset of each input topic after it; `name`: the key of its
    manifest.
    """

    key: str
    job: str
    part: int
    step_version: int
    state_format: int
    rows: int
    end_offsets: dict[str, int]
    chunks: list[ChunkRef]
    format: int = FORMAT


def attempt_prefix(job: JobId, part: PartitionIndex, unique: str) -> str:
    """Where the objects of one attempt at a load stand."""
    return f"{PREFIX}/{job}/{part}/{unique}"


def input_topic(name: str) -> TopicName:
    """The load as an input of its job partition."""
    return TopicName(_INPUT + name)


def manifest_key(topic: TopicName) -> str | None:
    """The load that an input stands for, None for a real topic."""
    return topic.removeprefix(_INPUT) if topic.startswith(_INPUT) else None


def backfill_in_progress(offsets: Mapping[TopicName, Offset]) -> tuple[str, Offset] | None:
    """The load that a job partition's offsets tell of and the next chunk of it, None where there is
    none.
    """
    return next(
        (
            (name, offset)
            for topic, offset in offsets.items()
            if (name := manifest_key(topic)) is not None
        ),
        None,
    )


def encode_manifest(load: BackfillManifest) -> bytes:
    return msgspec.json.encode(load)


def decode_manifest(body: bytes) -> BackfillManifest:
    """BackfillCorrupt when the bytes are no manifest of this format."""
    try:
        load = msgspec.json.decode(body, type=BackfillManifest)
    except msgspec.MsgspecError as damaged:
        raise BackfillCorrupt(f"a load's manifest cannot be read: {damaged}") from damaged
    if load.format != FORMAT:
        raise BackfillCorrupt(
            f"load {load.key} has format {load.format}, not {FORMAT}: run the "
            "version that staged it"
        )
    return load


def encode_chunk(outgoing: Sequence[OutgoingRecord], puts: Mapping[bytes, bytes]) -> bytes:
    """The object of a chunk."""
    messages = [
        [o.topic, o.partition, o.value, [[name, value] for name, value in o.headers]]
        for o in outgoing
    ]
    body = _encode([FORMAT, messages, list(puts.items())])
    return len(body).to_bytes(8, "big") + bytes(_CODEC.compress(body, asbytes=True))


def decode_chunk(piece: ChunkRef, body: bytes | None) -> Chunk:
    """The chunk in an object; BackfillCorrupt when it is not there or not what was staged."""
    if body is None or digest(body) != piece.sha256:
        raise BackfillCorrupt(
            f"chunk {piece.key} is {'gone' if body is None else 'damaged'}: commit "
            "its dataset under a new version"
        )
    whole: bytes = _CODEC.decompress(
        body[8:], decompressed_size=int.from_bytes(body[:8], "big"), asbytes=True
    )
    fields: list[Any] = _decode(whole)
    assert fields[0] == FORMAT, "a manifest of this format names chunks of this format"
    outgoing = [
        OutgoingRecord(TopicName(t), part, value, tuple((n, bytes(v)) for n, v in headers))
        for t, part, value, headers in fields[1]
    ]
    return Chunk(tuple(outgoing), dict(fields[2]))


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
