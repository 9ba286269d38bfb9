"""The bytes of a manifest, and which bytes are rejected."""

from __future__ import annotations

import pytest

from fennel_core.snapshots.errors import ManifestMalformed
from fennel_core.snapshots.manifest import (
    FORMAT,
    ManifestFile,
    SnapshotManifest,
    StatePosition,
    decode_manifest,
    encode_manifest,
)
from fennel_core.vocab.ids import Epoch, JobId, Offset, PartitionIndex, TopicName

POSITION = StatePosition(7, Offset(9), {TopicName("in"): Offset(5)})
GOLDEN = (
    b'{"format":1,"job":"j","part":0,"epoch":3,"state_format":1,'
    b'"position":{"iteration":7,"replayed":9,"offsets":{"in":5}},'
    b'"files":[{"name":"1.sst","size_bytes":1,"sha256":"a","object":"o/1"}]}'
)


def manifest(*files: ManifestFile) -> SnapshotManifest:
    return SnapshotManifest(FORMAT, JobId("j"), PartitionIndex(0), Epoch(3), 1, POSITION, files)


def test_the_stored_bytes_do_not_depend_on_python_names() -> None:
    assert encode_manifest(manifest(ManifestFile("1.sst", 1, "a", "o/1"))) == GOLDEN


def test_a_manifest_is_decoded_as_it_was_encoded() -> None:
    written = manifest(ManifestFile("1.sst", 1, "a", "o/1"), ManifestFile("2.sst", 2, "b", "o/2"))
    assert decode_manifest(encode_manifest(written)) == written


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"null", encode_manifest(manifest()).replace(b'"format":1', b'"format":2')]
)
def test_bytes_of_another_format_are_rejected(body: bytes) -> None:
    with pytest.raises(ManifestMalformed):
        decode_manifest(body)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../etc/passwd"])
def test_a_file_name_outside_the_folder_is_rejected(name: str) -> None:
    with pytest.raises(ManifestMalformed):
        encode_manifest(manifest(ManifestFile(name, 1, "a", "o/1")))
