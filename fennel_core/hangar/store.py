"""The contract of Hangar; `memory.py` is its twin, `rocks.py` the real one, one suite holds both to
it.

Theory. A job partition's state changes by one atomic write batch per iteration, which also carries
the offsets it stands for. Its owner applies batches and serves lookups on one thread (the slot's
event loop), so a lookup of several reads sees the state between two iterations, never a part of
one, without a snapshot per lookup. Keys are ordered bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class HangarClosed(Exception):
    """The store was closed before it was asked."""


class HangarCorrupt(Exception):
    """The store's files are not what was written: nothing that it says can be relied on."""


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """What one iteration changes; a key stands in `puts` or in `deletes`, never in both."""

    puts: Mapping[bytes, bytes] = field(default_factory=dict)
    deletes: frozenset[bytes] = frozenset()


class HangarReader(Protocol):
    """Read access to state. It raises HangarDamaged rather than answer with less than was
    written.
    """

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""
        ...

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Entries with start <= key < stop, ascending (descending with `reverse`), at most `limit`
        of them.
        """
        ...


class Hangar(HangarReader, Protocol):
    def write(self, batch: WriteBatch) -> None:
        """Apply the batch atomically and durably enough to survive the process (not the
        machine).
        """
        ...

    def checkpoint(self, target: Path) -> None:
        """A complete, openable copy of the state in the new directory `target` (hard links where
        possible); HangarClosed after `close`.
        """
        ...

    def close(self) -> None: ...


def prefix_end(prefix: bytes) -> bytes:
    """The least key greater than every key that starts with `prefix`."""
    for cut in range(len(prefix), 0, -1):
        if prefix[cut - 1] != 0xFF:
            return prefix[: cut - 1] + bytes([prefix[cut - 1] + 1])
    raise ValueError("a prefix of 0xff bytes has no end")
