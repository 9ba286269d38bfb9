"""A remote file that is read in ranges, as a Python file."""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class RangedFile(io.RawIOBase):
    """A file of which only what is read is transferred. `size_bytes`: of the whole file."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes, self._at = size_bytes, 0

    @abstractmethod
    def fetch(self, first: int, size: int) -> bytes:
        """Return the `size` bytes at offset `first`, which lie within the file; `size` > 0."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        size = min(len(view), self._size_bytes - self._at)
        if size <= 0:
            return 0
        body = self.fetch(self._at, size)
        assert len(body) == size, "a range of a file has the size that was asked for"
        view[:size] = body
        self._at += size
        return size
