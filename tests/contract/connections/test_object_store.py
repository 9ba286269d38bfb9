"""The object store, in memory and in S3."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path

import pytest

from fennel_core.connections.object_store import PIECE_BYTES, ObjectConflict, ObjectStore
from tests.support.object_store import objects

__all__ = ["objects"]


async def test_an_object_is_written_once_and_never_changed(objects: ObjectStore) -> None:
    await objects.put("a/1", b"first")
    await objects.put("a/1", b"first")
    with pytest.raises(ObjectConflict):
        await objects.put("a/1", b"second")
    assert await objects.get("a/1") == b"first"
    assert await objects.get("a/2") is None


async def test_objects_are_listed_by_prefix_with_their_age_and_deleted(
    objects: ObjectStore,
) -> None:
    for key in ("p/2", "p/1", "q/1"):
        await objects.put(key, key.encode())
    listed = await objects.list_objects("p/")
    assert [each.key for each in listed] == ["p/1", "p/2"]
    assert all(each.written_at.utcoffset() == timedelta(0) for each in listed)
    await objects.delete(["p/1", "p/never"])
    assert [each.key for each in await objects.list_objects("")] == ["p/2", "q/1"]


async def test_files_are_uploaded_and_downloaded_with_their_checksum(
    objects: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "up").write_bytes(b"0123456789" * 300_000)
    await objects.upload("f/1", tmp_path / "up")
    await objects.upload("f/1", tmp_path / "up")
    assert (
        await objects.download("f/1", tmp_path / "down")
        == hashlib.sha256(b"0123456789" * 300_000).hexdigest()
    )
    assert (tmp_path / "down").read_bytes() == (tmp_path / "up").read_bytes()
    assert await objects.download("f/2", tmp_path / "none") is None
    (tmp_path / "up").write_bytes(b"other")
    with pytest.raises(ObjectConflict):
        await objects.upload("f/1", tmp_path / "up")


async def test_an_object_is_streamed_in_pieces(objects: ObjectStore) -> None:
    body = b"0123456789" * 300_000
    await objects.put("s/1", body)
    found = await objects.stream("s/1")
    assert found is not None
    pieces = [piece async for piece in found]
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) == PIECE_BYTES
    assert await objects.stream("s/2") is None


async def test_a_range_of_an_object_is_read(objects: ObjectStore) -> None:
    await objects.put("r/1", b"0123456789")
    ranges = [(0, 4), (6, 4), (8, 9), (10, 1), (99, 1)]
    found = [await objects.read_range("r/1", *each) for each in ranges]
    assert found == [b"0123", b"6789", b"89", b"", b""]
    assert await objects.read_range("r/2", 0, 1) is None
