"""State that lives as long as one key of a timeline: in memory, and on disk once it is large."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final

from rocksdict import Cache

from fennel_core.hangar.rocks import RocksHangar
from fennel_core.hangar.store import Hangar, HangarBusy, WriteBatch

LIMIT_BYTES: Final = 64 << 20
"""State in memory. A key with some hundred thousand events reaches it."""
CACHE_BYTES: Final = 16 << 20
"""Blocks of a store on disk that are kept in memory."""
BUSY_PAUSE_S: Final = 0.05
BUSY_ATTEMPTS: Final = 1_200
"""One minute: a store that takes no write for longer has no disk to write to."""


def open_spill(folder: Path) -> Hangar:
    """Return an empty store in a new folder below `folder`; closing it deletes that folder."""
    path = Path(mkdtemp(prefix="scratch-", dir=folder))
    return RocksHangar(path, Cache(CACHE_BYTES), lambda: rmtree(path, ignore_errors=True))


class ScratchStore:
    """A `StateReader` that moves its entries to a store on disk whenever it exceeds a limit.

    `open_spill` returns an empty store; `close` of that store must delete it.
    """

    def __init__(
        self,
        open_spill: Callable[[], Hangar],
        limit_bytes: int = LIMIT_BYTES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._open_spill, self._limit_bytes, self._sleep = open_spill, limit_bytes, sleep
        self._entries: dict[bytes, bytes] = {}
        self._bytes = 0
        self._spill: Hangar | None = None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = list(map(self._entries.get, keys))
        if self._spill is None:
            return found
        missing = [place for place, value in enumerate(found) if value is None]
        stored = self._spill.get_many([keys[place] for place in missing])
        for place, value in zip(missing, stored, strict=True):
            found[place] = value
        return found

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return entries as `StateReader.scan` does. Slow: it walks everything in memory."""
        found = {} if self._spill is None else dict(self._spill.scan(start, stop))
        found.update((key, value) for key, value in self._entries.items() if start <= key < stop)
        return sorted(found.items(), reverse=reverse)[:limit]

    def put(self, puts: Mapping[bytes, bytes]) -> None:
        """Add or replace entries."""
        for key, value in puts.items():
            old = self._entries.get(key)
            self._bytes += len(value) - len(old) if old is not None else len(key) + len(value)
        self._entries.update(puts)
        if self._bytes > self._limit_bytes:
            if self._spill is None:
                self._spill = self._open_spill()
            self._write(self._spill, WriteBatch(self._entries))
            self._entries, self._bytes = {}, 0

    def _write(self, store: Hangar, batch: WriteBatch) -> None:
        """Write, waiting for the store to catch up; raises HangarBusy if it does not."""
        for _ in range(BUSY_ATTEMPTS - 1):
            try:
                store.write(batch)
            except HangarBusy:
                self._sleep(BUSY_PAUSE_S)
            else:
                return
        store.write(batch)

    def clear(self) -> None:
        """Forget everything."""
        if self._spill is not None:
            self._spill.close()
            self._spill = None
        self._entries, self._bytes = {}, 0
