"""The protocol of the state store; `memory.py` and `rocks.py` implement it, tested by one suite.

Theory. A job partition's state changes by one atomic write batch per iteration, which also carries
the input offsets that the state corresponds to. Its owner applies batches and serves lookups on one
thread (the slot's event loop). So a lookup of several reads sees the state between two iterations,
never within one, without a snapshot per lookup. Keys are ordered bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from pathlib import Path
from typing import ClassVar, Final, Protocol

from fennel_core.operators.step import StateReader

SORTED_TOGETHER: Final = 20_000
"""Keys of one sort: 10 ms."""


class HangarError(Exception):
    """Base class of every failure of a state store. `code` is stable and never reused."""

    code: ClassVar[str] = "hangar-failed"


class HangarClosed(HangarError):
    """The store was closed before the call, because its job partition stopped. Retry elsewhere."""

    code = "hangar-closed"


class HangarCorrupt(HangarError):
    """The store's files are not what was written. Discard the state and rebuild it."""

    code = "hangar-corrupt"


class HangarBusy(HangarError):
    """Nothing was written: the store must write files before it takes more. Try again soon."""

    code = "hangar-busy"


class HangarInUse(HangarError):
    """Another opener holds the folder of the store. Try again soon."""

    code = "hangar-in-use"


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """The changes of one iteration; a key is in `puts` or in `deletes`, never in both."""

    puts: Mapping[bytes, bytes] = field(default_factory=dict)
    deletes: frozenset[bytes] = frozenset()


def in_order(keys: Iterable[bytes]) -> Iterator[bytes]:
    """Yield keys in their order.

    Many are sorted in parts, which are merged: one sort of a million keys would keep the
    interpreter for more than a second, also on another thread.
    """
    every = list(keys)
    parts = [
        sorted(every[start : start + SORTED_TOGETHER])
        for start in range(0, len(every), SORTED_TOGETHER)
    ]
    return merge(*parts)


class Hangar(StateReader, Protocol):
    """The state of one job partition: what a step reads, and the writes of its owner.

    Reads raise HangarCorrupt rather than return less than was written.
    """

    def stage(self, batch: WriteBatch) -> None:
        """Prepare the write of this very batch, so that it is short although the batch is large.

        Nothing is visible before `write`. Unlike all other methods it may run on another thread.
        """
        ...

    def write(self, batch: WriteBatch) -> None:
        """Apply the batch atomically. It survives the process, but not the machine.

        It never waits for the disk to catch up: raises HangarBusy.
        """
        ...

    def checkpoint(self, target: Path) -> None:
        """Write a complete copy of the state to the new directory `target`.

        Files are hard-linked where possible. Raises HangarClosed after `close`.
        """
        ...

    def close(self) -> None:
        """Close the store; its files stay."""
        ...
