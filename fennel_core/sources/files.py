"""How far the files of a bucket were read: pure decisions over what is remembered.

Theory. Objects appear in a bucket in any order: with an earlier name than those that were read, and
even with an earlier time, because the time of an upload in parts is that of its beginning. So no
watermark says what was read. It is *remembered* per object: when the last row of a file is written,
a note with its ETag and size is written to the positions topic, in the same transaction, under a
key made of the object's key. A listing minus the notes is what is left, whatever its order; a file
that is overwritten has another ETag, and is another file.

The cursor of a position names the file that is being read and how many of its rows were passed, so
a restart goes on in the middle. It also has a digest of everything that was read before: two
readers with different listings reach different cursors even if they end with the same file and as
many rows, so compare-and-set on the cursor notices it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec

from fennel_core.connections.external_s3 import ListedFile
from fennel_core.graph.s3_paths import FilePath
from fennel_core.vocab.ids import Micros

FILES: Final = 1_000_000
"""Files of one source: what is remembered of each takes some 200 bytes of memory while it is read.
"""
NOTE: Final = "file/"
"""How the keys of notes begin, behind the partition."""


class FileCursor(msgspec.Struct, frozen=True):
    """The last file of which rows were written: `row` rows were passed, all of them if `done`.

    `first_until_us`: the time of the newest file at the first listing; files up to it are the first
    full read. `read`: files that were read to the end. `digest`: of all that was read.
    """

    key: str = ""
    etag: str = ""
    size_bytes: int = 0
    row: int = 0
    done: bool = True
    first_until_us: int = 0
    read: int = 0
    digest: str = ""


Order = Callable[[ListedFile], tuple[int, int, str]]
_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(FileCursor).decode


def encode_cursor(cursor: FileCursor) -> str:
    """Return the text that is stored with a position."""
    return _encode(cursor).decode()


def decode_cursor(text: str) -> FileCursor | None:
    """Return the cursor of a position; None before the first file."""
    return _decode(text.encode()) if text else None


def note_name(key: str) -> str:
    """Return the name of the note about an object."""
    return NOTE + blake2b(key.encode(), digest_size=16).hexdigest()


def note_of(file: ListedFile, rewinds: int) -> bytes:
    """Return what is remembered of a file that was read since so many rewinds of its source.

    What was remembered before a rewind is never equal to it, so a rewind deletes no notes.
    """
    content = f"{file.etag}/{file.size_bytes}"
    return (f"{rewinds}:{content}" if rewinds else content).encode()


def moved(cursor: FileCursor, file: ListedFile, row: int, *, done: bool) -> FileCursor:
    """Return the cursor after rows up to `row` of `file` were read."""
    what = f"{cursor.digest} {file.key} {file.etag} {row} {done}"
    return FileCursor(
        file.key,
        file.etag,
        file.size_bytes,
        row,
        done,
        cursor.first_until_us,
        cursor.read + done,
        blake2b(what.encode(), digest_size=12).hexdigest(),
    )


@dataclass(frozen=True, slots=True)
class FilePlan:
    """What is left to read: `going_on` first, from its row on, then `files`.

    `lost`: the file that was being read is not there any more, as it was overwritten or deleted.
    """

    going_on: ListedFile | None
    files: tuple[ListedFile, ...]
    lost: bool


def plan(
    listed: Iterable[ListedFile],
    path: FilePath,
    notes: Mapping[str, bytes],
    cursor: FileCursor | None,
    *,
    presorted: bool,
    rewinds: int,
) -> FilePlan:
    """Return what is left of a listing. `notes`: by name."""
    left = [
        file
        for file in listed
        if path.matches(file.key) and notes.get(note_name(file.key)) != note_of(file, rewinds)
    ]
    going_on, lost = None, False
    if cursor is not None and not cursor.done:
        same = [file for file in left if (file.key, file.etag) == (cursor.key, cursor.etag)]
        going_on, lost = (same[0], False) if same else (None, True)
    # One that was begun is read to its end, whatever window a later commit has.
    rest = [file for file in left if file is not going_on and path.may_have_rows(file.key)]
    return FilePlan(going_on, tuple(sorted(rest, key=_order(path, presorted))), lost)


def _order(path: FilePath, presorted: bool) -> Order:
    if presorted:
        return lambda file: (0, 0, file.key)

    def order(file: ListedFile) -> tuple[int, int, str]:
        at = path.time_us(file.key)
        # Files whose key has no time come last, by the time of their upload.
        return (1, file.modified_us, file.key) if at is None else (0, at, file.key)

    return order


def first_until(listed: Iterable[ListedFile]) -> Micros:
    """Return the time of the newest file; 0 without any."""
    return max((file.modified_us for file in listed), default=Micros(0))
