"""Large parts of a backup as a series of compressed files.

A table or the records of a partition is a stream of bytes of any length; an object on S3 is not. So
a stream is cut into pieces `<name>/00000`, `<name>/00001`, …, each of which is gzip.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from fennel_core.apps.backup.manifest import BackupFile
from fennel_core.apps.backup.offset_plan import SavedRecord
from fennel_core.apps.backup.storage import CHUNK_BYTES, BackupStorage
from fennel_core.apps.errors import BackupUnusable

PIECE_BYTES: Final = 256 * 1024 * 1024
"""Uncompressed, of all pieces that are written at a time; far below what one request to S3 may
send (5 GiB).
"""
FAST: Final = 1
"""Level of compression: rows in Kafka are compressed Arrow already."""
LENGTH_BYTES: Final = 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SavedRecord).decode


class BackupFiles:
    """Adds files to a backup and remembers their digests. Use it from one thread per `scratch`."""

    def __init__(self, storage: BackupStorage, scratch: Path) -> None:
        self._storage, self._scratch = storage, scratch
        self.files: list[BackupFile] = []

    def add(self, name: str, path: Path) -> None:
        """Store the content of `path` as `name`."""
        digest, size = hashlib.sha256(), 0
        with path.open("rb") as content:
            while chunk := content.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
        self._storage.add(name, path)
        self.files.append(BackupFile(name, size, digest.hexdigest()))

    def add_bytes(self, name: str, body: bytes) -> None:
        """Store a small file."""
        path = self._scratch / "small"
        path.write_bytes(body)
        self.add(name, path)
        path.unlink()

    def add_stream(self, name: str, stream: Iterable[bytes]) -> None:
        """Store a stream as pieces below `name`; an empty stream has none."""
        self.add_streams((name, chunk) for chunk in stream)

    def add_streams(self, chunks: Iterable[tuple[str, bytes]]) -> None:
        """Store several streams as pieces, given the names of the streams with their chunks.

        The pieces that are open together are bounded, and not only each: a scratch folder may be
        memory.
        """
        open_pieces: dict[str, _OpenPiece] = {}
        counts: Counter[str] = Counter()
        paths = (self._scratch / f"piece-{number}" for number in itertools.count())
        written_bytes = 0

        def store(name: str) -> int:
            """Add the open piece of a stream and return its size."""
            piece = open_pieces.pop(name)
            piece.close()
            self.add(f"{name}/{counts[name]:05d}", piece.path)
            piece.path.unlink()
            counts[name] += 1
            return piece.size_bytes

        try:
            for name, chunk in chunks:
                if name not in open_pieces:
                    open_pieces[name] = _OpenPiece(next(paths))
                open_pieces[name].write(chunk)
                written_bytes += len(chunk)
                if written_bytes >= PIECE_BYTES:
                    largest = max(open_pieces, key=lambda each: open_pieces[each].size_bytes)
                    written_bytes -= store(largest)
            for name in sorted(open_pieces):
                store(name)
        finally:
            for piece in open_pieces.values():
                piece.close()


class _OpenPiece:
    """A piece while it is written to `path`."""

    def __init__(self, path: Path) -> None:
        self.path, self.size_bytes = path, 0
        self._file = path.open("wb")
        # Without name and time in its header, equal content is an equal file.
        self._gzip = gzip.GzipFile("", "wb", FAST, self._file, mtime=0)

    def write(self, chunk: bytes) -> None:
        self._gzip.write(chunk)
        self.size_bytes += len(chunk)

    def close(self) -> None:
        with self._file:
            self._gzip.close()


def read_stream(storage: BackupStorage, pieces: list[BackupFile]) -> Iterator[bytes]:
    """Yield the stream that was stored as `pieces`."""
    for piece in pieces:
        chunks = storage.chunks(piece.name)
        if chunks is None:
            raise BackupUnusable(f"{piece.name} has disappeared from the backup: start again")
        inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        for chunk in chunks:
            if plain := inflate.decompress(chunk):
                yield plain
        yield inflate.flush()


def encode_record(record: SavedRecord) -> bytes:
    """Return a record as bytes that follow each other in a stream."""
    body = _encode(record)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_records(stream: Iterator[bytes]) -> Iterator[SavedRecord]:
    """Yield the records of a stream; the inverse of `encode_record`."""
    waiting = bytearray()
    for chunk in stream:
        waiting += chunk
        at = 0
        while len(waiting) - at >= LENGTH_BYTES:
            stop = at + LENGTH_BYTES + int.from_bytes(waiting[at : at + LENGTH_BYTES], "big")
            if stop > len(waiting):
                break
            yield _decode(memoryview(waiting)[at + LENGTH_BYTES : stop])
            at = stop
        del waiting[:at]
    if waiting:
        raise BackupUnusable("a file of records in the backup ends within a record")
