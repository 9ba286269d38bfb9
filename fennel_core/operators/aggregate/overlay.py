"""State as it will be after a batch: reads with pending changes laid over them."""

from __future__ import annotations

from collections.abc import Sequence

from fennel_core.operators.step import StateReader


class StateOverlay:
    """A `StateReader` over `below` with puts and deletes. A key is in at most one of them."""

    def __init__(self, below: StateReader, puts: dict[bytes, bytes]) -> None:
        self._below = below
        self.puts = puts
        self.deletes: set[bytes] = set()

    def put(self, key: bytes, value: bytes) -> None:
        self.deletes.discard(key)
        self.puts[key] = value

    def delete(self, key: bytes) -> None:
        self.puts.pop(key, None)
        self.deletes.add(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        stored = self._below.get_many(keys)
        return [
            self.puts.get(key, None if key in self.deletes else old)
            for key, old in zip(keys, stored, strict=True)
        ]

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return entries as `StateReader.scan` does. Slow: it walks all pending changes."""
        found = {
            key: value for key, value in self._below.scan(start, stop) if key not in self.deletes
        }
        found.update((key, value) for key, value in self.puts.items() if start <= key < stop)
        return sorted(found.items(), reverse=reverse)[:limit]
