"""Streams of a backup are stored as pieces of a bounded size, and read back as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fennel_core.apps.backup import pieces
from fennel_core.apps.backup.pieces import BackupFiles, read_stream
from fennel_core.apps.backup.storage import FolderStorage

LIMIT_BYTES = 100_000


def test_streams_that_arrive_together_are_stored_apart_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", LIMIT_BYTES)
    chance = random.Random(3)  # noqa: S311  # not for secrets
    chunks = [
        (chance.choice("ab") if n < 200 else "c", chance.randbytes(chance.randint(1, 9_000)))
        for n in range(300)
    ]
    storage, scratch = FolderStorage(tmp_path / "backup"), tmp_path / "scratch"
    scratch.mkdir()
    files = BackupFiles(storage, scratch)
    open_bytes = 0

    def arriving() -> Iterator[tuple[str, bytes]]:
        for each in chunks:
            yield each
            nonlocal open_bytes
            open_bytes = max(open_bytes, sum(p.stat().st_size for p in scratch.iterdir()))

    files.add_streams(arriving())
    for name in "abc":
        stored = [file for file in files.files if file.name.startswith(f"{name}/")]
        assert len(stored) > 1
        assert [file.name for file in stored] == [f"{name}/{n:05d}" for n in range(len(stored))]
        expected = b"".join(chunk for stream, chunk in chunks if stream == name)
        assert b"".join(read_stream(storage, stored)) == expected
    assert 0 < open_bytes < 2 * LIMIT_BYTES
    assert list(scratch.iterdir()) == []


def test_a_stream_without_content_has_no_piece(tmp_path: Path) -> None:
    files = BackupFiles(FolderStorage(tmp_path / "backup"), tmp_path)
    files.add_stream("empty", iter(()))
    assert files.files == []


def test_a_failure_closes_what_is_open(tmp_path: Path) -> None:
    files = BackupFiles(FolderStorage(tmp_path / "backup"), tmp_path)

    def broken() -> Iterator[tuple[str, bytes]]:
        yield "a", b"1"
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        files.add_streams(broken())
    assert files.files == []
