"""The manifest: everything that one snapshot consists of, as one immutable object.

Theory. A snapshot is a list of files whose contents are objects of their own. Most files of a
log-structured store never change, so a new manifest mostly refers to objects that an older one
refers to already: that makes snapshots incremental. Sizes and checksums detect a corrupt object
before any state is built from it. The position is a lower bound: the state has applied at least
everything below it, so no record below it is needed again. The exact position is in the state.

Format: JSON, so that an operator with any S3 client can read it. The stored field names are those
of the classes below; a golden test pins the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from fennel_core.snapshots.errors import ManifestMalformed
from fennel_core.vocab.ids import Epoch, JobId, Offset, PartitionIndex, TopicName

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file of the state. `name` is a plain file name in the state's folder."""

    name: str
    size_bytes: int
    sha256: str
    object: str
    """The key of its content."""


@dataclass(frozen=True, slots=True)
class StatePosition:
    """How far a state has come, at least.

    `offsets`: next record to apply, per input topic. `replayed`: next replaylog record to read.
    """

    iteration: int
    replayed: Offset
    offsets: Mapping[TopicName, Offset]

    def covers(self, other: StatePosition) -> bool:
        """Return whether a state at this position has applied everything that `other` has."""
        return self.replayed >= other.replayed and all(
            self.offsets.get(topic, 0) >= offset for topic, offset in other.offsets.items()
        )


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """One snapshot of a job partition's state."""

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
    """Return the bytes of a manifest; the inverse of `decode_manifest`."""
    _check(manifest)
    return _encode(manifest)


def decode_manifest(body: bytes) -> SnapshotManifest:
    """Return the manifest in `body`; ManifestMalformed if it is not one of this format."""
    try:
        manifest = _decode(body)
    except msgspec.DecodeError as wrong:
        raise ManifestMalformed(f"not a manifest: {wrong}") from wrong
    _check(manifest)
    return manifest


def _check(manifest: SnapshotManifest) -> None:
    if manifest.format != FORMAT:
        raise ManifestMalformed(
            f"manifest format {manifest.format} is not {FORMAT}: run the version that wrote it"
        )
    names = [file.name for file in manifest.files]
    unsafe = [name for name in names if "/" in name or name in {"", ".", ".."}]
    if unsafe or len(set(names)) != len(names):
        raise ManifestMalformed(
            f"file names in a manifest must be plain and distinct; found {unsafe or names}"
        )
