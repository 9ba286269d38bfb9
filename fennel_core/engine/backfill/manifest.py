"""What a batch stages and an owner publishes: chunks of outputs and state, listed by a manifest.

Theory. A backfill is a pure function of a job, a partition and ranges of its inputs in history:
every computation gives the same result, so it needs no owner. To its job partition a backfill is
one more input, `backfill:<manifest>`, whose records are the chunks 0, 1, …. The owner publishes a
chunk like any iteration: outputs and marker in one transaction, then mutations and the next chunk's
number in one write batch. The last chunk also moves the offsets of the real inputs to the end of
history. So a crash midway, a new owner and replay need no rules of their own.

Objects: `backfill/<job>/<part>/<attempt>/manifest` (JSON; a golden test pins its field names) and
`…/<share>-<number>` (a chunk: zstd over msgpack `[FORMAT, outputs, entries]`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from fennel_core.engine.backfill.errors import BackfillCorrupt
from fennel_core.engine.broker import OutgoingRecord
from fennel_core.vocab.ids import JobId, Offset, PartitionIndex, TopicName

FORMAT: Final = 1
PREFIX: Final = "backfill"
_INPUT: Final = "backfill:"
_CODEC: Final = pa.Codec("zstd")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a backfill: messages to write, and entries to put into state."""

    outgoing: tuple[OutgoingRecord, ...]
    puts: Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """One staged chunk."""

    key: str
    sha256: str


class BackfillManifest(msgspec.Struct, frozen=True):
    """A finished backfill.

    `key`: the key of this manifest. `end_offsets`: the next offset of each input topic after it.
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
    """Return the prefix of the objects of one attempt."""
    return f"{PREFIX}/{job}/{part}/{unique}"


def input_topic(key: str) -> TopicName:
    """Return the backfill with manifest `key` as an input of its job partition."""
    return TopicName(_INPUT + key)


def manifest_key(topic: TopicName) -> str | None:
    """Return the key of the backfill that `topic` is; None for a real topic."""
    return topic.removeprefix(_INPUT) if topic.startswith(_INPUT) else None


def backfill_in_progress(offsets: Mapping[TopicName, Offset]) -> tuple[str, Offset] | None:
    """Return the manifest key and the next chunk of the backfill in a job partition's offsets.

    Returns None if the state was not started with a backfill.
    """
    return next(
        (
            (key, offset)
            for topic, offset in offsets.items()
            if (key := manifest_key(topic)) is not None
        ),
        None,
    )


def encode_manifest(manifest: BackfillManifest) -> bytes:
    """Return the bytes of a manifest."""
    return msgspec.json.encode(manifest)


def decode_manifest(body: bytes) -> BackfillManifest:
    """Return the manifest in `body`; BackfillCorrupt if it is not one of this format."""
    try:
        manifest = msgspec.json.decode(body, type=BackfillManifest)
    except msgspec.MsgspecError as malformed:
        raise BackfillCorrupt(f"backfill manifest is malformed: {malformed}") from malformed
    if manifest.format != FORMAT:
        raise BackfillCorrupt(
            f"backfill {manifest.key} has format {manifest.format}, not {FORMAT}: run the "
            "version that staged it"
        )
    return manifest


def encode_chunk(outgoing: Sequence[OutgoingRecord], puts: Mapping[bytes, bytes]) -> bytes:
    """Return the bytes of a chunk."""
    messages = [
        [o.topic, o.partition, o.value, [[name, value] for name, value in o.headers]]
        for o in outgoing
    ]
    body = _encode([FORMAT, messages, list(puts.items())])
    return len(body).to_bytes(8, "big") + bytes(_CODEC.compress(body, asbytes=True))


def decode_chunk(ref: ChunkRef, body: bytes | None) -> Chunk:
    """Return the chunk in `body`; BackfillCorrupt if it is missing or not what was staged."""
    if body is None or digest(body) != ref.sha256:
        raise BackfillCorrupt(
            f"backfill chunk {ref.key} is {'missing' if body is None else 'corrupt'}; commit its "
            "dataset under a new version"
        )
    whole: bytes = _CODEC.decompress(
        body[8:], decompressed_size=int.from_bytes(body[:8], "big"), asbytes=True
    )
    fields: list[Any] = _decode(whole)
    assert fields[0] == FORMAT, "a manifest of this format refers to chunks of this format"
    outgoing = [
        OutgoingRecord(TopicName(t), part, value, tuple((n, bytes(v)) for n, v in headers))
        for t, part, value, headers in fields[1]
    ]
    return Chunk(tuple(outgoing), dict(fields[2]))


def digest(body: bytes) -> str:
    """Return the SHA-256 of a chunk's bytes (hex)."""
    return hashlib.sha256(body).hexdigest()
