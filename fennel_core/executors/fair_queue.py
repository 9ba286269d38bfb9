"""A queue in which callers take turns. Standard library only: both environments import this module.

Every item belongs to a share: a workspace of one platform process. The items of a share wait in
order, and the shares take turns, so a share with a thousand waiting calls delays the first call of
another one by one call and not by a thousand.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """One line per share."""

    def __init__(self) -> None:
        self._lines: OrderedDict[int, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[T]:
        for line in self._lines.values():
            yield from line

    def append(self, share: int, item: T) -> None:
        """Add an item behind those of its share."""
        self._lines.setdefault(share, deque()).append(item)

    def popleft(self) -> T:
        """Remove the first item of the next share; IndexError if the queue is empty."""
        if not self._lines:
            raise IndexError("the queue is empty")
        share, line = next(iter(self._lines.items()))
        item = line.popleft()
        self._drop_empty(share, line)
        if share in self._lines:
            self._lines.move_to_end(share)
        return item

    def discard(self, share: int, item: T) -> None:
        """Remove an item if it waits."""
        line = self._lines.get(share)
        if line is not None and item in line:
            line.remove(item)
            self._drop_empty(share, line)

    def _drop_empty(self, share: int, line: deque[T]) -> None:
        if not line:
            del self._lines[share]


class FairCapacity:
    """A semaphore of one event loop whose waiting shares take turns."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    async def acquire(self, share: int) -> None:
        """Take a place; `release` gives it back."""
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(share, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The place was granted in the same turn of the event loop.
                self.release()
            self._waiting.discard(share, turn)
            raise

    def release(self) -> None:
        """Give a place to the next waiting share."""
        while len(self._waiting):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
