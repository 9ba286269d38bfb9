"""A manifest: everything one snapshot consists of, as one immutable object.

Theory. A snapshot is a list of files whose contents are objects of their own. Most files of a
log-structured store never change, so a new manifest mostly names objects that an older one named
already: that is what makes snapshots incremental. Sizes and checksums make a damaged object visible
before any state is built from it. The position is a lower bound: the state holds at least
everything below it, so nothing below it is needed again; how far exactly the state has come is
written in the state itself.

Bytes: JSON, because a person with nothing but an S3 client must be able to read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from fennel_core.vocab.ids import Epoch, JobId, Offset, PartitionIndex, TopicName

FORMAT: Final = 1


class ManifestInvalid(Exception):
    """Bytes that are no manifest, or one that this version does not read."""


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file of the state. `name` is relative to the state's folder and names no other folder."""

    name: str
    size_bytes: int
    sha256: str
    object: str
    """The key of its content."""


@dataclass(frozen=True, slots=True)
class StatePosition:
    """`offsets`: next record to apply per input topic. `replayed`: next replaylog record to look
    at. Both at least.
    """

    iteration: int
    replayed: Offset
    offsets: Mapping[TopicName, Offset]


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    format: int
    job: JobId
    part: PartitionIndex
    epoch: Epoch
    """Of the owner that took the snapshot."""
    state_format: int
    position: StatePosition
    files: tuple[ManifestFile, ...]


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(SnapshotManifest).decode


def encode_manifest(manifest: SnapshotManifest) -> bytes:
    """The bytes of a manifest; the inverse of `decode_manifest`."""
    _checked(manifest)
    return _encode(manifest)


def decode_manifest(body: bytes) -> SnapshotManifest:
    """The manifest in `body`; ManifestError when it is none, or of another format."""
    try:
        manifest = _decode(body)
    except msgspec.DecodeError as wrong:
        raise ManifestInvalid(f"not a manifest: {wrong}") from wrong
    _checked(manifest)
    return manifest


def _checked(manifest: SnapshotManifest) -> None:
    if manifest.format != FORMAT:
        raise ManifestInvalid(
            f"manifest format {manifest.format} is not {FORMAT}: run the version that wrote it"
        )
    names = [file.name for file in manifest.files]
    strays = [name for name in names if "/" in name or name in {"", ".", ".."}]
    if strays or len(set(names)) != len(names):
        raise ManifestInvalid(
            f"files of a manifest need plain, distinct names; these are not: {strays or names}"
        )
