"""The state store in memory, for laws, contract tests and the simulation."""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Sequence
from pathlib import Path

from fennel_core.hangar.store import HangarClosed, WriteBatch

_FILE = "state.json"


class MemoryHangar:
    """A `Hangar` over a sorted dictionary."""

    def __init__(self, entries: dict[bytes, bytes] | None = None) -> None:
        self._values = dict(entries or {})
        self._keys = sorted(self._values)
        self._closed = False

    @classmethod
    def restore(cls, source: Path) -> MemoryHangar:
        """Return the store that a checkpoint holds."""
        data = json.loads((source / _FILE).read_text())
        return cls({bytes.fromhex(k): bytes.fromhex(v) for k, v in data.items()})

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._values.get(key) for key in keys]

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        keys = self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, stop)]
        if reverse:
            keys.reverse()
        return [(key, self._values[key]) for key in keys[:limit]]

    def stage(self, batch: WriteBatch) -> None:
        """Do nothing: a write takes a moment anyway."""

    def write(self, batch: WriteBatch) -> None:
        assert not batch.deletes & batch.puts.keys(), "a key is put or deleted, never both"
        for key in batch.deletes:
            if self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        for key, value in batch.puts.items():
            if key not in self._values:
                insort(self._keys, key)
            self._values[key] = value

    def checkpoint(self, target: Path) -> None:
        if self._closed:
            raise HangarClosed(f"the store was closed before its checkpoint {target.name}")
        target.mkdir(parents=True)
        (target / _FILE).write_text(json.dumps({k.hex(): v.hex() for k, v in self._values.items()}))

    def close(self) -> None:
        self._closed = True
