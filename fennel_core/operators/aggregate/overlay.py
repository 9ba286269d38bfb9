"""State as it will be after a batch: reads with changes laid over them."""

from __future__ import annotations

from collections.abc import Sequence

from fennel_core.operators.step import StateReader


class StateOverlay:
    """`StateReader` over `below` with puts and deletes; a key stands in one of them at most."""

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
        held = self._below.get_many(keys)
        return [
            self.puts.get(key, None if key in self.deletes else old)
            for key, old in zip(keys, held, strict=True)
        ]

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Walks all changes: for the few scans that need them."""
        found = {
            key: value for key, value in self._below.scan(start, stop) if key not in self.deletes
        }
        found.update((key, value) for key, value in self.puts.items() if start <= key < stop)
        return sorted(found.items(), reverse=reverse)[:limit]
